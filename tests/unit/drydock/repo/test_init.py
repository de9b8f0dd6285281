"""`init` writes a project that works as it is, and whose examples do when they are uncommented."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.config.matrix import find, read_matrix
from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.repo import init


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    init.write(tmp_path / "Acme AI", "github")
    return tmp_path / "Acme AI"


def uncommented(path: Path) -> None:
    """Turn the examples of a file, which are indented comments with a key, into its text."""
    lines = path.read_text().splitlines()
    text = "\n".join(line.replace("# ", "", 1) if line.startswith("  # ") else line for line in lines)
    path.write_text(
        text.replace(" {} # in place of {}:", "").replace(" {} # what every image gets, in place of {}:", "")
    )


def test_a_new_project_has_drydocks_rows(folder: Path) -> None:
    assert len(read_matrix(Project(folder, (ROOT,)))) == len(read_matrix(Project(ROOT)))
    assert (folder / "drydock.yaml").read_text().startswith("# yaml-language-server: $schema=.schemas/project")
    assert (folder / ".schemas" / "project.schema.json").is_file()


def test_the_examples_work(folder: Path) -> None:
    uncommented(folder / "drydock.yaml")
    uncommented(folder / "matrix.yaml")
    row = find(read_matrix(Project(folder, (ROOT,))), "acme-ai")
    assert row.stack == "acme-ai-cuda"
    assert "structlog==25.1.0" in row.requirements
    assert row.additions.user == "20000:0"
    assert row.additions.labels == {"com.example.team": "inference"}


def test_nothing_is_overwritten(folder: Path) -> None:
    (folder / "matrix.yaml").write_text("mine")
    with pytest.raises(InputError, match="exists, and is not overwritten"):
        init.write(folder, "none")
    assert (folder / "matrix.yaml").read_text() == "mine"


def test_a_place_that_cannot_be_written_and_an_unknown_server_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="/dev/null/acme: "):
        init.write(Path("/dev/null/acme"), "none")
    with pytest.raises(InputError, match="--ci gitlub: unknown"):
        init.write(tmp_path / "acme", "gitlub")
    assert not (tmp_path / "acme").exists()
