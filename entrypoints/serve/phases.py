"""What is known about a start, from the first instruction to ready: phases, readiness and why not. Pure.

Phases are derived from process titles and mapped files, not from log lines, whose wording changes between releases.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from entrypoints.core.weight_files import WEIGHTS
from entrypoints.host.processes import Process

PLAN = "plan"
"""From the start of this process until vLLM is spawned."""
JOIN = "join"
"""Until the first of several hosts has accepted this one; vLLM is not spawned before."""
SPAWN = "spawn"
"""Until vLLM's interpreter runs."""
IMPORT = "import"
"""API server, engine core and workers import torch and vLLM, one after the other."""
LOAD = "load"
"""From the last import until no weight file is mapped. If the loader maps none, until vLLM's /health answers."""
ENGINE_INIT = "engine_init"
"""Profiling, compilation, KV cache; ends when vLLM's /health answers."""
KNOWN_ANSWER = "known_answer"
"""vLLM listens; its answers are compared."""
READY = "ready"

ORDER = (PLAN, JOIN, SPAWN, IMPORT, LOAD, ENGINE_INIT, KNOWN_ANSWER, READY)


class State(NamedTuple):
    """A start so far. Times are seconds since the process began."""

    entered: tuple[tuple[str, float], ...] = ((PLAN, 0.0),)
    """Each phase with the time it began, in order."""
    healthy: bool = False
    """Whether vLLM's /health answers now."""
    verified: bool = False
    """Whether its answers are right, or could not be compared for a reason in `notes`."""
    wrong: str = ""
    """The expected and the found answer, if they differ."""
    stopping: str = ""
    """Why the server stops."""
    trouble: str = ""
    """The last problem before the server became ready."""
    notes: tuple[str, ...] = ()
    """What was compared, and what could not be compared and why."""
    lost: str = ""
    """Which of vLLM's processes ended without being asked to."""
    stalled: str = ""
    """What makes no progress for too long now."""
    dead: bool = False
    """Whether it has made none for so long that it will not recover by itself."""
    ending: bool = False
    """Whether vLLM was told to exit, so that its processes may end."""
    defect: str = ""
    """Which of drydock's own watches failed, so that the state is no longer kept."""
    trace: str = ""
    """The traceback of the defect."""
    idle: bool = False
    """While stopping: whether the last running request has ended."""
    running: int = 0
    """While stopping: the unfinished requests, as last counted before vLLM was told to exit; 0 if they are unknown."""
    unseen: bool = False
    """While stopping: whether vLLM does not report how many requests run."""
    joined: bool = False
    """Whether the first of several hosts has accepted this one."""
    parted: str = ""
    """Which rank of several hosts ended, and why."""
    dismissed: bool = False
    """Whether it is the first host's, which had done what it was asked for."""
    leaving: str = ""
    """Which other rank was asked to stop, and waits for the running requests."""
    expired: float = 0.0
    """Requests whose KV cache was freed before a decoder had read it."""


def get_phase(state: State) -> str:
    """Return the current phase."""
    return state.entered[-1][0]


def enter_phase(state: State, name: str, at: float) -> State:
    """Enter a later phase at `at`. Phases can be skipped; an earlier phase is ignored."""
    if ORDER.index(name) <= ORDER.index(get_phase(state)):
        return state
    return state._replace(entered=(*state.entered, (name, at)))


def is_ready(state: State) -> bool:
    """Tell whether the server is ready for requests."""
    hindered = state.wrong or state.stopping or state.lost or state.parted or state.stalled or state.defect
    return state.healthy and state.verified and not hindered


def why_not(state: State) -> str:
    """Return in one sentence why the server is not ready; empty if it is."""
    if is_ready(state):
        return ""
    fallback = "vLLM no longer answers" if get_phase(state) == READY else f"starting: {get_phase(state)}"
    ended = state.lost or state.parted
    return state.stopping or state.wrong or ended or state.stalled or state.defect or state.trouble or fallback


def is_alive(state: State) -> bool:
    """Tell whether a restart could not help. A server that stops, or that is still starting, is alive."""
    return bool(state.stopping) or not state.dead


def measure_phases(state: State, now: float) -> dict[str, float]:
    """Return the seconds of each phase, of the current one up to `now`; READY is left out."""
    ends = (*(at for _, at in state.entered[1:]), now)
    return {name: end - at for (name, at), end in zip(state.entered, ends, strict=True) if name != READY}


def startup_seconds(state: State, now: float) -> float:
    """Return the seconds until the server was ready for the first time, else up to `now`."""
    return dict(state.entered).get(READY, now)


def observed_phase(processes: Iterable[Process], before: str, *, loaded: bool) -> str:
    """Return the phase, given vLLM's processes, the phase `before`, and whether weights were mapped earlier (`loaded`).

    vLLM titles a process `VLLM::EngineCore` or `VLLM::Worker` once its imports are done; until then a spawned one is
    called after multiprocessing's spawn_main. Workers come last and load weights first.
    """
    process_list = tuple(processes)
    if maps_weights(process_list):
        return LOAD
    if loaded:
        return ENGINE_INIT
    titles = [process.title for process in process_list]
    if any("spawn_main" in title for title in titles) or not any("::Worker" in title for title in titles):
        return before if before in (LOAD, ENGINE_INIT) else IMPORT
    return LOAD


def maps_weights(processes: Iterable[Process]) -> bool:
    """Tell whether any process has a weight file mapped."""
    return any(path.endswith(WEIGHTS) for process in processes for path in process.mapped)
