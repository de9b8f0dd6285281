"""`init` writes a project that works as it is, and whose examples do when they are uncommented."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from drydock.ci import own_wheel, workflow
from drydock.ci.own_wheel import OwnWheel
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK, read_settings
from drydock.core.errors import BuildError, InputError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.projects import new_project
from drydock.verbs.project_init_verb import ProjectInitOptions, init_project
from tests.support.called_verbs import call_verb

WHEEL = OwnWheel("drydock_images-0.1.0-py3-none-any.whl", "a" * 64, b"a wheel")
NAMES = {
    "Acme AI": "acme-ai",
    "123": "123",
    "null": "null",
    "no": "no",
    "yes": "yes",
    "y": "y",
    "true": "true",
    "~": "project",
    "2024-01-01": "2024-01-01",
    "1e3": "1e3",
    "0x10": "0x10",
    "0o17": "0o17",
    "1_000": "1-000",
    "12.10": "12-10",
    "1:30": "1-30",
    "-dash": "dash",
    " a: {b} #c ": "a-b-c",
    '"quoted"': "quoted",
    "{name}": "name",
    "Übung": "ubung",
    "模型": "project",
    "drydock": "drydock-project",
    "line\nbreak": "line-break",
    "x" * 200: "x" * 59,
}
"""Name of a folder → of the project."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    new_project.write_new_project(tmp_path / "Acme AI", "github", WHEEL)
    return tmp_path / "Acme AI"


def uncommented(path: Path) -> None:
    """Turn the examples of a file, which are indented comments with a key, into its text."""
    lines = path.read_text().splitlines()
    text = "\n".join(
        line.replace("# ", "", 1) if line.lstrip().startswith("# ") and line[:1] == " " else line for line in lines
    )
    path.write_text(text.replace(" {} # what every image gets, drydock's rows too, in place of {}:", ""))


def test_a_new_project_has_drydocks_rows_and_one_of_its_own(folder: Path) -> None:
    rows = {row.id: row for row in read_matrix(Project(folder, (ROOT,)))}
    assert {*rows} - {row.id for row in read_matrix(DRYDOCK)} == {"acme-ai-cpu"}
    assert rows["acme-ai-cpu"].inherits == new_project.choose_parent(read_matrix(DRYDOCK), "cpu").id
    assert (folder / "drydock.yaml").read_text().startswith("# yaml-language-server: $schema=.schemas/project")
    assert (folder / ".schemas" / "project.schema.json").is_file()


def test_the_examples_work(folder: Path) -> None:
    uncommented(folder / "drydock.yaml")
    uncommented(folder / "matrix.yaml")
    (folder / "files").mkdir()
    (folder / "files" / "motd").write_text("Welcome\n")
    (folder / "certificates").mkdir()
    (folder / "certificates" / "acme.crt").write_text("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
    rows = read_matrix(Project(folder, (ROOT,)))
    row = find_variant(rows, "acme-ai-cpu")
    assert [setting.value for setting in row.settings if setting.setting == "--max-num-seqs"] == [64]
    assert row.additions.user == "20000:0"
    assert row.additions.labels == {"com.example.team": "inference"}
    assert find_variant(rows, "acme-ai-cuda").accelerator == "cuda"


@pytest.mark.parametrize(("of", "name"), NAMES.items())
def test_any_folder_gives_a_project_that_can_be_read(tmp_path: Path, of: str, name: str) -> None:
    init_result = new_project.write_new_project(tmp_path / of, "github", WHEEL)

    project = Project(tmp_path / of, (ROOT,))
    settings, variants = read_settings(project), read_matrix(project)
    assert settings
    assert settings.name == name
    row = find_variant(variants, f"{name}-cpu")
    assert init_result.commands[0].endswith(f" lock --target {row.id}")
    for path in (*project.root.rglob("*.y*ml"), *project.root.glob(".*.y*ml")):
        assert isinstance(yaml.safe_load(path.read_text()), dict)
    assert yaml.safe_load((project.root / "drydock.yaml").read_text())["name"] == name
    workflow.check_workflows(project, variants)


def test_this_machine_can_build_the_row_that_is_inherited() -> None:
    variants = read_matrix(DRYDOCK)
    assert new_project.choose_parent(variants, "cpu", "x86_64").id == find_variant(variants, "cpu").id
    assert "linux/arm64" in new_project.choose_parent(variants, "cpu", "aarch64").platforms
    assert new_project.choose_parent(variants, "cpu", "riscv64").id == find_variant(variants, "cpu").id


def test_nothing_is_overwritten(folder: Path) -> None:
    for name in ("matrix.yaml", ".github/workflows/drydock.yml", WHEEL.filename):
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path != folder / name}
        for path in before:
            path.unlink()
        (folder / name).write_text("mine")
        with pytest.raises(InputError, match="exists, and is not overwritten"):
            new_project.write_new_project(folder, "github", WHEEL)
        assert [path for path in folder.rglob("*") if path.is_file()] == [folder / name]
        assert (folder / name).read_text() == "mine"
        for path, content in before.items():
            path.write_bytes(content)


def test_a_place_that_cannot_be_written_is_an_error() -> None:
    with pytest.raises(InputError, match="/dev/null/acme: "):
        new_project.write_new_project(Path("/dev/null/acme"), "none")
    with pytest.raises(InputError, match="/: is no folder for a project"):
        new_project.write_new_project(Path("/"), "none")


def test_without_its_own_wheel_it_says_so_and_writes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> OwnWheel:
        raise BuildError("uv build: exit 2: no index answers")

    monkeypatch.setattr(own_wheel, "find_own_wheel", refuse)
    init_project(ProjectInitOptions(folder=str(tmp_path / "acme")))
    stderr = capsys.readouterr().err
    assert "requirements.txt names no drydock, so CI stops at its first command: uv build: exit 2" in stderr
    assert "upgrade --write" in stderr
    assert "drydock-images ==" not in (tmp_path / "acme" / "requirements.txt").read_text()
    assert len(read_matrix(Project(tmp_path / "acme", (ROOT,)))) == len(read_matrix(DRYDOCK)) + 1


@pytest.mark.checkout
def test_the_next_steps_work_where_they_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(own_wheel, "find_own_wheel", lambda: WHEEL)
    monkeypatch.chdir(tmp_path)

    call_verb("project init", folder="acme")
    printed = capsys.readouterr().out.partition("Next:\n")[2].splitlines()
    call_verb("project init", folder="other", json=True, dry_run=True)
    listed = json.loads(capsys.readouterr().out)["next"]

    assert printed[0] == f"  {ROOT}/inv --project acme lock --target acme-cpu"
    assert listed[0] == f"{ROOT}/inv --project other lock --target other-cpu"
