"""Figures are measured in turns, and the machine is read."""

from __future__ import annotations

import json

from bench import bench_machine, turns


def test_measures_alternate_and_reverse_their_order() -> None:
    order: list[str] = []
    measures = {name: lambda name=name: float(len(order.append(name) or order)) for name in ("ours", "theirs")}
    figures = turns.in_turns(measures, 2, "s")

    assert order == ["ours", "theirs", "theirs", "ours"]
    assert figures["ours"].values == (1, 4)


def test_the_machine_is_read_from_the_machine() -> None:
    machine = bench_machine.read_machine()
    assert machine.cpus >= 1
    assert machine.memory > 1 << 28
    assert json.loads(machine.model_dump_json())["kernel"]
