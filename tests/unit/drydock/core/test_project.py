"""Files of a project in layers: what the highest one has wins, and only the highest one is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.core.errors import InputError
from drydock.core.project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project in whose folder drydock itself lies, as it does in a virtual environment."""
    project_folder, below = tmp_path / "mine", tmp_path / "mine" / ".venv" / "drydock"
    for path, text in (
        (project_folder / "a", "own"),
        (below / "a", "below"),
        (below / "b", "below"),
        (below / "folder/c", "below"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Project(project_folder, (below,))


def test_the_highest_layer_that_has_a_file_wins(project: Project) -> None:
    assert [(project / name).read_text() for name in ("a", "b", "folder/c")] == ["own", "below", "below"]
    assert [project / name for name in ("new", "folder")] == [project.root / name for name in ("new", "folder")]
    assert project.list_layer_files("a") == [project.below[0] / "a", project.root / "a"]
    assert [*project.glob("?")] == [project.root / "a", project.below[0] / "b"]


def test_a_file_is_named_by_its_own_layer(project: Project) -> None:
    own_file, below = project / "a", project / "b"
    assert [project.name_of(path) for path in (own_file, below, Path("/x"))] == ["a", "b", "/x"]
    assert [project.shown(path) for path in (own_file, below, Path("/x"))] == ["a", str(below), "/x"]
    assert [project.recorded(path) for path in (own_file, below)] == ["a", "drydock/b"]


def test_only_what_differs_is_written_and_never_below(project: Project) -> None:
    assert project.write("b", "below") is None
    assert project.write("b", "changed") == project.root / "b"
    assert project.write("b", "changed") is None
    assert (project.below[0] / "b").read_text() == "below"


def test_an_installed_drydock_is_not_written(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drydock.core.project.INSTALLED", name=True)
    monkeypatch.setattr("drydock.core.project.ROOT", project.below[0])
    alone = Project(project.below[0])

    assert alone.write("b", "below") is None
    with pytest.raises(InputError, match=r"new: cannot be written: .* is the installed drydock"):
        alone.write("new", "text")
    assert not (alone.root / "new").exists()
    assert project.write("new", "text") == tmp_path / "mine" / "new"
