"""The benchmark of drydock itself measures the real matrix."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bench import buckets, facts, plans, synthetic, turns
from drydock.config.matrix import read_matrix
from drydock.core.paths import ROOT
from entrypoints.decide.shapes.buckets import Range, linear


def test_the_plan_contains_every_variant_for_every_platform() -> None:
    variants = read_matrix(ROOT)
    plan = plans.whole(ROOT, variants)

    assert len(plan["target"]) == sum(len(variant.platforms) for variant in variants)
    assert plan["group"]["default"]["targets"] == list(plan["target"])
    assert plan["target"]["cpu-vllm0_32_linux_amd64"]["network"] == "none"


def test_synthetic_variants_are_as_large_as_the_real_one(tmp_path: Path) -> None:
    synthetic.write_root(tmp_path, 3)
    real = next(variant for variant in read_matrix(ROOT) if variant.id == (tmp_path / "REAL").read_text())
    found = read_matrix(tmp_path)

    assert [variant.id for variant in found] == ["v0", "v1", "v2"]
    assert all(variant.checks == real.checks and variant.layers == real.layers for variant in found)
    assert synthetic.measured(tmp_path).keys() == {"load", "render", "plan", "bytes"}


def test_measures_alternate_and_reverse_their_order() -> None:
    order: list[str] = []
    measures = {name: lambda name=name: float(len(order.append(name) or order)) for name in ("ours", "theirs")}
    figures = turns.in_turns(measures, 2, "s")

    assert order == ["ours", "theirs", "theirs", "ours"]
    assert figures["ours"].values == (1, 4)


def test_processor_time_is_that_of_the_child() -> None:
    burn = ["python3", "-c", "sum(range(3_000_000))"]
    assert turns.processor(lambda: subprocess.run(burn, check=True)) > turns.processor(
        lambda: subprocess.run(["sleep", "0.1"], check=True)
    )


@pytest.mark.parametrize("count", [4, 14, 40])
def test_evenly_spaced_buckets_use_the_smallest_step(count: int) -> None:
    spread = Range(128, 128, 14080)
    found = buckets.evenly(spread, count)

    assert len(found) <= count
    assert found[-1] >= spread.last
    step = found[0] - 128
    assert step == 0 or len(linear(Range(step, step, -(-spread.last // step) * step))) > count


def test_every_trace_is_compared_with_every_method() -> None:
    rows = buckets.rows()

    assert len(rows) == len(buckets.TRACES) * 3
    assert all(row.value < 1 for row in rows)


def test_the_machine_is_read_from_the_machine() -> None:
    machine = facts.machine()
    assert machine.cpus >= 1
    assert machine.memory > 1 << 28
    assert json.loads(machine.model_dump_json())["kernel"]
