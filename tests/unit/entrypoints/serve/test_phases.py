"""The state of a start."""

from __future__ import annotations

import pytest

from entrypoints.serve.phases import (
    ENGINE_INIT,
    IMPORT,
    KNOWN_ANSWER,
    LOAD,
    READY,
    Process,
    State,
    enter_phase,
    get_phase,
    is_ready,
    measure_phases,
    observed_phase,
    startup_seconds,
    why_not,
)

API_SERVER = Process("/opt/venv/bin/python3 -m vllm.entrypoints.openai.api_server --port 8000", ())
SPAWNED = Process("/opt/venv/bin/python3 -c from multiprocessing.spawn import spawn_main; spawn_main()", ())
ENGINE_CORE = Process("VLLM::EngineCore", ())
WORKER = Process("VLLM::Worker", ())
LOADING = Process("VLLM::Worker", ("/models/m/model-00001-of-00002.safetensors",))
READY_STATE = State(entered=(("plan", 0.0), (IMPORT, 0.1), (READY, 9.0)), healthy=True, verified=True)


@pytest.mark.parametrize(
    ("processes", "before", "loaded", "expected"),
    [
        ([], IMPORT, False, IMPORT),
        ([API_SERVER], IMPORT, False, IMPORT),
        ([API_SERVER, SPAWNED], IMPORT, False, IMPORT),
        ([API_SERVER, ENGINE_CORE], IMPORT, False, IMPORT),
        ([API_SERVER, ENGINE_CORE, SPAWNED], IMPORT, False, IMPORT),
        ([API_SERVER, ENGINE_CORE, WORKER, SPAWNED], IMPORT, False, IMPORT),
        ([API_SERVER, ENGINE_CORE, WORKER], IMPORT, False, LOAD),
        ([API_SERVER, ENGINE_CORE, LOADING], LOAD, False, LOAD),
        ([API_SERVER, ENGINE_CORE, LOADING], LOAD, True, LOAD),
        ([API_SERVER, ENGINE_CORE, WORKER], LOAD, True, ENGINE_INIT),
        ([API_SERVER, ENGINE_CORE, WORKER], ENGINE_INIT, True, ENGINE_INIT),
        ([API_SERVER, ENGINE_CORE, WORKER, SPAWNED], LOAD, False, LOAD),
    ],
)
def test_the_phase_follows_from_processes(processes: list[Process], before: str, loaded: bool, expected: str) -> None:
    assert observed_phase(processes, before, loaded=loaded) == expected


def test_an_engine_core_without_workers_loads_by_itself() -> None:
    loading = ENGINE_CORE._replace(mapped=LOADING.mapped)
    assert observed_phase([API_SERVER, loading], IMPORT, loaded=False) == LOAD
    assert observed_phase([API_SERVER, ENGINE_CORE], LOAD, loaded=True) == ENGINE_INIT


def test_time_goes_only_forward() -> None:
    state = enter_phase(enter_phase(State(), LOAD, 2.0), IMPORT, 3.0)
    assert get_phase(state) == LOAD
    assert enter_phase(state, LOAD, 4.0) == state


def test_each_phase_takes_the_time_until_the_next() -> None:
    state = enter_phase(enter_phase(State(), IMPORT, 0.5), LOAD, 10.0)
    assert measure_phases(state, 12.0) == {"plan": 0.5, "import": 9.5, "load": 2.0}
    assert startup_seconds(state, 12.0) == 12.0


def test_being_ready_takes_no_time() -> None:
    assert measure_phases(READY_STATE, 100.0) == {"plan": 0.1, "import": 8.9}
    assert startup_seconds(READY_STATE, 100.0) == 9.0


def test_ready_needs_health_and_right_answers_and_no_stop() -> None:
    assert is_ready(READY_STATE)
    assert not is_ready(READY_STATE._replace(healthy=False))
    assert not is_ready(READY_STATE._replace(verified=False))
    assert not is_ready(READY_STATE._replace(wrong="x"))
    assert not is_ready(READY_STATE._replace(stopping="x"))


@pytest.mark.parametrize("field", ["lost", "stalled"])
def test_a_lost_process_or_a_stall_is_not_ready_and_says_so(field: str) -> None:
    state = READY_STATE._replace(**{field: "what happened"})
    assert is_ready(READY_STATE)
    assert not is_ready(state)
    assert why_not(state) == "what happened"


def test_the_most_important_reason_is_shown() -> None:
    assert why_not(READY_STATE) == ""
    assert why_not(READY_STATE._replace(healthy=False)) == "vLLM no longer answers"
    assert why_not(State(entered=(("plan", 0.0), (KNOWN_ANSWER, 1.0)))) == "starting: known_answer"
    assert why_not(State(trouble="no answer yet")) == "no answer yet"
    assert why_not(State(trouble="no answer yet", wrong="wrong answer", stopping="stopping")) == "stopping"
