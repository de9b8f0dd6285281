"""A run of a kind of tests that failed is continued at the same commit: what passed in it does not run again. IO.

The kinds that run only if named take up to an hour. pytest's JUnit report of a failed run is kept in the cache folder.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

from drydock.core.paths import cache_home


def locate_kept_report(kind: str, commit: str) -> Path:
    """Return where the report of a failed run is kept. Raises InputError if the cache folder is not the user's own."""
    return cache_home() / "kind-reports" / f"{kind}-{commit}.xml"


def list_passed_tests(report: Path) -> list[str]:
    """Return the ids of the tests that passed, as pytest prints them; none without a report."""
    if not report.is_file():
        return []
    root = ET.parse(report).getroot()  # noqa: S314 - pytest of this checkout wrote it
    cases = [case for case in root.iter("testcase") if len(case.findall("*")) == len(case.findall("properties"))]
    return [f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}" for case in cases]


def keep_report(report: Path, kept: Path) -> None:
    """Keep the report of a run that failed, with what passed in earlier ones at the same commit."""
    if not report.is_file():  # pytest ended before it wrote one
        return
    _add_earlier_passes(report, kept)
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(report, kept)


def finish_report(report: Path, kept: Path) -> None:
    """Add what passed in the runs that this one continues, and forget them."""
    _add_earlier_passes(report, kept)
    kept.unlink(missing_ok=True)


def _add_earlier_passes(report: Path, kept: Path) -> None:
    passed = set(list_passed_tests(kept))
    if not passed:
        return
    tree, suite, seconds = ET.parse(report), ET.Element("testsuite"), 0.0  # noqa: S314 - as above
    for case in ET.parse(kept).getroot().iter("testcase"):  # noqa: S314 - as above
        if f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}" in passed:
            suite.append(case)
            seconds += float(case.get("time", 0))
    suite.attrib.update({"tests": str(len(suite)), "skipped": "0", "time": f"{seconds:.3f}"})
    tree.getroot().append(suite)
    tree.write(report)
