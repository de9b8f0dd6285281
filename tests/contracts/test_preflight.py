"""Every check of every image can say something, and a driver that is too old or too new is told before vLLM starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from entrypoints.checks.findings import is_condition_met, look_up_fact
from entrypoints.core.records import to_json
from entrypoints.facts.derived import derive_facts
from entrypoints.facts.probes.common.kernel_settings import SETTINGS
from tests.support.cases import for_each
from tests.support.hosts import expect

PROFILES = {variant.id: expect.profile_in(variant.id) for variant in expect.VARIANTS}
DRIVEN = ("cuda", "habana", "enflame", "neuron", "rocm")
"""Accelerators whose vendors publish which drivers a stack needs."""


def _known() -> tuple[dict[str, Any], ...]:
    read = ((name, expect.profile_of(name)) for name in expect.names())
    every = [expect.read(name, profile) for name, profile in read]
    return tuple(to_json(facts) | {"derived": derive_facts(facts)} for facts in every)


def _checks() -> Iterator[tuple[str, dict[str, Any]]]:
    for variant, profile in PROFILES.items():
        yield from ((variant, check) for check in profile["checks"])


def test_every_fact_that_a_check_names_is_read_on_some_recorded_host_or_is_a_knob_that_a_probe_knows() -> None:
    hosts = _known()
    probes = "".join(path.read_text() for path in Path(expect.ROOT, "entrypoints", "facts", "probes").rglob("*.py"))
    fact_names = {item["fact"] for _, check in _checks() for item in (check, *check["when"])}
    never = {
        fact
        for fact in fact_names
        if f'"{fact.removeprefix("kernel.")}"' not in probes and all(look_up_fact(fact, host) is None for host in hosts)
    }

    assert never == set()


@for_each(PROFILES)
def test_no_image_says_the_same_thing_twice(variant: str) -> None:
    checks = PROFILES[variant]["checks"]
    ids = [check["id"] for check in checks]
    conditions = [json.dumps([check[key] for key in ("fact", "operator", "expected", "when")]) for check in checks]

    assert sorted(set(ids)) == sorted(ids)
    assert sorted(set(conditions)) == sorted(conditions)


@for_each([variant for variant, profile in PROFILES.items() if profile["accelerator"] in DRIVEN])
def test_an_image_whose_vendor_publishes_its_drivers_checks_the_drivers_age(variant: str) -> None:
    """Each check is tried with a right and a wrong driver in test_every_check.py."""
    operators = {check["operator"] for check in PROFILES[variant]["checks"] if check["fact"] == "versions.driver"}
    assert operators & {"version_gte", "version_lt"}


@pytest.mark.parametrize(
    ("version", "least", "enough"),
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
def test_versions_are_compared_as_vendors_count_them(version: str, least: str, enough: bool | None) -> None:
    condition = {"fact": "versions.driver", "operator": "version_gte", "expected": least}

    assert is_condition_met(condition, {"versions": {"driver": version}}) is enough


def test_no_file_is_read_under_two_names() -> None:
    paths = [path for path, _ in SETTINGS.values()]

    assert sorted(set(paths)) == sorted(paths)
