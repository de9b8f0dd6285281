"""When each kind of tests that runs only if named last passed: such a kind rots unseen. IO.

tests/kinds.json says what each kind is about. `./inv test --kind KIND --record` writes its run into tests/record.json,
which `release` alone commits: a release needs each kind to have passed after the last change to what it is about.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar
from xml.etree import ElementTree as ET

from pydantic import Field

from drydock.core.commit import GitFailedError, read_commit, run_git
from drydock.core.errors import InputError, StaleError
from drydock.core.files import format_json, parse_any_json, write_atomically
from drydock.core.project import Project
from drydock.lock.image_record import RECORDS
from drydock.model.record import Count, Record, dump_record

FILE = "tests/kinds.json"
RECORD = "tests/record.json"


File = TypeVar("File", bound=Record)


class KindRun(Record):
    """A run of all tests of a kind, of which none failed."""

    commit: Annotated[str, Field(pattern="^[0-9a-f]{40}$")]
    """Of the files that were tested; a release commits the record."""
    date: str
    """Day of the run, UTC: 2026-11-27."""
    passed: Count
    skipped: Count
    minutes: Count
    """Wall-clock time, rounded up."""


class KindOfTests(Record):
    """A kind of tests that runs only if it is named."""

    shows: str
    covers: tuple[str, ...]
    """Pathspecs of git, from the root of the repository: files that the kind is about."""
    last: KindRun | None = None
    """From the record."""


class KindsOfTests(Record):
    """tests/kinds.json: the kinds by name."""

    kinds: Mapping[str, KindOfTests]


class KindRuns(Record):
    """tests/record.json: the last run of each kind that has passed."""

    runs: Mapping[str, KindRun] = {}


def read_kinds(project: Project) -> Mapping[str, KindOfTests]:
    """Return the kinds of tests, each with its last run; none in a project without any. Raises StaleError."""
    if not (project / FILE).is_file():
        return {}
    kinds, runs = _read_file(project / FILE, KindsOfTests).kinds, _read_runs(project)
    return {name: kind.model_copy(update={"last": runs.get(name)}) for name, kind in kinds.items()}


def _read_runs(project: Project) -> Mapping[str, KindRun]:
    return _read_file(project / RECORD, KindRuns).runs if (project / RECORD).is_file() else {}


def _read_file(path: Path, kind: type[File]) -> File:
    try:
        return kind.model_validate(parse_any_json(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise StaleError(f"{path}: invalid: {error}", hint=f"git checkout {path}") from error


def require_commit(project: Project) -> str:
    """Return the commit of the files that are about to be tested. Raises InputError if they differ from it."""
    commit = read_commit(project.root, ignored=RECORDS)
    if not commit or commit.endswith("+"):
        raise InputError(
            "--record: the record names the commit that was tested, and the files differ from it",
            hint="commit, or git stash",
        )
    return commit


def record_run(project: Project, kind: str, commit: str, report: Path) -> bool:
    """Record a run of which none failed, from pytest's JUnit report; return whether a record was written.

    A kind that is not in the file has none, and neither has a run without a test that passed.
    """
    if kind not in read_kinds(project):
        return False
    suites = list(ET.parse(report).getroot().iter("testsuite"))  # noqa: S314 - pytest of this checkout wrote it
    counts = {name: sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "skipped")}
    passed = counts["tests"] - counts["skipped"]
    if not passed:
        return False
    seconds = sum(float(suite.get("time", 0)) for suite in suites)
    last = KindRun(
        commit=commit,
        date=dt.datetime.now(dt.UTC).date().isoformat(),
        passed=passed,
        skipped=counts["skipped"],
        minutes=math.ceil(seconds / 60),
    )
    runs = KindRuns(runs={**_read_runs(project), kind: last})
    write_atomically(project.root / RECORD, format_json(dump_record(runs)))
    return True


def explain_outdated_kind(project: Project, kind: KindOfTests) -> str:
    """Return why a kind has to run again; empty if it passed after the last change to what it covers."""
    if kind.last is None:
        return "it has not passed yet"
    passed = f"it passed at {kind.last.commit[:12]} on {kind.last.date}"
    try:
        later = run_git(
            project.root, "log", "-1", "--format=%h %s", f"{kind.last.commit}..HEAD", "--", *kind.covers
        ).strip()
    except GitFailedError:
        return f"{passed}, which is no commit of this history"
    return f"{passed}, and then changed: {later}" if later else ""
