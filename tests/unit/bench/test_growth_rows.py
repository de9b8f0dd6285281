"""The work that grows is real work: rows with locks, devices that the entrypoint finds."""

from __future__ import annotations

import json
from pathlib import Path

from bench import growth_rows
from bench.bench_records import Figure
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.lock import lockfile
from drydock.run import entrypoint


def test_a_project_has_as_many_rows_as_wanted_and_their_locks_are_current(tmp_path: Path) -> None:
    project = growth_rows.make_grown_project(tmp_path, 3)
    assert [variant.id for variant, _ in lockfile.read_current(project, read_matrix(project))] == [
        "bench-000",
        "bench-001",
        "bench-002",
    ]


def test_a_host_has_as_many_devices_as_wanted_all_linked(tmp_path: Path) -> None:
    recorded = json.loads((ROOT / "tests" / "hosts" / growth_rows.HOST / "host.json").read_text())
    path = tmp_path / "host.json"
    path.write_text(json.dumps(growth_rows.with_devices(recorded, 12)))
    facts = entrypoint.answer_for_container(
        DRYDOCK, find_variant(read_matrix(DRYDOCK), "h100"), ("facts", "--root", str(path)), {}
    )
    assert [device["number"] for device in facts["devices"]] == [*range(12)]
    assert {device["node"] for device in facts["devices"]} == {0}
    assert len(facts["links"]) == 12 * 11 / 2


def test_time_may_grow_as_the_work_and_no_faster() -> None:
    figures = {
        f"rows: {count}": Figure(unit="s", values=(seconds,)) for count, seconds in ((1, 1.0), (10, 9), (50, 50))
    }
    ten, fifty = growth_rows.compare_growth("rows: {}", [1, 10, 50], figures)
    assert (ten.what, ten.against, ten.goal.limit, ten.met) == ("rows: 10", "rows: 1", 10, True)
    assert (fifty.against, fifty.goal.limit, fifty.met) == ("rows: 10", 5, False)
