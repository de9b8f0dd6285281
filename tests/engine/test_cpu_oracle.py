"""vLLM's own classes, asked about known configurations: what drydock plans, they construct, or a reason is listed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from drydock.build import build
from tests.evidence import oracle
from tests.support.machines import machine

SHARE = 0.02
"""Of the random commands, those that drydock plans and vLLM refuses: 33 of 1,600 when it was last counted."""


def compare(built: build.Built, cases: Iterable[oracle.Case], folder: Path) -> oracle.Compared:
    folder.chmod(0o755)
    return oracle.compare(oracle.ask(built.image, tuple(cases), folder))


def unlisted(lines: Iterable[oracle.Line], kind: str) -> list[oracle.Line]:
    return [line for line in lines if (line.model, line.split) not in oracle.listed(kind)]


def test_a_few_splits_of_each_class_are_constructed_as_planned(built: build.Built, tmp_path: Path) -> None:
    compared = compare(built, oracle.short_cases(), tmp_path)

    assert compared.agreed > 60
    assert compared.not_asked == {}
    assert unlisted(compared.planned_and_refused, "planned_and_refused") == []
    assert unlisted(compared.refused_and_constructed, "refused_and_constructed") == []


def check_random_commands(image: str, count: int, folder: Path) -> None:
    """Compare drydock and vLLM on random commands; the day chooses them, and a failure names them."""
    seed = int(time.time()) // (24 * 3600)
    folder.chmod(0o755)
    planned, refused = oracle.compare_commands(image, machine("xeon", 2, "cpu-vllm0.32"), count, seed, folder)
    print(f"seed {seed}: of {count} commands, planned and refused by vLLM {len(planned)}: {planned}")  # noqa: T201

    assert refused == []
    assert len(planned) <= SHARE * count + 3 * (SHARE * count) ** 0.5  # three standard deviations


def test_random_options_are_planned_where_vllm_takes_them(built: build.Built, tmp_path: Path) -> None:
    check_random_commands(built.image, 50, tmp_path)


@pytest.mark.oracle
def test_many_random_options_are_planned_where_vllm_takes_them(built: build.Built, tmp_path: Path) -> None:
    check_random_commands(built.image, 400, tmp_path)


@pytest.mark.oracle
def test_every_split_of_every_configuration_is_as_listed(built: build.Built, tmp_path: Path) -> None:
    compared = compare(built, oracle.whole_cases(), tmp_path)

    assert set(compared.not_asked) == set(oracle.read_lists()["not_asked"])
    for kind in ("planned_and_refused", "refused_and_constructed"):
        cases = {(line.model, line.split) for line in getattr(compared, kind)}
        assert cases == set(oracle.listed(kind)), kind
    assert set(oracle.far_sizes(compared)) == set(oracle.read_lists()["sizes"])
