"""A run of a kind of tests that failed is continued at the same commit: what passed in it does not run again. IO.

The kinds that run only if named take up to an hour. pytest's JUnit report of a failed run is kept in the cache folder.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

from drydock.core.paths import cache_home


def locate_earlier_report(kind: str, commit: str) -> Path:
    """Return where the report of a failed run is kept. Raises InputError if the cache folder is not the user's own."""
    return cache_home() / "kind-reports" / f"{kind}-{commit}.xml"


def list_passed_tests(report: Path) -> list[str]:
    """Return the ids of the tests that passed, as pytest prints them; none without a report."""
    return [
        f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}" for case in _read_passed_cases(report)
    ]


def keep_report(report: Path, earlier_report: Path) -> None:
    """Keep the report of a run that failed, with what passed in earlier ones at the same commit."""
    if not report.is_file():  # pytest ended before it wrote one
        return
    _add_earlier_passes(report, earlier_report)
    earlier_report.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(report, earlier_report)


def finish_report(report: Path, earlier_report: Path) -> None:
    """Add what passed in the runs that this one continues, and forget them."""
    _add_earlier_passes(report, earlier_report)
    earlier_report.unlink(missing_ok=True)


def _read_passed_cases(report: Path) -> list[ET.Element]:
    """Return the test cases without a failure, an error or a skip, of which each is a child element."""
    if not report.is_file():
        return []
    root = ET.parse(report).getroot()  # noqa: S314 - pytest of this checkout wrote it
    return [case for case in root.iter("testcase") if len(case) == len(case.findall("properties"))]


def _add_earlier_passes(report: Path, earlier_report: Path) -> None:
    cases = _read_passed_cases(earlier_report)
    if not cases:
        return
    seconds = sum(float(case.get("time", 0)) for case in cases)
    suite = ET.Element("testsuite", {"tests": str(len(cases)), "skipped": "0", "time": f"{seconds:.3f}"})
    suite.extend(cases)
    tree = ET.parse(report)  # noqa: S314 - as above
    tree.getroot().append(suite)
    tree.write(report)
