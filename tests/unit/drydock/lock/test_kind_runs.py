"""When each kind of tests last passed, and when it has to run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drydock.core.errors import InputError, StaleError
from drydock.core.project import Project
from drydock.lock import kind_runs
from tests.support.git import git

REPORT = """<?xml version="1.0"?><testsuites><testsuite name="pytest" errors="0" failures="0" skipped="{skipped}"
 tests="{tests}" time="{seconds}"/></testsuites>"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "repository"
    for name in ("covered/a.py", "other/b.py"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("A = 1\n")
    (root / "tests").mkdir()
    kind = {"shows": "it works", "covers": ["covered"]}
    (root / kind_runs.FILE).write_text(json.dumps({"kinds": {"topology": kind}}))
    git(root, "init", "--quiet")
    commit_all(root, "all")
    return Project(root)


def commit_all(root: Path, subject: str) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", subject)


def record(project: Project, tests: int = 5, skipped: int = 2, kind: str = "topology") -> bool:
    report = project.root.parent / "junit.xml"
    report.write_text(REPORT.format(tests=tests, skipped=skipped, seconds=61))
    return kind_runs.record_run(project, kind, kind_runs.require_commit(project), report)


def explain(project: Project) -> str:
    return kind_runs.explain_outdated_kind(project, kind_runs.read_kinds(project)["topology"])


def test_a_run_holds_until_a_file_that_the_kind_covers_changes(project: Project) -> None:
    assert explain(project) == "it has not passed yet"
    assert record(project)
    last = kind_runs.read_kinds(project)["topology"].last
    assert last is not None
    assert (last.passed, last.skipped, last.minutes) == (3, 2, 2)
    commit_all(project.root, "record")
    assert explain(project) == ""

    (project.root / "other" / "b.py").write_text("A = 2\n")
    commit_all(project.root, "other")
    assert explain(project) == ""
    (project.root / "covered" / "a.py").write_text("A = 2\n")
    commit_all(project.root, "covered: 2")
    assert explain(project).startswith(f"it passed at {last.commit[:12]} on {last.date}, and then changed: ")
    assert explain(project).endswith(" covered: 2")


def test_files_that_differ_from_the_commit_are_not_recorded(project: Project) -> None:
    (project.root / "covered" / "a.py").write_text("A = 2\n")
    with pytest.raises(InputError, match="names the commit that was tested"):
        record(project)


def test_a_run_in_which_all_was_skipped_shows_nothing(project: Project) -> None:
    assert not record(project, tests=2, skipped=2)
    assert not record(project, kind="unit")
    assert explain(project) == "it has not passed yet"


def test_a_commit_of_another_history_counts_for_nothing(project: Project) -> None:
    record(project)
    git(project.root, "commit", "--quiet", "--amend", "--all", "--message", "another")
    git(project.root, "reflog", "expire", "--expire=now", "--all")
    git(project.root, "gc", "--quiet", "--prune=now")
    assert explain(project).endswith("which is no commit of this history")


def test_a_damaged_record_is_an_error(project: Project) -> None:
    (project.root / kind_runs.RECORD).write_text('{"runs": {"topology": {"commit": "--output=x"}}}')
    with pytest.raises(StaleError, match="invalid"):
        kind_runs.read_kinds(project)


def test_a_project_without_the_file_has_no_such_kinds(tmp_path: Path) -> None:
    assert kind_runs.read_kinds(Project(tmp_path)) == {}
