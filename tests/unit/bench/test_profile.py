"""The phases of a process, from the files it maps and its CPU use."""

from __future__ import annotations

import os

from bench import profile
from bench.profile import IMPORTS, PYTHON, WAITS, WEIGHTS, WORKS, Look


def looks(pid: int, title: str, *steps: tuple[float, bool, bool]) -> list[Look]:
    """Return samples one second apart; a step is (CPU share of the second before, PyTorch mapped, weights mapped)."""
    used, found = 0.0, []
    for second, (share, torch, weights) in enumerate(steps):
        used += share
        found.append(Look(pid, title, float(second), used, torch, weights, ready=False))
    return found


API = looks(
    7,
    "python3 -m vllm.entrypoints.openai.api_server",
    (0, False, False),
    (1, False, False),
    (1, True, False),
    (1, True, False),
    (0, True, False),
    (1, True, False),
)


def test_a_server_starts_imports_waits_and_works() -> None:
    assert [(phase.phase, phase.begin, phase.seconds) for phase in profile.phases_of(API)] == [
        (PYTHON, 0, 1),
        (IMPORTS, 1, 2),
        (WAITS, 3, 1),
        (WORKS, 4, 1),
    ]


def test_a_process_that_waits_for_a_cpu_counts_as_computing() -> None:
    starved = [look._replace(ready=True) for look in looks(7, "VLLM::EngineCore", (0, True, False), (0, True, False))]
    assert [phase.phase for phase in profile.phases_of(starved)] == [IMPORTS]


def test_a_process_that_maps_weights_reads_them() -> None:
    engine = looks(8, "VLLM::EngineCore", (0, True, False), (1, True, False), (1, True, True), (1, True, False))
    assert [phase.phase for phase in profile.phases_of(engine)] == [IMPORTS, WEIGHTS, WORKS]


def test_each_process_has_a_lane_except_ignored_ones() -> None:
    steps = ((0.0, False, False), (1.0, False, False))
    seen = [
        *looks(1, "/usr/bin/python3 -I -S /opt/drydock/entrypoints serve", *steps),
        *looks(2, "VLLM::Worker", *steps),
        *looks(3, "VLLM::Worker", *steps),
        *looks(4, "python3 -c from multiprocessing.resource_tracker import main", *steps),
        *looks(5, "vllm.model_executor.models.registry", *steps),
        *looks(6, "cc1plus", *steps[:1]),
    ]
    assert [phase.process for phase in profile.phases_of(seen)] == [
        "entrypoint",
        "worker",
        "worker 2",
        "model inspection",
    ]


def test_a_process_is_named_by_its_last_title() -> None:
    seen = [*looks(1, "python3 -c spawn_main", (0, False, False)), *looks(1, "VLLM::EngineCore", (0, True, False))]
    assert profile.label(seen) == "engine core"


def test_the_entrypoints_phases_are_consecutive() -> None:
    phases = profile.in_a_row({"plan": 0.1, "import": 9.0, "load": 1.5})
    assert [(phase.phase, phase.begin) for phase in phases] == [("plan", 0), ("import", 0.1), ("load", 9.1)]


def test_a_family_is_a_process_and_its_descendants() -> None:
    assert profile.family(2, {1: 0, 2: 1, 3: 2, 4: 3, 5: 1}) == [2, 3, 4]
    assert profile.family(9, {1: 0}) == []
    assert os.getpid() in profile.family(os.getppid(), profile.parents())
