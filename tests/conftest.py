"""Counts tests by kind at the end of a run: unit, golden (compares with a committed file), engine (needs Docker)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

KINDS = ("unit", "golden", "engine")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for found in terminalreporter.stats.values() for report in found]
    tests = [report for report in reports if isinstance(report, pytest.TestReport)]
    terminalreporter.write_sep("=", ", ".join(count(kind, tests) for kind in KINDS))


def count(kind: str, reports: Iterable[pytest.TestReport]) -> str:
    """Say how many tests of a kind ran, how they ended, and how long they and their fixtures took."""
    mine = [report for report in reports if kind_of(report.keywords) == kind]
    ran = sum(report.when == "call" for report in mine)
    failed = len({report.nodeid for report in mine if report.failed})
    return f"{ran} {kind} ({failed} failed, {sum(report.duration for report in mine):.1f} s)"


def kind_of(keywords: Mapping[str, object]) -> str:
    """Return a test's kind by its markers."""
    return next((kind for kind in ("engine", "golden") if kind in keywords), "unit")
