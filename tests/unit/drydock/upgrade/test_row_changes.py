"""`upgrade` says what a newer drydock changes in a project's rows, writes nothing, and then it is so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drydock.ci import own_wheel, workflow
from drydock.ci.own_wheel import OwnWheel
from drydock.cli import version
from drydock.config.matrix import find_variant, read_matrix
from drydock.core.errors import InputError, StaleError
from drydock.core.files import compute_checksum
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.lock import lockfile, resolution
from drydock.lock.image_record import PlatformRecord, VerifiedImage, write_platform_record
from drydock.model.locked import Lock, LockedWheel
from drydock.model.row_record import RowRecord
from drydock.model.variant import Variant
from drydock.pages import changelog
from drydock.projects import stale_files
from drydock.upgrade import row_changes, row_record_file
from drydock.verbs.project_upgrade_verb import ProjectUpgradeOptions, upgrade_rows

ROW, PARENT, PLATFORM = "acme-cpu", "cpu-vllm0.32", "linux/amd64"
STACK = "templates/cpu/stacks/cpu.yaml"
MATRIX = f"""
schema: 1
epoch: 1795219200
variants:
  {PARENT}: {{stack: cpu-0.32, default: true, platforms: [linux/amd64]}}
  cpu-text-vllm0.32: {{stack: cpu-text-0.32, platforms: [linux/amd64]}}
"""
OWN = f"""
schema: 1
variants:
  {ROW}: {{inherits: drydock/{PARENT}, stack: acme}}
"""
CHANGES = """# Changelog

## Unreleased

### Before you upgrade

- Not released yet.

## 0.2.0 - 2026-11-30

### Before you upgrade

- Move the keys
  to a file.

## 0.1.0 - 2026-10-01

### Before you upgrade

- An older note.
"""
Edit = Callable[[Path], None]


def wheel(name: str, of: str, letter: str = "a") -> LockedWheel:
    return LockedWheel(name=name, version=of, filename=f"{name}-{of}-py3-none-any.whl", size=1000, sha256=letter * 64)


def with_wheels(lock: Lock, *wheels: LockedWheel, without: str = "") -> Lock:
    """Return a lock with other versions of distributions, or with more of them."""
    names = {pin.name for pin in wheels} | {without}
    pins = lock.platforms[PLATFORM]
    layers = {layer: [pin for pin in of if pin.name not in names] for layer, of in pins.layers.items()}
    layers["dependencies"] = sorted([*layers["dependencies"], *wheels], key=lambda pin: pin.name)
    new = pins.model_copy(update={"layers": {layer: tuple(of) for layer, of in layers.items()}})
    return lock.model_copy(update={"platforms": {PLATFORM: new}})


def versions(lock: Lock) -> dict[str, str]:
    return {pin.name: pin.version for of in lock.platforms[PLATFORM].layers.values() for pin in of}


def lock_of(project: Project, row: str = ROW) -> Lock:
    return lockfile.read_lock(lockfile.path_of_lock(project, row))


def relocked(*wheels: LockedWheel, without: str = "") -> Edit:
    """Make a drydock whose CPU row was locked again."""

    def edit(folder: Path) -> None:
        path = lockfile.path_of_lock(Project(folder), PARENT)
        lockfile.write_lock(path, with_wheels(lockfile.read_lock(path), *wheels, without=without))

    return edit


def replaced(name: str, old: str, new: str) -> Edit:
    def edit(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return edit


VARIABLE = replaced(STACK, "\nenv:\n", '\nenv:\n  VLLM_NEW: {value: "1", because: it is faster, source: test}\n')


class Two:
    """A project, and the drydock below it: an older one, then a newer one."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self._drydock, self._patch = folder / "acme", folder / "old", patch
        self.number("0.1.0")

    @property
    def project(self) -> Project:
        return Project(self.root, (self._drydock,))

    @property
    def row(self) -> Variant:
        return find_variant(read_matrix(self.project), ROW)

    def number(self, number: str) -> None:
        self._patch.setattr(version, "read_own_version", lambda: number)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def make(self, *wheels: LockedWheel) -> None:
        """Write the row's files, as the drydock below makes them; wheels are of its own."""
        parent = lockfile.read_lock(lockfile.path_of_lock(self.project.lower, PARENT))
        row_fields = {"variant": ROW, "inputs_sha256": compute_checksum(lockfile.collect_lock_inputs(self.row))}
        lock = with_wheels(parent, *wheels).model_copy(update=row_fields)
        lockfile.write_lock(self.root / f"images/{ROW}/lock.json", lock)
        self.render()

    def render(self) -> list[Path]:
        return row_record_file.write_row_files(self.project, self.row, lock_of(self.project))

    def newer(self, *edits: Edit) -> None:
        """Put a newer drydock below."""
        folder = self._drydock.with_name("new")
        shutil.copytree(self._drydock, folder, symlinks=True)
        for edit in edits:
            edit(folder)
        self._drydock = folder
        self.number("0.2.0")

    def change(self) -> row_changes.RowChange:
        [row_change] = row_changes.compare_rows(self.project, read_matrix(self.project))
        return row_change

    def record(self) -> dict[str, Any]:
        record_data: dict[str, Any] = json.loads((self.root / f"images/{ROW}/upgrade.json").read_text())
        return record_data


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a drydock with rows for processors only."""
    folder = tmp_path_factory.mktemp("drydock")
    for name in (
        "templates/cpu",
        "templates/tools",
        "templates/host.yaml",
        "templates/base.Dockerfile.j2",
        f"images/{PARENT}",
    ):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (folder / name).parent.mkdir(exist_ok=True)
        copy(ROOT / name, folder / name)
    (folder / "matrix.yaml").write_text(MATRIX)
    (folder / "entrypoints").symlink_to(ROOT / "entrypoints")
    return folder


@pytest.fixture
def two(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Two:
    shutil.copytree(small, tmp_path / "old", symlinks=True)
    monkeypatch.setattr(changelog, "read_changelog", lambda: changelog.parse_changelog(CHANGES))

    def resolve(variant: Variant, previous: Lock, *_: object) -> Lock:
        return previous.model_copy(update={"inputs_sha256": compute_checksum(lockfile.collect_lock_inputs(variant))})

    monkeypatch.setattr(resolution, "resolve_variant", resolve)
    two_layers = Two(tmp_path, monkeypatch)
    two_layers.write("drydock.yaml", "schema: 1\nname: acme\n")
    two_layers.write("matrix.yaml", OWN)
    more = "requirements+: [structlog==25.1.0]\n"
    two_layers.write("templates/cpu/stacks/acme.yaml", f"inherits: drydock/cpu-0.32\nsummary: one package more\n{more}")
    return two_layers


@pytest.fixture
def acme(two: Two) -> Two:
    """Return a project with a row that has one package more."""
    two.make(wheel("structlog", "25.1.0"))
    return two


@pytest.fixture
def hosted(two: Two) -> Two:
    """Return that project with a recorded host."""
    two.write("hosts/xeon/host.json", (ROOT / "tests/hosts/cpu-xeon8380-2s/host.json").read_text())
    two.make(wheel("structlog", "25.1.0"))
    return two


def shown(change: row_changes.RowChange) -> list[tuple[str, str]]:
    return [(str(package_change["change"]), str(package_change["name"])) for package_change in change.packages]


# --- what is compared -----------------------------------------------------------------------------------------------


def test_a_drydock_that_changes_nothing_says_so(hosted: Two, capsys: pytest.CaptureFixture[str]) -> None:
    hosted.newer()
    upgrade_rows(hosted.project, ProjectUpgradeOptions())
    assert f"drydock 0.2.0 changes nothing in {ROW}\n" in capsys.readouterr().out


def test_pins_follow_those_of_the_inherited_row(acme: Two) -> None:
    acme.newer(relocked(wheel("tqdm", "9.0"), wheel("humanize", "4.0"), without="numba"))
    change = acme.change()
    assert shown(change) == [("added", "humanize"), ("removed", "numba"), ("changed", "tqdm")]
    assert "→ 9.0" in change.lock
    assert change.about_lock == ("--write resolves it again, which may change more",)


def test_a_version_of_the_rows_own_stays(two: Two) -> None:
    two.make(wheel("structlog", "25.1.0"), wheel("tqdm", "1.0"))
    two.newer(relocked(wheel("tqdm", "9.0")))
    assert two.change().is_empty


def test_another_base_follows_too(acme: Two) -> None:
    def edit(folder: Path) -> None:
        path = lockfile.path_of_lock(Project(folder), PARENT)
        lock = lockfile.read_lock(path)
        pins = lock.platforms[PLATFORM]
        base = pins.base.model_copy(update={"digest": f"sha256:{'b' * 64}"})
        lockfile.write_lock(
            path, lock.model_copy(update={"platforms": {PLATFORM: pins.model_copy(update={"base": base})}})
        )

    acme.newer(edit)
    assert acme.change().pins[f"platforms.{PLATFORM}.base.digest"][1] == f"sha256:{'b' * 64}"


def test_what_only_resolving_can_tell_is_said(acme: Two) -> None:
    acme.newer(replaced("templates/cpu/stacks/cpu-0.32.yaml", "nixl==1.5.1]", "nixl==1.5.1, humanize==4.0.0]"))
    assert "missing requirement humanize==4.0.0" in acme.change().about_lock[1]


def test_a_variable_is_shown_in_the_profile_and_in_the_plan_of_a_host(hosted: Two) -> None:
    hosted.newer(VARIABLE)
    change = hosted.change()
    assert row_changes.ValueChange("settings.VLLM_NEW.value", None, "1") in change.profile
    assert change.plans == {"xeon": (row_changes.ValueChange("env VLLM_NEW", None, "1"),)}


def test_texts_for_people_are_no_change(acme: Two) -> None:
    acme.newer(replaced(STACK, "because: >-\n", "because: >-\n      Said in other words:\n"))
    assert acme.change().is_empty


def test_texts_that_an_older_record_has_are_no_change(acme: Two) -> None:
    record = acme.record()
    record["profile"]["translations.zh.a text. of 0.1.0"] = "文本"
    acme.write(f"images/{ROW}/upgrade.json", json.dumps(record))
    (change,) = row_changes.compare_rows(acme.project, read_matrix(acme.project))
    assert change.profile == ()


def test_a_flag_that_is_gone_is_shown(hosted: Two) -> None:
    hosted.newer(replaced(STACK, "value: true", "value: false"))
    assert row_changes.ValueChange("--enforce-eager", "", None) in hosted.change().plans["xeon"]


def test_a_plan_that_ends_with_an_error_is_shown(hosted: Two) -> None:
    hosted.newer()
    hosted.write("hosts/xeon/serve", "meta-llama/Meta-Llama-3.1-405B")
    [plan] = hosted.change().plans["xeon"]
    assert (plan.name, plan.old) == ("plan", "a command")
    assert plan.new.startswith("meta-llama/Meta-Llama-3.1-405B: needs 380.7 GiB per rank")


def test_a_processor_that_is_refused_now_is_shown(hosted: Two) -> None:
    hosted.newer(replaced("templates/cpu/accelerator.yaml", "avx2", "avx2048"))
    (plan,) = hosted.change().plans["xeon"]
    assert (plan.name, plan.old) == ("plan", "a command")
    assert str(plan.new).startswith("CPU-001: ")


def test_the_difference_of_the_dockerfile_is_shown(acme: Two) -> None:
    acme.newer(replaced("templates/base.Dockerfile.j2", "ENTRYPOINT", "STOPSIGNAL SIGINT\nENTRYPOINT"))
    assert "+STOPSIGNAL SIGINT" in acme.change().dockerfile


def test_a_new_host_is_a_change(acme: Two) -> None:
    acme.write("hosts/xeon/host.json", (ROOT / "tests/hosts/cpu-xeon8380-2s/host.json").read_text())
    assert acme.change().plans == {"xeon": (row_changes.ValueChange("plan", None, "a command"),)}


def test_drydocks_own_lock_of_a_changed_row_may_be_another_one(two: Two) -> None:
    two.write("matrix.yaml", OWN.replace(f"{ROW}:", f"{PARENT}:").replace(", stack: acme", ", aliases: [ours]"))
    row = find_variant(read_matrix(two.project), PARENT)
    assert two.project.root / f"images/{PARENT}/upgrade.json" in row_record_file.write_row_files(
        two.project, row, lock_of(two.project, PARENT)
    )
    two.newer(relocked(wheel("tqdm", "9.0")))
    assert two.change().about_lock == ("the lock is drydock's own, which pins otherwise now: tqdm",)


def test_a_row_that_nothing_recorded_is_a_change(acme: Two, capsys: pytest.CaptureFixture[str]) -> None:
    (acme.root / f"images/{ROW}/upgrade.json").unlink()
    with pytest.raises(StaleError, match=ROW):
        upgrade_rows(acme.project, ProjectUpgradeOptions())
    assert f"{ROW} (without upgrade.json: plans not compared)\n" in capsys.readouterr().out


# --- what is said ---------------------------------------------------------------------------------------------------


def test_notes_of_newer_releases_come_first(acme: Two, capsys: pytest.CaptureFixture[str]) -> None:
    acme.newer(VARIABLE)
    with pytest.raises(StaleError):
        upgrade_rows(acme.project, ProjectUpgradeOptions())
    assert capsys.readouterr().out.startswith(
        f"Before you upgrade to drydock 0.2.0:\n- Move the keys to a file.\n\n{ROW} (made by drydock 0.1.0)\n"
    )


def test_notes_are_printed_if_the_rows_cannot_be_read(acme: Two, capsys: pytest.CaptureFixture[str]) -> None:
    acme.newer(replaced("matrix.yaml", f"  {PARENT}:", "  cpu-new:"))
    (acme.project.lower.root / "matrix.yaml").open("a").write(f"retired: {{{PARENT}: cpu-new}}\n")
    with pytest.raises(InputError, match=f"drydock retired the row 'drydock/{PARENT}'") as raised:
        upgrade_rows(acme.project, ProjectUpgradeOptions())
    assert raised.value.hint == "write `inherits: drydock/cpu-new`, which replaces it"
    assert "Move the keys" in capsys.readouterr().out


def test_files_of_a_row_that_is_gone_are_named_with_what_replaces_it(
    acme: Two, capsys: pytest.CaptureFixture[str]
) -> None:
    acme.write("images/cpu-old/Dockerfile", "")
    acme.newer()
    (acme.project.lower.root / "matrix.yaml").open("a").write(f"retired: {{cpu-old: {PARENT}}}\n")
    upgrade_rows(acme.project, ProjectUpgradeOptions())
    assert f"images/cpu-old: drydock retired it: use {PARENT}, and remove this folder" in capsys.readouterr().out


def test_a_row_with_a_last_day_is_named_with_what_replaces_it(acme: Two, capsys: pytest.CaptureFixture[str]) -> None:
    until = f"{PARENT}: {{support: {{until: '2027-06-30', instead: cpu-text-vllm0.32}}, "
    acme.newer(replaced("matrix.yaml", f"{PARENT}: {{", until))
    with pytest.raises(StaleError):
        upgrade_rows(acme.project, ProjectUpgradeOptions())
    assert f"{ROW}: rebuilt until 2027-06-30, then cpu-text-vllm0.32\n" in capsys.readouterr().out


def test_it_is_json_too(hosted: Two, capsys: pytest.CaptureFixture[str]) -> None:
    hosted.newer(VARIABLE, relocked(wheel("tqdm", "9.0")))
    with pytest.raises(StaleError):
        upgrade_rows(hosted.project, ProjectUpgradeOptions(json=True))
    upgrade_report = json.loads(capsys.readouterr().out)
    assert upgrade_report["notes"] == [{"entries": ["Move the keys to a file."], "version": "0.2.0"}]
    assert [package["name"] for package in upgrade_report["rows"][0]["packages"]] == ["tqdm"]
    assert upgrade_report["rows"][0]["plans"] == {"xeon": [{"name": "env VLLM_NEW", "new": "1", "old": None}]}


def test_values_of_a_file_begin_no_line(hosted: Two, capsys: pytest.CaptureFixture[str]) -> None:
    record = hosted.record()
    record["profile"]["evil\nerror: all is lost"] = "\x1b[31m"
    hosted.write(f"images/{ROW}/upgrade.json", json.dumps(record))
    with pytest.raises(StaleError):
        upgrade_rows(hosted.project, ProjectUpgradeOptions())
    stdout = capsys.readouterr().out
    assert "\nerror: all" not in stdout
    assert "\x1b" not in stdout


# --- writing --------------------------------------------------------------------------------------------------------


def test_nothing_is_written(hosted: Two) -> None:
    before = {path: path.read_bytes() for path in hosted.root.rglob("*") if path.is_file()}
    hosted.newer(VARIABLE, relocked(wheel("tqdm", "9.0")))
    with pytest.raises(StaleError):
        upgrade_rows(hosted.project, ProjectUpgradeOptions())
    assert before == {path: path.read_bytes() for path in hosted.root.rglob("*") if path.is_file()}


def test_after_writing_it_is_so(hosted: Two, capsys: pytest.CaptureFixture[str]) -> None:
    hosted.newer(VARIABLE, relocked(wheel("tqdm", "9.0"), without="numba"))
    files = (".github/workflows/drydock.yml", ".schemas/matrix.schema.json")
    for name in files:
        hosted.write(name, "an older drydock wrote it\n")
    with pytest.raises(StaleError, match=files[0]):
        upgrade_rows(hosted.project, ProjectUpgradeOptions())
    upgrade_rows(hosted.project, ProjectUpgradeOptions(write=True))
    pins = versions(lock_of(hosted.project))
    assert (pins["tqdm"], pins["structlog"], "numba" in pins) == ("9.0", "25.1.0", False)
    assert hosted.record()["plans"]["xeon"]["env"]["VLLM_NEW"] == "1"
    workflow.check_workflows(hosted.project, read_matrix(hosted.project))
    assert not (hosted.root / ".gitlab-ci.yml").exists()
    assert "an older drydock" not in (hosted.root / files[1]).read_text()
    capsys.readouterr()
    upgrade_rows(hosted.project, ProjectUpgradeOptions())
    assert capsys.readouterr().out == f"drydock 0.2.0 changes nothing in {ROW}\n"


def test_a_lock_that_does_not_change_is_not_resolved(acme: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    acme.newer(VARIABLE)
    monkeypatch.setattr(resolution, "resolve_variant", None)
    upgrade_rows(acme.project, ProjectUpgradeOptions(write=True))
    assert acme.change().is_empty


def test_what_resolving_changes_beyond_that_is_said(
    acme: Two, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def resolve(variant: Variant, previous: Lock, *_: object) -> Lock:
        inputs = {"inputs_sha256": compute_checksum(lockfile.collect_lock_inputs(variant))}
        return with_wheels(previous, wheel("rich", "99.0")).model_copy(update=inputs)

    acme.newer(relocked(wheel("tqdm", "9.0")))
    monkeypatch.setattr(resolution, "resolve_variant", resolve)
    upgrade_rows(acme.project, ProjectUpgradeOptions(write=True))
    extra_changes = capsys.readouterr().err.partition("resolving changed more than was shown:\n")[2].splitlines()
    assert extra_changes[0].startswith("~ rich ")
    assert acme.change().is_empty


def test_render_leaves_to_upgrade_what_follows_drydock(acme: Two, capsys: pytest.CaptureFixture[str]) -> None:
    acme.newer(VARIABLE, relocked(wheel("tqdm", "9.0")))
    acme.render()
    assert shown(acme.change()) == [("changed", "tqdm")]
    with pytest.raises(StaleError):
        upgrade_rows(acme.project, ProjectUpgradeOptions())
    assert "Move the keys" in capsys.readouterr().out


def test_a_row_that_inherits_another_one_now_starts_anew(acme: Two) -> None:
    acme.write("matrix.yaml", OWN.replace(PARENT, "cpu-text-vllm0.32"))
    assert acme.change().about_lock == (f"the row follows cpu-text-vllm0.32 now, and {PARENT} before",)


# --- whose project it is --------------------------------------------------------------------------------------------


def test_a_project_of_a_newer_drydock_is_refused(acme: Two) -> None:
    acme.number("0.0.9")
    with pytest.raises(InputError, match=r"the row is of drydock 0\.1\.0, and this is drydock 0\.0\.9"):
        upgrade_rows(acme.project, ProjectUpgradeOptions())


def test_drydock_itself_has_nothing_to_upgrade() -> None:
    with pytest.raises(InputError, match="is drydock itself"):
        upgrade_rows(Project(ROOT), ProjectUpgradeOptions())


# --- the record -----------------------------------------------------------------------------------------------------


def test_a_record_is_of_a_version_before_its_format_is_checked(acme: Two) -> None:
    acme.write(f"images/{ROW}/upgrade.json", '{"drydock": {"version": "9.0.0"}, "new": 1}')
    with pytest.raises(InputError, match=r"is of drydock 9\.0\.0"):
        row_record_file.read_row_record(acme.project, ROW)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a JSON object, found nothing"),
        ("[]", "expected a JSON object, found list"),
        ('{"drydock": {"version": 3}}', "found 3, expected a version"),
        ('{"drydock": {"version": "0.1.0"}}', "missing key 'profile'"),
        ("[" * 100_000, "invalid JSON: nested deeper"),
        (" " * (5 << 20), "larger than 4 MiB"),
    ],
)
def test_a_record_that_is_none_is_refused(two: Two, text: str, message: str) -> None:
    two.write(f"images/{ROW}/upgrade.json", text)
    with pytest.raises(InputError, match=message) as raised:
        row_record_file.read_row_record(two.project, ROW)
    assert raised.value.hint.startswith(f"restore it with `git checkout images/{ROW}/upgrade.json`")


def test_a_record_that_is_outdated_is_stale(acme: Two) -> None:
    row_record_file.check_row_files(acme.project, acme.row, lock_of(acme.project))
    acme.newer(VARIABLE)
    with pytest.raises(StaleError, match=r"upgrade\.json: outdated"):
        row_record_file.check_row_files(acme.project, acme.row, lock_of(acme.project))


def test_a_record_changes_no_row(acme: Two) -> None:
    image = VerifiedImage(digest=f"sha256:{'a' * 64}", inputs_sha256="0" * 64, buildkit="1", buildx="1")
    write_platform_record(acme.project, ROW, PLATFORM, PlatformRecord(verified=image))
    row_record_file.check_row_files(acme.project, acme.row, lock_of(acme.project))
    assert acme.change().is_empty


def test_what_an_earlier_drydock_recorded_is_moved(acme: Two, capsys: pytest.CaptureFixture[str]) -> None:
    folder = acme.root / f"images/{ROW}"
    evidence = {"commit": "", "date": "2026-11-21", "digest": "", "inputs_sha256": "0" * 64, "tests": ["a test"]}
    (folder / "proof.json").write_text(json.dumps({"image": {"packages": evidence}}))
    with pytest.raises(StaleError, match=f"this drydock changes {ROW}"):
        upgrade_rows(acme.project, ProjectUpgradeOptions())
    assert "--write moves its digest of the image, and what proof.json has, to record.json" in capsys.readouterr().out
    upgrade_rows(acme.project, ProjectUpgradeOptions(write=True))
    assert sorted(path.name for path in folder.iterdir()) == ["Dockerfile", "lock.json", "record.json", "upgrade.json"]
    assert acme.change().is_empty


def test_a_lock_with_another_pin_makes_the_record_stale_and_that_is_said(
    acme: Two, capsys: pytest.CaptureFixture[str]
) -> None:
    path = acme.root / f"images/{ROW}/lock.json"
    lockfile.write_lock(path, with_wheels(lock_of(acme.project), wheel("tqdm", "9.0")))
    stale_files.report_stale_files(acme.project)
    assert f"stale now: images/{ROW}/upgrade.json: run `./inv render`" in capsys.readouterr().err


def test_a_stranger_in_requirements_is_said_and_replaced(
    acme: Two, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        own_wheel, "find_own_wheel", lambda: OwnWheel("drydock_images-0.1.0-py3-none-any.whl", "", b"x")
    )
    acme.write("requirements.txt", "drydock==0.1.0\n")
    with pytest.raises(StaleError, match=r"changes requirements\.txt"):
        upgrade_rows(acme.project, ProjectUpgradeOptions())
    assert "another project, which CI would install" in capsys.readouterr().out
    with pytest.raises(StaleError):
        upgrade_rows(acme.project, ProjectUpgradeOptions(json=True))
    assert json.loads(capsys.readouterr().out)["requirements"]
    upgrade_rows(acme.project, ProjectUpgradeOptions(write=True))
    assert "wrote requirements.txt" in capsys.readouterr().err
    assert "\ndrydock==" not in (acme.root / "requirements.txt").read_text()


def test_additions_that_give_drydocks_rows_files_are_said_with_how_to_limit_them(
    acme: Two, capsys: pytest.CaptureFixture[str]
) -> None:
    def render() -> str:
        variants = read_matrix(acme.project)
        locked = [row for row in variants if lockfile.path_of_lock(acme.project, row.id).is_file()]
        row_record_file.write_rows(acme.project, [(row, lock_of(acme.project, row.id)) for row in locked])
        return capsys.readouterr().err

    assert render() == ""
    settings = "schema: 1\nname: acme\nadditions: {labels: {com.acme.team: x}}\n"
    acme.write("drydock.yaml", settings)
    render_output = render()
    assert "1 row of drydock has files in images/ now" in render_output
    assert "`rows: []` none" in render_output
    assert render() == ""

    shutil.rmtree(acme.root / "images" / PARENT)
    acme.write("drydock.yaml", f"{settings}rows: []\n")
    acme.render()
    assert render() == ""
    assert not (acme.root / "images" / PARENT).exists()


def test_rows_that_are_drydocks_own_have_no_record(two: Two) -> None:
    variants = read_matrix(two.project)
    assert row_record_file.own_rows(two.project, variants) == [find_variant(variants, ROW)]
    assert row_record_file.own_rows(two.project.lower, read_matrix(two.project.lower)) == []


def test_a_host_of_another_architecture_has_no_plan(two: Two) -> None:
    two.write("hosts/arm/host.json", (ROOT / "tests/hosts/cpu-kunpeng920-4s/host.json").read_text())
    assert row_record_file.plan_on_hosts(two.project, two.row) == {}


def test_a_host_without_the_rows_devices_has_no_plan(two: Two) -> None:
    two.write("hosts/xeon/host.json", (ROOT / "tests/hosts/cpu-xeon8380-2s/host.json").read_text())
    row = find_variant(read_matrix(Project(ROOT)), "cuda")
    assert row_record_file.plan_on_hosts(Project(two.root, (ROOT,)), row) == {}


def test_a_plan_does_not_depend_on_the_machine_that_makes_it(hosted: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    before = row_record_file.plan_on_hosts(hosted.project, hosted.row)
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.chdir("/")
    assert row_record_file.plan_on_hosts(hosted.project, hosted.row) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found nothing, expected a model"),
        ('"open', "No closing quotation"),
        ("Qwen/Qwen3-8B --html=page.html", "found --html=page.html"),
        ("Qwen/Qwen3-8B --tensor-parallel-size nine", "invalid value 'nine'"),
        ("x" * 70_000, "larger than"),
    ],
)
def test_what_serve_does_not_take_is_refused(hosted: Two, text: str, message: str) -> None:
    hosted.write("hosts/xeon/serve", text)
    with pytest.raises(InputError, match=message):
        row_record_file.plan_on_hosts(hosted.project, hosted.row)


def test_a_file_that_is_no_host_is_refused(hosted: Two) -> None:
    hosted.write("hosts/xeon/host.json", "{}")
    with pytest.raises(InputError, match=r"hosts/xeon/host\.json: not a recorded host"):
        row_record_file.plan_on_hosts(hosted.project, hosted.row)


def test_a_record_reads_as_it_was_written(hosted: Two) -> None:
    new_record = row_record_file.make_row_record(hosted.project, hosted.row, lock_of(hosted.project))
    assert isinstance(new_record, RowRecord)
    assert row_record_file.read_row_record(hosted.project, ROW) == new_record
