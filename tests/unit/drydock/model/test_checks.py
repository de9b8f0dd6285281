"""The checks of every variant: each is complete, can pass and fail, and no two fixes contradict each other."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.model.checks import Check, Command, Fix
from drydock.model.variant import Variant
from tests.support.cases import for_each

VARIANTS = read_matrix(DRYDOCK)
CHECKS = {check.model_dump_json(): (variant, check) for variant in VARIANTS for check in variant.checks}
"""Each distinct check, with the first variant that has it."""

WRITABLE = ("/proc/sys/", "/sys/devices/system/", "/sys/kernel/mm/", "/proc/cmdline", "/sys/module/intel_idle")
"""Path prefixes that a script, or the kernel's command line, can change."""


# --- facts that meet a condition, and facts that do not ---------------------------------------------------------------


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


def test_facts_are_declared_exactly_for_the_checks() -> None:
    declared_facts = {fact for variant in VARIANTS for fact in variant.facts}

    assert declared_facts == {check.fact for variant in VARIANTS for check in variant.checks}


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


CHECK = {
    "id": "AB-001", "fact": "derived.nofile", "operator": "present", "severity": "WARN", "scope": "container",
    "text": "t", "passed": "p", "remediation": "r", "source": "s",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fix": {"firmware": "x"}}, "`scope: host`, because a fix changes the host"),
        ({"text": "{found} is wrong"}, "no name in braces in the text of a check with present, not {found}"),
        ({"operator": "absent", "text": "not {expected}"}, "{found} in the text of a check with absent, not {exp"),
        ({"operator": "eq", "text": "{source}"}, "{expected} and {found} in the text of a check with eq, not {source}"),
    ],
)
def test_a_check_that_cannot_be_told_is_refused(changes: dict[str, Any], message: str) -> None:
    Check.model_validate(CHECK)
    with pytest.raises(ValidationError, match=re.escape(message)):
        Check.model_validate({**CHECK, **changes})
