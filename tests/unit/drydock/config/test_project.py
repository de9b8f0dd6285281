"""The project that a command is about: named, else the nearest upwards, else drydock itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.config.project import DRYDOCK, FILE, VARIABLE, find
from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.core.project import Project


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder in a project that is in a project."""
    for name in ("", "inner"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / FILE).write_text("")
    (tmp_path / "inner" / "deep").mkdir()
    (tmp_path / "none").mkdir()
    return tmp_path


def test_the_variable_comes_before_the_nearest_file_upwards(folder: Path) -> None:
    assert find(folder / "inner" / "deep", {}) == Project(folder / "inner", (ROOT,))
    assert find(folder / "inner" / "deep", {VARIABLE: str(folder)}) == Project(folder, (ROOT,))
    assert find(folder / "none", {VARIABLE: ""}) == Project(folder, (ROOT,))


def test_without_a_file_it_is_drydock_itself(tmp_path: Path) -> None:
    assert find(tmp_path, {}) == find(ROOT / "tests", {}) == find(tmp_path, {VARIABLE: str(ROOT)}) == DRYDOCK
    assert DRYDOCK.below == ()


def test_a_named_folder_must_have_the_file_itself(folder: Path) -> None:
    for name in ("none", "absent"):
        with pytest.raises(InputError, match=rf"/{name}: found no drydock\.yaml"):
            find(folder / "inner", {VARIABLE: str(folder / name)})
