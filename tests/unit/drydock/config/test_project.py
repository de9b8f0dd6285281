"""The project that a command is about: named, else the nearest upwards, else drydock itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drydock.attest import licences
from drydock.config.project import DRYDOCK, FILE, VARIABLE, find
from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.inputs import others


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


def test_defaults_are_variables_unless_the_environment_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "schema: 1\nname: acme\nmirrors: mirrors.yaml\ndefaults: {store: .cache, model_cache: models}\n"
    (tmp_path / FILE).write_text(text)
    monkeypatch.setattr(os, "environ", {VARIABLE: str(tmp_path), "HF_HUB_CACHE": "/mine"})
    others.current.__wrapped__()
    expected = {"DRYDOCK_CACHE": f"{tmp_path}/.cache", "DRYDOCK_MIRRORS": f"{tmp_path}/mirrors.yaml"}
    assert os.environ == {VARIABLE: str(tmp_path), "HF_HUB_CACHE": "/mine"} | expected


def test_a_policy_is_drydocks_with_what_the_project_changes(tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "licences.yaml").write_text("allow+: [LicenseRef-Acme]\nunknown: refuse\n")
    own, below = (licences.read_policy(each) for each in (Project(tmp_path, (ROOT,)), DRYDOCK))
    assert own == below.model_copy(update={"allow": (*below.allow, "LicenseRef-Acme"), "unknown": "refuse"})
