"""Every check of every image, with its fact right and wrong: each finding names value, expectation and fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from typing import Any

from drydock.build.render import make_profile
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from entrypoints.checks.findings import is_condition_met, judge_checks
from tests.support.cases import for_each

ABSENT = object()
"""The fact is not known."""


@cache
def profiles() -> dict[str, dict[str, Any]]:
    """Return each image's profile by variant."""
    return {variant.id: make_profile(variant).model_dump(mode="json") for variant in read_matrix(DRYDOCK)}


def checks() -> Iterator[Any]:
    """Yield every check once for each fix, place and expectation that images give it."""
    keys = set()
    for image_profile in profiles().values():
        for check in image_profile["checks"]:
            place = image_profile["facts"].get(check["fact"], "")
            if (key := repr((check, place))) not in keys:
                keys.add(key)
                yield check, place


def below(version: str) -> str:
    """Return an older version."""
    return f"0.{version}"


def values_around(condition: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return values that meet a condition, and some that do not."""
    expected = condition["expected"]
    several = tuple(expected) if isinstance(expected, list) else (expected,)
    if condition["operator"] in ("gte", "lte"):
        return expected, expected - 1, expected + 1
    if condition["operator"].startswith("version"):
        return expected, below(expected), f"99{expected}"
    if condition["operator"] == "contains":
        return *([one] for one in several), ["of no other kind"]
    if condition["operator"] in ("absent", "present"):
        return ABSENT, "there"
    return *several, *((not one) for one in several if isinstance(one, bool)), "something else"


def facts(conditions: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield all combinations of values around the conditions, as facts print."""
    around: dict[str, list[Any]] = {}
    for condition in conditions:
        around.setdefault(condition["fact"], []).extend(values_around(condition))
    for chosen in product(*around.values()):
        yield nested(dict(zip(around, chosen, strict=True)))


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *steps, last = path.split(".")
        branch = tree
        for step in steps:
            branch = branch.setdefault(step, {})
        if value is not ABSENT:
            branch[last] = value
    return tree


def host(check: Mapping[str, Any], *, right: bool) -> dict[str, Any]:
    """Return facts that meet the check's conditions and, or but not, the check itself."""
    for values in facts([*check["when"], check]):
        if (
            all(is_condition_met(condition, values) for condition in check["when"])
            and is_condition_met(check, values) is right
        ):
            return values
    raise AssertionError(f"{check['id']}: nothing is {'right' if right else 'wrong'} under its own conditions")


def is_statement(check: Mapping[str, Any]) -> bool:
    """Tell whether a check is about nothing but what it is said of: this image on that card, say."""
    return check["operator"] == "absent" and any(
        (condition["fact"], condition["operator"]) == (check["fact"], "present") for condition in check["when"]
    )


def test_there_are_checks_of_every_accelerator() -> None:
    covered = {variant.accelerator for variant in read_matrix(DRYDOCK) if profiles()[variant.id]["checks"]}

    assert covered == {path.parent.name for path in ROOT.glob("templates/*/accelerator.yaml")}
    assert len(list(checks())) > 100


@for_each(checks(), lambda case: case[0]["id"])
def test_wrong_is_said_with_value_expectation_and_fix_and_right_is_not(check: dict[str, Any], place: str) -> None:
    wrong = host(check, right=False)
    (finding,) = judge_checks([check], wrong, {check["fact"]: place})
    fine = [] if is_statement(check) else [item[1:3] for item in judge_checks([check], host(check, right=True), {})]

    value = wrong
    for step in check["fact"].split("."):
        value = value.get(step, ABSENT)
    assert finding.severity == check["severity"]
    assert fine == ([] if is_statement(check) else [("PASS", check["passed"])])
    assert finding.text == check["text"].format(found=shown(value), expected=shown(check["expected"]))
    assert finding.text != check["passed"]
    assert finding.found.startswith(check["fact"])
    assert finding.found != check["fact"]
    assert shown(value) in finding.found
    assert finding.expected == worded(check)
    assert finding.remediation.strip()
    assert finding.remediation != finding.text
    assert finding.read == place != ""
    assert finding.source
    assert bool(finding.fix) == bool(check["fix"])


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not known" if value is ABSENT else ", ".join(value) if isinstance(value, list) else str(value)


def worded(check: Mapping[str, Any]) -> str:
    """Say the expectation as a person would."""
    expected = check["expected"]
    text = shown(expected)
    return {
        "ne": f"not {text}", "in": f"one of {text}", "not_in": f"none of {text}", "gte": f"at least {text}",
        "lte": f"at most {text}", "version_gte": f"{text} or later", "version_lt": f"before {text}",
        "contains": f"one of {text}", "absent": "none", "present": "any",
    }.get(check["operator"], text)  # fmt: skip
