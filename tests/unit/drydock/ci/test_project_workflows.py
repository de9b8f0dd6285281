"""CI of a project of one's own: it installs drydock and builds the rows that are not drydock's as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from drydock.build import render
from drydock.ci import changed, workflow
from drydock.ci.ci_rows import CiRow
from drydock.config.matrix import find_variant, read_matrix
from drydock.core.errors import StaleError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.development import quality
from drydock.lock import lockfile, resolution
from drydock.projects import new_project
from tests.support.git import git

ROW = "acme-cpu"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A committed project with one row, which has a label more than drydock's and so needs no network."""
    root = tmp_path / "acme"
    new_project.write_new_project(root, "github")
    (root / "matrix.yaml").write_text(f"schema: 1\nvariants:\n  {ROW}: {{inherits: drydock/cpu-vllm0.32}}\n")
    project_with_row = Project(root, (ROOT,))
    row = find_variant(read_matrix(project_with_row), ROW)
    resolution.resolve_and_write(project_with_row, [row])
    render.write_dockerfile(project_with_row, row, lockfile.read_lock(lockfile.path_of_lock(project_with_row, ROW)))
    workflow.write(project_with_row, read_matrix(project_with_row))
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=x")
    return project_with_row


def check_form(root: Path, form: str) -> None:
    subprocess.run([sys.executable, "-m", *quality.schema_check(form)], cwd=root, check=True)


@pytest.mark.parametrize("form", workflow.PATHS)
def test_it_installs_drydock_and_builds_the_projects_rows(project: Project, form: str) -> None:
    workflow.write(project, read_matrix(project), form)
    text = (project.root / workflow.PATHS[form]).read_text()
    check_form(project.root, form)
    assert "./inv" not in text
    installs = [".venv/bin/pip install --quiet --require-hashes --requirement requirements.txt", workflow.EXPORTS[form]]
    for job in (yaml.safe_load(text)["jobs"] if form == "github" else yaml.safe_load(text)).values():
        if isinstance(job, dict) and "drydock " in str(job):
            assert all(command in yaml.safe_dump(job, width=1000) for command in installs)
    assert ROW in text
    assert 'drydock verify --target "$VARIANT"' in text
    assert "cpu-text-vllm0.32" not in text


def test_a_project_with_row_has_valid_workflows_that_are_up_to_date(tmp_path: Path) -> None:
    for form in workflow.PATHS:
        new_project.write_new_project(tmp_path / form, form)
        check_form(tmp_path / form, form)
        project_with_row = Project(tmp_path / form, (ROOT,))
        workflow.check_workflows(project_with_row, read_matrix(project_with_row))


@pytest.mark.parametrize("row", ["123", "no", "null", "2024-01-01", "1e3", "0x10"])
@pytest.mark.parametrize("form", workflow.PATHS)
def test_a_row_whose_id_looks_like_no_text_is_text_in_a_workflow(form: str, row: str) -> None:
    built = CiRow(variant=row, accelerator="cpu", platform="linux/amd64", arch="amd64", disk=1)
    text = yaml.safe_load(workflow.render_workflow(form, (built,), (), is_own_project=True))
    if form == "github":
        assert text[True]["workflow_dispatch"]["inputs"]["variant"]["options"][-1] == row
    else:
        assert text["build"]["parallel"]["matrix"][0]["VARIANT"] == row


def test_only_the_workflow_that_the_project_has_is_checked(project: Project) -> None:
    assert workflow.list_present_workflows(project) == ["github"]
    workflow.check_workflows(project, read_matrix(project))
    with pytest.raises(StaleError, match=r"github/workflows/drydock.yml: outdated"):
        workflow.check_workflows(project, ())


def test_what_changed_is_found_in_every_file_of_the_project(project: Project) -> None:
    def why() -> list[str]:
        return [row.why for row in changed.compare_with_commit(project, read_matrix(project), "HEAD").changed]

    assert why() == []
    settings = project.root / "drydock.yaml"
    settings.write_text(settings.read_text().replace("additions: {}", "additions: {labels: {com.acme.team: x}}"))
    row = find_variant(read_matrix(project), ROW)
    render.write_dockerfile(project, row, lockfile.read_lock(lockfile.path_of_lock(project, ROW)))
    assert ["inputs changed" in reason for reason in why()] == [True]
    (project.root / "requirements.txt").write_text("drydock==99\n")
    assert all("requirements.txt changed" in reason for reason in why())


@pytest.mark.parametrize("form", workflow.PATHS)
def test_a_request_has_its_vllm_commands_reviewed(project: Project, form: str) -> None:
    workflow.write(project, read_matrix(project), form)
    document = yaml.safe_load((project.root / workflow.PATHS[form]).read_text())
    job = (document["jobs"] if form == "github" else document)["review"]
    expected = {"github": '--format github --to "$TO"', "gitlab": '--format gitlab --to "$DRYDOCK_REVIEW_TO" >'}
    assert f"drydock review . --offline {expected[form]}" in yaml.safe_dump(job, width=1000)
    if form == "gitlab":
        assert job["artifacts"]["when"] == "always"
    assert "review" not in workflow.render_workflow(form, [], [])
