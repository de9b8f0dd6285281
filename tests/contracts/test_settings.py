"""Each setting wrong on a recorded host is found, named and mended: by the script, which is run here below a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from entrypoints.checks.fixes import format_fix_script
from entrypoints.checks.grants import examine_facts
from entrypoints.core.records import Finding
from entrypoints.host.host import Host
from tests.support.hosts import expect, trees
from tests.support.hosts.knobs import KNOBS, as_shown, restarted, tuned, wrong
from tests.support.hosts.trees import Tree

SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
ACCELERATORS = sorted({name.partition("-")[0] for name in expect.names()})
BY_HAND = ("derived.hugepages_idle_percent", "derived.swap_used_mib", "kernel.hccn_unaddressed", "kernel.rdma_devices")
"""Settings of a host that a script must not, or cannot, change."""
ELSEWHERE = {("ascend", "HOST-017"), ("cpu", "HOST-020"), ("openvino", "HOST-020")}
"""Checks whose conditions no host of that accelerator meets: Arm machines only, no devices."""
OTHER = {"NPU-002": "40000"}
"""Another wrong value, for the second bound of a setting."""


@cache
def hosts(accelerator: str) -> dict[str, Tree]:
    """Return the recorded hosts of an accelerator, well tuned."""
    names = [name for name in expect.names() if name.partition("-")[0] == accelerator]
    return {name: tuned(trees.read_recorded_tree(name)) for name in names}


def put(folder: Path, files: Mapping[str, str | None]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            shutil.rmtree(folder / path, ignore_errors=True)
            (folder / path).unlink(missing_ok=True)
        else:
            (folder / path).write_text(text)


def findings(folder: Path, profile: dict[str, Any]) -> dict[str, Finding]:
    return {finding.id: finding for finding in examine_facts(profile, expect.look(Host(str(folder)), profile))}


def checks() -> Iterator[tuple[str, str]]:
    """Yield accelerator and id of every check that a file of KNOBS decides."""
    for accelerator in ACCELERATORS:
        profile = expect.profile_of(next(iter(hosts(accelerator))))
        for check in profile["checks"]:
            if check["fact"] in KNOBS and (accelerator, check["id"]) not in ELSEWHERE:
                yield accelerator, check["id"]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what writes a well-tuned host once, and gives its folder."""
    return cache(lambda name: trees.write_tree(tmp_path_factory.mktemp(name), hosts(name.partition("-")[0])[name]))


def judged(good: Callable[[str], Path], accelerator: str, number: str) -> tuple[Finding, Finding]:
    """Return the finding on a well-tuned host of the accelerator, and on the same with the setting wrong."""
    for name, tree in hosts(accelerator).items():
        profile = expect.profile_of(name)
        fact = next(check["fact"] for check in profile["checks"] if check["id"] == number)
        right = findings(good(name), profile).get(number)
        if right:
            changes = wrong(tree, fact, OTHER.get(number, ""))
            put(good(name), changes)
            finding = findings(good(name), profile)[number]
            put(good(name), {path: tree.get(path) for path in changes})
            return right, finding
    raise AssertionError(f"{number}: no recorded host of {accelerator} meets its conditions")


@pytest.mark.parametrize(("accelerator", "number"), list(checks()))
def test_a_setting_that_is_wrong_is_found_where_it_is_read_and_has_a_fix(
    good: Callable[[str], Path], accelerator: str, number: str
) -> None:
    right, finding = judged(good, accelerator, number)
    profile = expect.profile_of(next(iter(hosts(accelerator))))
    check = next(check for check in profile["checks"] if check["id"] == number)

    assert (right.severity, finding.severity) == ("PASS", check["severity"])
    assert finding.read == profile["facts"][check["fact"]]
    assert bool(finding.fix) == (check["scope"] == "host" and check["fact"] not in BY_HAND)
    assert not right.fix


# --- the script -----------------------------------------------------------------------------------------------------


def untuned(accelerator: str) -> tuple[str, Tree]:
    """Return the accelerator's first recorded host with every setting wrong that a file of KNOBS decides."""
    name, tree = next(iter(hosts(accelerator).items()))
    for fact in KNOBS:
        if fact not in BY_HAND:
            tree = {path: text for path, text in {**tree, **wrong(tree, fact)}.items() if text is not None}
    tree = tree | {"proc/cmdline": "quiet\n", "etc/default/grub": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet splash"\n'}
    return name, tree


def run(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", text, "fix.sh", *options],
        env={"PATH": os.environ["PATH"], "ROOT": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def made(folder: Path, profile: dict[str, Any]) -> str:
    return format_fix_script(findings(folder, profile).values(), profile["variant"])


@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_the_script_mends_what_it_says_and_a_second_run_changes_nothing(tmp_path: Path, accelerator: str) -> None:
    name, tree = untuned(accelerator)
    profile = expect.profile_of(name)
    folder = trees.write_tree(tmp_path / name, tree)
    before = findings(folder, profile)
    text = made(folder, profile)

    dry = run(folder, text, "--dry-run", "--all")
    assert (dry.returncode, trees.read(folder)) == (0, tree), dry.stderr

    first = run(folder, text, "--all", "--yes")
    assert first.returncode == 0, first.stdout + first.stderr
    changed = trees.read(folder)
    assert changed != tree

    second = run(folder, text, "--all", "--yes")
    assert (second.returncode, trees.read(folder)) == (0, changed)
    assert "\n0 changed, 0 failed\n" in second.stdout

    after = findings(trees.write_tree(folder, restarted(as_shown(changed))), profile)
    scripted = [number for number, finding in before.items() if set(finding.fix) & {"sysctl", "write", "parameters"}]
    assert len(scripted) > 3
    assert {number: after[number].found for number in scripted if after[number].severity != "PASS"} == {}


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not in this environment")
@pytest.mark.parametrize("path", sorted((expect.ROOT / "entrypoints").rglob("*.sh")), ids=lambda path: path.name)
def test_shellcheck_finds_nothing_in_the_entrypoints_own_scripts(path: Path) -> None:
    result = subprocess.run([str(SHELLCHECK), str(path)], capture_output=True, text=True, check=False)

    assert result.stdout == ""


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not in this environment")
@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_shellcheck_finds_nothing_in_the_script(tmp_path: Path, accelerator: str) -> None:
    name, tree = untuned(accelerator)
    text = made(trees.write_tree(tmp_path, tree), expect.profile_of(name))
    result = subprocess.run([str(SHELLCHECK), "-"], input=text, capture_output=True, text=True, check=False)

    assert result.stdout == ""


def commands() -> list[str]:
    """Return every command of every check, and every test whether it is needed."""
    fixes = (check["fix"] for name in expect.names() for check in expect.profile_of(name)["checks"] if check["fix"])
    return sorted({command[part] for fix in fixes for command in fix["commands"] for part in ("run", "unless")})


@pytest.mark.parametrize("command", commands())
def test_each_command_is_a_line_of_posix_shell(command: str) -> None:
    assert subprocess.run(["sh", "-n", "-c", command], capture_output=True, check=False).stderr == b""
    if SHELLCHECK:
        result = subprocess.run(
            [SHELLCHECK, "--shell", "sh", "-"], input=command, capture_output=True, text=True, check=False
        )
        assert result.stdout == ""


@pytest.fixture
def cpu(tmp_path: Path) -> tuple[Path, str]:
    name, tree = untuned("cpu")
    folder = trees.write_tree(tmp_path / name, tree)
    return folder, made(folder, expect.profile_of(name))


def test_what_is_only_worth_knowing_is_left_without_all(tmp_path: Path) -> None:
    name, tree = untuned("rocm")
    folder = trees.write_tree(tmp_path / name, tree)
    ran = run(folder, made(folder, expect.profile_of(name)))

    assert "ROCM-004 is INFO: skipped; --all fixes it too" in ran.stdout
    assert (folder / "sys/devices/system/cpu/smt/control").read_text() == "on\n"


def test_the_kernels_command_line_changes_only_when_asked_to(tmp_path: Path) -> None:
    name, tree = untuned("xpu")
    folder = trees.write_tree(tmp_path / name, tree)
    (folder / "etc/default/grub.d").mkdir()
    text = made(folder, expect.profile_of(name))

    ran = run(folder, text)
    assert "by hand   add them to GRUB_CMDLINE_LINUX_DEFAULT in /etc/default/grub.d/90-drydock.cfg" in ran.stdout
    assert not (folder / "etc/default/grub.d/90-drydock.cfg").exists()

    ran = run(folder, text, "--yes")
    grub_config = (folder / "etc/default/grub.d/90-drydock.cfg").read_text()
    assert 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT iommu=pt"\n' in grub_config
    assert "restart the host" in ran.stdout
    assert (folder / "etc/default/grub").read_text() == tree["etc/default/grub"]


def test_a_value_of_ours_is_replaced_and_another_files_is_pointed_at(cpu: tuple[Path, str]) -> None:
    folder, text = cpu
    trees.write_tree(
        folder,
        {"etc/sysctl.d/90-drydock.conf": "# ours\nvm.swappiness = 30\n", "etc/sysctl.conf": "vm.swappiness=60\n"},
    )
    ran = run(folder, text)

    assert (folder / "etc/sysctl.d/90-drydock.conf").read_text().count("vm.swappiness") == 1
    assert f"look      {folder}/etc/sysctl.conf also sets vm.swappiness;" in ran.stdout


def test_what_the_kernel_does_not_take_is_a_failure(cpu: tuple[Path, str]) -> None:
    folder, text = cpu
    (folder / "proc/sys/vm/swappiness").unlink()
    (folder / "proc/sys/vm/swappiness").symlink_to("/dev/null")
    ran = run(folder, text)

    assert ran.returncode == 1
    assert "the kernel did not accept 10" in ran.stderr


def test_an_unknown_option_changes_nothing(cpu: tuple[Path, str]) -> None:
    folder, text = cpu
    before = trees.read(folder)

    assert run(folder, text, "--force").returncode == 2
    assert trees.read(folder) == before


def test_text_from_the_host_stays_a_comment() -> None:
    evil = Finding("HOST-001", "WARN", "text", "kernel.governor = x\n$(touch /tmp/x)\r'", "y", "do; it", "host", "s")
    text = format_fix_script([evil], "cpu\nrm -rf /")

    lines = [line for line in text.splitlines() if "touch" in line or "rm -rf" in line]
    assert lines
    assert all(line.startswith("# ") for line in lines)
