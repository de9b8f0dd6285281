"""A run of a kind that failed is continued: what passed in it is not run again, and counts."""

from __future__ import annotations

from pathlib import Path

from drydock.core.project import Project
from drydock.development import continued_run
from drydock.lock import kind_runs

FIRST = """<testsuites><testsuite tests="4" failures="1" skipped="1" time="130.0">
<testcase classname="tests.engine.test_packages" name="test_a" time="70.0"><properties><property name="digest"/>
</properties></testcase>
<testcase classname="tests.engine.test_packages" name="test_a_longer[x.y]" time="50.0"><failure>no</failure></testcase>
<testcase classname="tests.engine.test_packages" name="test_b[x.y]" time="9.0"/>
<testcase classname="tests.engine.test_packages" name="test_c" time="1.0"><skipped>no</skipped></testcase>
</testsuite></testsuites>"""
SECOND = """<testsuites><testsuite tests="2" skipped="1" time="60.0">
<testcase classname="tests.engine.test_packages" name="test_a_longer[x.y]" time="60.0"/>
<testcase classname="tests.engine.test_packages" name="test_c" time="0.0"><skipped>no</skipped></testcase>
</testsuite></testsuites>"""


def test_what_passed_is_left_out_and_counts_in_the_record(tmp_path: Path) -> None:
    report, earlier_report = tmp_path / "junit.xml", tmp_path / "cache" / "packages-1.xml"
    assert continued_run.list_passed_tests(earlier_report) == []
    report.write_text(FIRST)
    continued_run.keep_report(report, earlier_report)
    assert continued_run.list_passed_tests(earlier_report) == [
        "tests/engine/test_packages.py::test_a",
        "tests/engine/test_packages.py::test_b[x.y]",
    ]

    report.write_text(SECOND)
    continued_run.finish_report(report, earlier_report)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/kinds.json").write_text('{"kinds": {"packages": {"shows": "rows build", "covers": []}}}')
    kind_runs.record_run(Project(tmp_path), "packages", "1" * 40, report)

    last = kind_runs.read_kinds(Project(tmp_path))["packages"].last
    assert last
    assert (last.passed, last.skipped, last.minutes) == (3, 1, 3)
    assert not earlier_report.exists()


def test_passes_of_several_failed_runs_add_up(tmp_path: Path) -> None:
    report, earlier_report = tmp_path / "junit.xml", tmp_path / "packages-1.xml"
    for text in (FIRST, SECOND):
        report.write_text(text)
        continued_run.keep_report(report, earlier_report)

    assert len(continued_run.list_passed_tests(earlier_report)) == 3


def test_a_run_that_left_no_report_forgets_nothing(tmp_path: Path) -> None:
    earlier_report = tmp_path / "packages-1.xml"
    earlier_report.write_text(FIRST)

    continued_run.keep_report(tmp_path / "junit.xml", earlier_report)

    assert earlier_report.read_text() == FIRST
