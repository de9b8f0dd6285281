"""The checks of every variant: each is complete, can pass and fail, and no two fixes contradict each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from drydock.config.matrix import read_matrix
from drydock.core.paths import ROOT
from drydock.model.checks import Check, Command, Fix
from drydock.model.record import dump
from drydock.model.variant import Variant
from entrypoints.checks.findings import judge, met
from tests.support.cases import for_each

VARIANTS = read_matrix(ROOT)
CHECKS = {check.model_dump_json(): (variant, check) for variant in VARIANTS for check in variant.checks}
"""Each distinct check, with the first variant that has it."""

WRITABLE = ("/proc/sys/", "/sys/devices/system/", "/sys/kernel/mm/", "/proc/cmdline", "/sys/module/intel_idle")
"""Path prefixes that a script, or the kernel's command line, can change."""


# --- facts that meet a condition, and facts that do not ---------------------------------------------------------------


def candidates(condition: Mapping[str, Any]) -> Iterator[Any]:
    """Yield values of a fact, some that meet the condition and some that do not; None means a missing fact."""
    expected = condition["expected"]
    several = expected if isinstance(expected, (list, tuple)) else [expected]
    for value in several:
        if isinstance(value, bool):
            yield from (value, not value)
        elif isinstance(value, (int, float)):
            yield from (value, value + 1, value - 1)
        elif value is not None and re.fullmatch(r"\d+(\.\d+)*", value):
            yield from (value, f"{value}.1", "0.0.1", "9999")
        elif value is not None:
            yield from (value, [value], "another", ["another"])
    yield from ("something", None)


def holds(condition: Mapping[str, Any], value: Any) -> bool:
    """Tell whether a value meets a condition; one that cannot be compared does not."""
    return met({**condition, "fact": "fact"}, {"fact": value} if value is not None else {}) is True


def matching_value(conditions: list[Mapping[str, Any]], check: Mapping[str, Any], *, right: bool) -> Any:
    """Return a value that meets all conditions on one fact, and meets the check only if `right`."""
    for condition in (check, *conditions):
        for value in candidates(condition):
            outcome = met({**check, "fact": "fact"}, {"fact": value} if value is not None else {})
            if outcome is right and all(holds(other, value) for other in conditions):
                return value
    raise AssertionError(f"{check['id']}: no value makes it {right}")


def facts(check: Mapping[str, Any], *, right: bool) -> dict[str, Any]:
    """Build facts that meet all `when` conditions of a check, and meet the check only if `right`."""
    values: dict[str, Any] = {}
    for fact in {condition["fact"] for condition in (check, *check["when"])}:
        conditions = [condition for condition in check["when"] if condition["fact"] == fact]
        judged = check if fact == check["fact"] else {**conditions[0], "id": check["id"]}
        value = matching_value(conditions, judged, right=right if fact == check["fact"] else True)
        if value is not None:
            put(values, fact.split("."), value)
    return values


def put(values: dict[str, Any], path: list[str], value: Any) -> None:
    for step in path[:-1]:
        values = values.setdefault(step, {})
    values[path[-1]] = value


def is_notice(check: Check) -> bool:
    """Tell whether a check always reports when its conditions are met."""
    return check.operator == "absent" and any(item.fact == check.fact for item in check.when)


@for_each(CHECKS.values(), lambda case: f"{case[0].id} {case[1].id}")
def test_matching_facts_pass_and_violating_facts_give_a_remediation(variant: Variant, check: Check) -> None:
    plain = dump(check)
    (bad,) = judge([plain], facts(plain, right=False), variant.facts)
    if not is_notice(check):
        (good,) = judge([plain], facts(plain, right=True), variant.facts)
        assert (good.severity, good.fix) == ("PASS", {})

    assert bad.severity == check.severity
    assert check.fact in bad.found
    assert bad.expected
    assert bad.remediation == check.remediation
    assert bad.read
    assert bad.source
    assert bool(bad.fix) == (check.fix is not None)


@for_each(CHECKS.values(), lambda case: f"{case[0].id} {case[1].id}")
def test_what_a_script_could_change_has_a_fix(variant: Variant, check: Check) -> None:
    place = variant.facts.get(check.fact, "")
    assert place, f"{check.id}: name {check.fact} in facts of host.yaml or accelerator.yaml"
    if check.scope == "host" and place.startswith(WRITABLE) and not check.fact.endswith((".release", "_per_socket")):
        assert check.fix or check.fact == "derived.threads_per_core"


@for_each(VARIANTS, lambda variant: variant.id)
def test_no_two_checks_of_a_variant_set_one_knob_differently(variant: Variant) -> None:
    values_by_knob: dict[str, set[str]] = {}
    for fix in (check.fix for check in variant.checks if check.fix):
        for name, value in (*fix.sysctl.items(), *fix.write.items(), *(word.split("=", 1) for word in fix.parameters)):
            values_by_knob.setdefault(name, set()).add(str(value))

    assert {name: values for name, values in values_by_knob.items() if len(values) > 1} == {}


@for_each(VARIANTS, lambda variant: variant.id)
def test_no_id_stands_for_two_checks_of_a_variant(variant: Variant) -> None:
    ids = [check.id for check in variant.checks]

    assert sorted(ids) == sorted(set(ids))


def test_facts_are_declared_exactly_for_the_checks() -> None:
    named = {fact for variant in VARIANTS for fact in variant.facts}

    assert named == {check.fact for variant in VARIANTS for check in variant.checks}


# --- the record -----------------------------------------------------------------------------------------------------


def test_what_survives_a_reboot_is_described_in_words() -> None:
    command = Command(run="tool on", unless="tool is-on", each_boot=True)
    once = Command(run="tool now", unless="false")
    fix = Fix(sysctl={"vm.swappiness": 1}, commands=(command, once), parameters=("iommu=pt",), firmware="SNC = off")

    assert fix.permanent == (
        "vm.swappiness = 1 in /etc/sysctl.d; `tool on` in a systemd unit; "
        "iommu=pt on the kernel's command line, and a restart; in the BIOS, SNC = off"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"caution": "nothing changes"},
        {"sysctl": {"swappiness": 1}},
        {"write": {"/etc/passwd": "x"}},
        {"write": {"/sys/a b": "x"}},
        {"write": {"/sys/$(reboot)": "x"}},
        {"parameters": ["a b"]},
        {"parameters": ['a"; reboot']},
        {"commands": [{"run": "one\ntwo", "unless": "x"}]},
        {"commands": [{"run": "one"}]},
    ],
)
def test_a_fix_that_no_script_can_apply_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Fix.model_validate(wrong)


def test_a_check_of_the_container_has_no_fix_for_the_host() -> None:
    words = {"id": "A-001", "fact": "derived.nofile", "operator": "present", "severity": "WARN", "text": "t"}
    with pytest.raises(ValidationError, match="set `scope: host`"):
        Check.model_validate(
            {**words, "id": "AB-001", "remediation": "r", "source": "s", "scope": "container", "fix": {"firmware": "x"}}
        )
