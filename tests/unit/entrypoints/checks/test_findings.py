"""Checks compared with facts, and the formats of findings."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from entrypoints.checks import findings
from entrypoints.core.errors import INTERNAL, EntrypointError
from entrypoints.core.records import Device, Failure
from tests.support.sample import check, facts, told


def severity(**changes: Any) -> str:
    return findings.evaluate_checks([check(**changes)], facts())[0].severity


@pytest.mark.parametrize(
    ("operator", "expected", "outcome"),
    [
        ("eq", "performance", "PASS"),
        ("eq", "powersave", "WARN"),
        ("ne", "powersave", "PASS"),
        ("in", ["performance", "schedutil"], "PASS"),
        ("not_in", ["performance"], "WARN"),
        ("present", None, "PASS"),
        ("absent", None, "WARN"),
        ("gte", 3, "UNKNOWN"),
    ],
)
def test_each_operator_compares_text(operator: str, expected: Any, outcome: str) -> None:
    assert severity(operator=operator, expected=expected) == outcome


@pytest.mark.parametrize(
    ("operator", "expected", "outcome"), [("gte", 8, "PASS"), ("gte", 9, "WARN"), ("lte", 8, "PASS")]
)
def test_numbers_compare_by_size(operator: str, expected: int, outcome: str) -> None:
    assert severity(fact="derived.physical_cores", operator=operator, expected=expected) == outcome


@pytest.mark.parametrize(("expected", "outcome"), [("avx512f", "PASS"), (["neon", "avx2"], "PASS"), (["neon"], "WARN")])
def test_a_list_contains_one_of_those_expected(expected: Any, outcome: str) -> None:
    assert severity(fact="processor.flags", operator="contains", expected=expected) == outcome


def test_each_outcome_has_a_text_of_its_own() -> None:
    texts = {"text": "is {found}, not {expected}", "passed": "is right"}
    cases = ({}, {"expected": "powersave"}, {"fact": "kernel.no_such_knob"})
    check_findings = findings.evaluate_checks([check(**texts, **case) for case in cases], facts())

    assert [(finding.severity, finding.text) for finding in check_findings] == [
        ("PASS", "is right"),
        ("WARN", "is performance, not powersave"),
        ("UNKNOWN", "This could not be checked: is right"),
    ]


def test_a_missing_fact_is_unknown_and_never_passes() -> None:
    assert severity(fact="kernel.no_such_knob") == "UNKNOWN"
    assert severity(fact="kernel.governor.deeper") == "UNKNOWN"


def test_a_check_whose_condition_is_not_met_says_nothing() -> None:
    condition = {"fact": "processor.architecture", "operator": "eq", "expected": "s390x"}

    assert findings.evaluate_checks([check(when=[condition])], facts()) == ()
    assert findings.evaluate_checks([check(when=[{**condition, "fact": "kernel.none"}])], facts()) == ()


def test_a_probes_failure_is_a_fail_finding_with_where_and_what() -> None:
    broken = facts(failures=(Failure("/proc/x", "errno 5", "a readable file"),))
    check_findings = told(findings.list_unread_facts(broken))

    assert findings.has_failures(check_findings)
    assert (check_findings[0].severity, check_findings[0].found) == ("FAIL", "errno 5")
    assert "/proc/x" in check_findings[0].remediation


def test_unlimited_limits_pass_every_threshold() -> None:
    assert severity(fact="derived.memlock_mib", operator="gte", expected=1 << 40) == "PASS"


def test_text_names_what_to_do_for_what_is_not_right_only() -> None:
    good = findings.format_findings(findings.evaluate_checks([check()], facts()))
    bad = findings.format_findings(findings.evaluate_checks([check(expected="powersave")], facts()))

    assert "mend it" not in good
    assert "mend it" in bad
    assert "found kernel.governor = performance; expected powersave" in bad


def test_junit_tells_failures_and_skips_and_survives_odd_characters() -> None:
    broken = facts(failures=(Failure("/proc/x", "'\x00\x1b<&>'", "text"),))
    check_findings = [
        *told(findings.list_unread_facts(broken)),
        *findings.evaluate_checks([check(fact="kernel.none"), check()], broken),
    ]
    suite = ET.fromstring(findings.format_junit(check_findings, "drydock"))  # noqa: S314 - written here

    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    assert [len(case) for case in suite] == [1, 1, 0]


def test_a_finding_says_where_its_fact_is_read_and_what_lasts() -> None:
    fix = {"sysctl": {"vm.swappiness": 1}, "write": {}, "permanent": "vm.swappiness = 1 in /etc/sysctl.d"}
    places = {"kernel.governor": "/sys/governor"}
    good, bad = findings.evaluate_checks([check(), check(expected="powersave", fix=fix)], facts(), places)

    assert (good.read, good.fix) == ("/sys/governor", {})
    assert bad.fix == {"sysctl": {"vm.swappiness": 1}, "permanent": fix["permanent"]}
    assert "found kernel.governor = performance (/sys/governor); expected powersave" in findings.format_findings([bad])


def test_a_log_has_one_line_for_each_finding() -> None:
    broken = facts(failures=(Failure("/proc/x", "two\nlines", "one"),))

    assert findings.format_findings_log(
        [*told(findings.list_unread_facts(broken)), *findings.evaluate_checks([check(expected="x")], broken)]
    ) == (
        "FAIL    PROBE-001  /proc/x cannot be read or has unexpected contents. fix (container): make /proc/x readable "
        "in the container, or mount it from the host; found two\\nlines; expected one\n"
        "WARN    CPU-001  is performance fix (host): mend it; found kernel.governor = performance; expected x\n"
    )


def test_what_is_unlimited_is_called_so_and_a_short_list_is_shown() -> None:
    devices = tuple(Device(number, "HL-225", None, None, None, architecture="gaudi2") for number in range(2))
    host = facts(devices=devices)
    checks = [check(fact="derived.pids", operator="gte", expected=1), check(fact="derived.names", operator="contains")]
    check_findings = findings.evaluate_checks(checks, host)

    assert [finding.found for finding in check_findings] == ["derived.pids = unlimited", "derived.names = HL-225"]


WORDS = {
    "severity": "WARN",
    "scope": "host",
    "text": "{what} is off",
    "passed": "{what} is on",
    "remediation": "use {{}}",
    "source": "{page}",
}


def test_a_notice_gets_its_text_from_the_profile() -> None:
    notice = findings.make_notice("CPU-001", "a", "b", what="{page.__class__}", page="page 1")

    finding = findings.make_finding({"CPU-001": WORDS}, notice)

    assert (finding.id, finding.severity, finding.scope, finding.found, finding.expected) == (
        "CPU-001",
        "WARN",
        "host",
        "a",
        "b",
    )
    assert (finding.text, finding.remediation, finding.source) == ("{page.__class__} is off", "use {}", "page 1")
    good, unknown = (findings.make_finding({"CPU-001": WORDS}, notice, good=good) for good in (True, None))
    assert good[1:3] == ("PASS", "{page.__class__} is on")
    assert unknown[1:3] == ("UNKNOWN", "This could not be checked: {page.__class__} is on")


@pytest.mark.parametrize(
    ("number", "values", "message"),
    [
        ("CPU-002", {}, "findings: no CPU-002"),
        ("CPU-001", {"what": "x"}, "findings.CPU-001: no value for 'page'"),
        ("CPU-001", {"what": "x", "page": "y", "more": "z"}, "findings.CPU-001: no {more} in it"),
    ],
)
def test_a_mismatch_of_code_and_profile_is_an_internal_error(number: str, values: dict[str, str], message: str) -> None:
    with pytest.raises(EntrypointError, match=re.escape(message)) as raised:
        findings.make_finding({"CPU-001": WORDS}, findings.make_notice(number, "a", "b", **values))

    assert raised.value.code == INTERNAL
