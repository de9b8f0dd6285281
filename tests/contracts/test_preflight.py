"""Every check of every image can say something, and a driver that is too old or too new is told before vLLM starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from entrypoints.checks.findings import FAIL, PASS, WARN, evaluate, lookup, met
from entrypoints.core.records import to_json
from entrypoints.facts.derived import derive
from entrypoints.facts.probes.common.knobs import KNOBS
from tests.support.cases import for_each
from tests.support.hosts import expect
from tests.support.sample import facts

PROFILES: dict[str, dict[str, Any]] = {
    path.parent.name: json.loads(path.read_text())
    for path in sorted(Path(expect.ROOT, "images").glob("*/profile.json"))
}
DRIVEN = ("cuda", "habana", "enflame", "neuron", "rocm")
"""Accelerators whose vendors publish which drivers a stack needs."""


def _known() -> tuple[dict[str, Any], ...]:
    read = ((name, expect.profile_of(name)) for name in expect.names())
    every = [expect.read(name, profile) for name, profile in read]
    return tuple(to_json(each) | {"derived": derive(each)} for each in every)


def _checks() -> Iterator[tuple[str, dict[str, Any]]]:
    for variant, profile in PROFILES.items():
        yield from ((variant, check) for check in profile["checks"])


def test_every_fact_that_a_check_names_is_read_on_some_recorded_host_or_is_a_knob_that_a_probe_knows() -> None:
    hosts = _known()
    probes = "".join(path.read_text() for path in Path(expect.ROOT, "entrypoints", "facts", "probes").rglob("*.py"))
    named = {item["fact"] for _, check in _checks() for item in (check, *check["when"])}
    never = {
        fact
        for fact in named
        if f'"{fact.removeprefix("kernel.")}"' not in probes and all(lookup(fact, host) is None for host in hosts)
    }

    assert never == set()


@for_each(PROFILES)
def test_no_image_says_the_same_thing_twice(variant: str) -> None:
    checks = PROFILES[variant]["checks"]
    ids = [check["id"] for check in checks]
    asked = [json.dumps([check[key] for key in ("fact", "operator", "expected", "when")]) for check in checks]

    assert sorted(set(ids)) == sorted(ids)
    assert sorted(set(asked)) == sorted(asked)


def _driver_checks(variant: str) -> list[dict[str, Any]]:
    return [
        check
        for check in PROFILES[variant]["checks"]
        if check["fact"] == "versions.driver" and check["operator"] in ("version_gte", "version_lt")
    ]


@for_each(PROFILES)
def test_a_driver_of_the_wrong_age_is_told_with_what_to_do(variant: str) -> None:
    checks = _driver_checks(variant)
    assert checks or PROFILES[variant]["accelerator"] not in DRIVEN
    for check in checks:
        wrong, right = ("0.1", check["expected"]) if check["operator"] == "version_gte" else ("9999.1", "0.1")
        bare = {**check, "when": [condition for condition in check["when"] if condition["fact"] == "versions.driver"]}
        (bad,) = evaluate([bare], facts(versions={"driver": wrong}))
        (good,) = evaluate([bare], facts(versions={"driver": right}))

        assert bad.severity in (FAIL, WARN)
        assert wrong in bad.found
        assert check["expected"] in bad.expected
        assert bad.remediation
        assert good.severity == PASS


@pytest.mark.parametrize(
    ("found", "least", "enough"),
    [
        ("580", "580.0", True),
        ("25.5.rc1", "25.5.0", False),
        ("25.5.1.rc2", "25.5.1", False),
        ("24.1.rc1.b030", "23.0.3", True),
        ("1.21.1-bfcec49", "1.21.1", True),
        ("1.20.1-366eb9c", "1.21", False),
        ("6.14.0", "6.14", True),
        ("none", "1.0", None),
    ],
)
def test_versions_are_compared_as_vendors_count_them(found: str, least: str, enough: bool | None) -> None:
    condition = {"fact": "versions.driver", "operator": "version_gte", "expected": least}

    assert met(condition, {"versions": {"driver": found}}) is enough


def test_no_file_is_read_under_two_names() -> None:
    paths = [path for path, _ in KNOBS.values()]

    assert sorted(set(paths)) == sorted(paths)
