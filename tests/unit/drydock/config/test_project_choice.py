"""The project that a command is about: named, else the nearest upwards, else drydock itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drydock.attest import licences
from drydock.config.added_files import OWN_FILES, read_added_files
from drydock.config.project_choice import DRYDOCK, PROJECT_FILE, find_project, read_settings
from drydock.config.rows import read_rows
from drydock.core.errors import InputError
from drydock.core.paths import PROJECT_VARIABLE, ROOT
from drydock.core.project import Project
from drydock.inputs import others
from drydock.model.additions import Additions
from tests.support.projects import ACME, VENDOR, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder in a project that is in a project."""
    for name in ("", "inner"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / PROJECT_FILE).write_text("")
    (tmp_path / "inner" / "deep").mkdir()
    (tmp_path / "none").mkdir()
    return tmp_path


def test_the_variable_comes_before_the_nearest_file_upwards(folder: Path) -> None:
    assert find_project(folder / "inner" / "deep", {}) == Project(folder / "inner", (ROOT,))
    assert find_project(folder / "inner" / "deep", {PROJECT_VARIABLE: str(folder)}) == Project(folder, (ROOT,))
    assert find_project(folder / "none", {PROJECT_VARIABLE: ""}) == Project(folder, (ROOT,))


def refused(folder: Path) -> str:
    """Return why the project that is found from a folder is refused."""
    with pytest.raises(InputError) as caught:
        find_project(folder, {})
    return str(caught.value)


def test_a_found_project_that_others_can_write_to_is_refused_and_a_named_one_is_not(folder: Path) -> None:
    (folder / "inner").chmod(0o1777)
    text = refused(folder / "inner" / "deep")
    assert text.startswith(f"{folder}/inner: every user can write to it\n")
    assert f"./inv --project {folder}/inner TASK" in text
    named_project = find_project(folder / "inner" / "deep", {PROJECT_VARIABLE: str(folder / "inner")})
    assert named_project == Project(folder / "inner", (ROOT,))
    named_project.check_writers([PROJECT_FILE], [folder / "inner"])


@pytest.mark.parametrize("name", ["inner", "inner/deep", "inner/deep/deeper"])
def test_the_folders_between_the_project_and_the_current_one_count(folder: Path, name: str) -> None:
    (folder / "inner" / "deep" / "deeper").mkdir()
    (folder / name).chmod(0o777)
    assert f"{folder / name}: every user can write to it" in refused(folder / "inner" / "deep" / "deeper")
    assert find_project(folder, {}).root == folder


@pytest.mark.parametrize(
    "name",
    [PROJECT_FILE, "matrix.yaml", "templates/cpu/stacks/a.yaml", "entrypoints/x.py", "images/a/lock.json", "policy/a"],
)
def test_each_file_that_drydock_reads_counts(tmp_path: Path, name: str) -> None:
    for path in (tmp_path / PROJECT_FILE, tmp_path / name):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert find_project(tmp_path, {}).is_discovered
    (tmp_path / name).chmod(0o666)
    assert f"{tmp_path / name}: every user can write to it" in refused(tmp_path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to other users")
def test_a_found_project_of_another_user_is_refused_unless_that_user_called_sudo(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (folder / "inner", folder / "inner" / PROJECT_FILE, folder / "inner" / "deep"):
        os.chown(path, 1000, 1000)
    assert f"{folder}/inner: uid 1000 owns it" in refused(folder / "inner")
    monkeypatch.setenv("SUDO_UID", "1000")
    assert find_project(folder / "inner", {}).root == folder / "inner"


def test_an_addition_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / PROJECT_FILE).touch()
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "motd").touch()
    added = Additions(files={"/etc/motd": "files/motd"})
    for path in (tmp_path / "files", tmp_path / "files" / "motd"):
        mode = path.stat().st_mode
        path.chmod(mode | 0o002)
        with pytest.raises(InputError, match=f"{path}: every user can write to it"):
            read_added_files(find_project(tmp_path, {}), added)
        path.chmod(mode)
    path.chmod(0o666)
    assert read_added_files(find_project(tmp_path, {PROJECT_VARIABLE: str(tmp_path)}), added) == {
        f"{OWN_FILES}/files/motd": b""
    }


def test_a_projects_mirrors_that_others_can_write_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / PROJECT_FILE).write_text("schema: 1\nname: acme\nmirrors: mirrors.yaml\n")
    (tmp_path / "mirrors.yaml").touch()
    (tmp_path / "mirrors.yaml").chmod(0o666)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", {})
    with pytest.raises(InputError, match=r"mirrors\.yaml: every user can write to it"):
        others.read_current_project.__wrapped__()


def test_the_layers_of_others_leave_it_a_found_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "vendor", VENDOR)
    write(tmp_path / "acme", ACME, "../vendor")
    monkeypatch.chdir(tmp_path / "acme")
    monkeypatch.setattr(os, "environ", {})
    assert others.read_current_project.__wrapped__().is_discovered


def test_without_a_file_it_is_drydock_itself(tmp_path: Path) -> None:
    assert (
        find_project(tmp_path, {})
        == find_project(ROOT / "tests", {})
        == find_project(tmp_path, {PROJECT_VARIABLE: str(ROOT)})
        == DRYDOCK
    )
    assert DRYDOCK.below == ()


@pytest.mark.parametrize("name", [PROJECT_FILE, "matrix.yaml"])
@pytest.mark.parametrize("kind", ["a folder", "a link to nothing", "a pipe or a device"])
def test_what_is_no_file_is_named_and_not_left_out(tmp_path: Path, name: str, kind: str) -> None:
    place = write(tmp_path, {PROJECT_FILE: "schema: 1\nname: acme\n"}) / name
    place.unlink(missing_ok=True)
    if kind == "a folder":
        place.mkdir()
    elif kind == "a link to nothing":
        place.symlink_to("absent")
    else:
        os.mkfifo(place)
    with pytest.raises(InputError) as raised:
        read_rows(find_project(tmp_path, {PROJECT_VARIABLE: str(tmp_path)}))
    assert str(raised.value) == f"{place}: found {kind}, expected a file\n\nhint: remove or rename it"


def test_the_form_of_an_empty_project_file_has_the_keys_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / PROJECT_FILE).write_text("# nothing yet\n")
    with pytest.raises(InputError) as raised:
        read_settings(Project(tmp_path))
    assert raised.value.hint == "write `{schema: …, name: …}`"


def test_a_named_folder_must_have_the_file_itself(folder: Path) -> None:
    for name in ("none", "absent"):
        with pytest.raises(InputError, match=rf"/{name}: found no drydock\.yaml"):
            find_project(folder / "inner", {PROJECT_VARIABLE: str(folder / name)})


def test_defaults_are_variables_unless_the_environment_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "schema: 1\nname: acme\nmirrors: mirrors.yaml\ndefaults: {store: .cache, model_cache: models}\n"
    (tmp_path / PROJECT_FILE).write_text(text)
    monkeypatch.setattr(os, "environ", {PROJECT_VARIABLE: str(tmp_path), "HF_HUB_CACHE": "/mine"})
    others.read_current_project.__wrapped__()
    expected = {"DRYDOCK_CACHE": f"{tmp_path}/.cache", "DRYDOCK_MIRRORS": f"{tmp_path}/mirrors.yaml"}
    assert os.environ == {PROJECT_VARIABLE: str(tmp_path), "HF_HUB_CACHE": "/mine"} | expected


def test_a_policy_is_drydocks_with_what_the_project_changes(tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "licences.yaml").write_text("allow+: [LicenseRef-Acme]\nunknown: refuse\n")
    own_policy, below = (licences.read_policy(project) for project in (Project(tmp_path, (ROOT,)), DRYDOCK))
    assert own_policy == below.model_copy(update={"allow": (*below.allow, "LicenseRef-Acme"), "unknown": "refuse"})
