"""Watches vLLM start, answer and drain, and keeps the shared State. IO.

Each watch runs in its own daemon thread, because a busy server can take long to answer. It writes to the SharedState,
which wakes the supervisor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from entrypoints.core.metrics import parse_samples
from entrypoints.host.processes import is_running, list_session_processes, list_titled_processes
from entrypoints.serve.client import Endpoint, Unreachable, send_request
from entrypoints.serve.known_answer import HTTP_OK, UNANSWERED, WRONG, served_model, verify_answers
from entrypoints.serve.phases import KNOWN_ANSWER, READY, State, enter_phase, get_phase, maps_weights, observed_phase
from entrypoints.serve.progress import WAITING, Progress, watch_progress

LOOK_EVERY = 0.1
"""Seconds between two checks of a starting server; a small model's weights are mapped for only 0.15 s."""
ASK_AGAIN = 1.0
"""Seconds before a comparison without an answer is repeated."""
HEARTBEAT = 5.0
"""Seconds between two health checks of a server that is ready."""
COUNT_EVERY = 0.15
"""Seconds between two counts of running requests. Two in a row must be zero, because a request ends shortly before its
last bytes are sent, and a new request is counted only when it is scheduled."""
ALIVE_EVERY = 0.25
"""Seconds between two checks that vLLM's processes run."""
CENSUS_EVERY = 4
"""Checks between two searches for new processes: a search reads every process of the container."""


class SharedState:
    """The start's State, for all threads; `wake` is called after each change."""

    def __init__(self, began: float, wake: Callable[[], None] = lambda: None) -> None:
        self._began = began
        """When the process began, on the monotonic clock."""
        self._wake = wake
        self._lock = threading.Lock()
        self._state = State()
        self.processes: Mapping[int, str] = {}
        """vLLM's engine cores and workers, by pid, with their titles."""
        self.progress: Progress | None = None
        """What vLLM's counters told; None before they are watched."""

    @property
    def state(self) -> State:
        """The current state."""
        return self._state

    def now(self) -> float:
        """Return seconds since the process began."""
        return time.monotonic() - self._began

    def count(self, leader: int) -> None:
        """Take in vLLM's engine cores and workers that are there now."""
        titles = list_titled_processes(leader)
        with self._lock:
            self.processes = {**self.processes, **titles}

    def enter(self, name: str, at: float | None = None) -> None:
        """Enter a phase, now or `at` a time in seconds, unless it has passed already."""
        with self._lock:
            self._state = enter_phase(self._state, name, self.now() if at is None else at)
        self._wake()

    def note(self, **changes: Any) -> None:
        """Replace fields of the state."""
        with self._lock:
            self._state = self._state._replace(**changes)
        self._wake()


class Watched(NamedTuple):
    """What is watched of a server."""

    endpoint: Endpoint
    leader: int
    """vLLM's main process, and its session."""
    model: str
    """The model's name or folder."""
    patience: float = 0.0
    """Seconds without progress until a server is not ready; 0 does not look."""
    engines: int = 1
    """Data-parallel engines on this host."""


def in_background(shared: SharedState, watch: Callable[..., None], *arguments: Any) -> None:
    """Run a watch in a daemon thread; if it fails, note a defect. Raises RuntimeError without a thread."""

    def run() -> None:
        try:
            watch(*arguments)
        except Exception as error:  # noqa: BLE001 -- unseen, it would leave the last state in place
            from traceback import format_exc

            shared.note(defect=f"{watch.__name__}: {error!r}", trace=format_exc())

    threading.Thread(target=run, daemon=True).start()


def watch_start(shared: SharedState, watched: Watched, profile: Mapping[str, Any]) -> None:
    """Watch vLLM until it is ready, then check its health and progress periodically."""
    endpoint, leader = watched.endpoint, watched.leader
    loaded = False
    while not _is_answering(shared, endpoint):
        processes = list_session_processes(leader)
        shared.enter(observed_phase(processes, get_phase(shared.state), loaded=loaded))
        loaded = loaded or maps_weights(processes)
        time.sleep(LOOK_EVERY)
    shared.enter(KNOWN_ANSWER)
    shared.count(leader)  # all of them are there: from now on, none can end unnoticed
    generates = _verify_until_answered(shared, watched, profile)
    if watched.patience and not shared.state.wrong:
        progress = (shared, endpoint, watched.patience, served_model(endpoint) if generates else "")
        in_background(shared, watch_progress, *progress)
    while not shared.state.wrong:
        _is_answering(shared, endpoint)
        time.sleep(HEARTBEAT)


def watch_headless(shared: SharedState, leader: int) -> None:
    """Watch a rank without a server, until its group tells that it is ready (serve/rank_coordination.py)."""
    loaded = False
    while get_phase(shared.state) != READY:
        processes = list_session_processes(leader)
        shared.enter(observed_phase(processes, get_phase(shared.state), loaded=loaded))
        loaded = loaded or maps_weights(processes)
        time.sleep(LOOK_EVERY)


def watch_processes(shared: SharedState, leader: int) -> None:
    """Note the first of vLLM's engine cores and workers, of any rank, that ends without being asked to.

    vLLM itself looks every five seconds, serves 200 on /health for a part of that time, and exits with 0.
    """
    checks = 0
    while not shared.state.ending:
        ended = next((pid for pid in shared.processes if not is_running(pid)), None)
        if ended is not None and not shared.state.ending:
            shared.note(lost=f"{shared.processes[ended]} (process {ended}) ended without being asked to")
            return
        if checks % CENSUS_EVERY == 0:
            shared.count(leader)
        checks += 1
        time.sleep(ALIVE_EVERY)


def watch_drain(shared: SharedState, endpoint: Endpoint) -> None:
    """Count running requests until there are none, then mark the server as idle."""
    zeros = 0
    while zeros < 2:  # noqa: PLR2004 -- see COUNT_EVERY
        try:
            running = parse_running(send_request(endpoint, "/metrics").text)
        except Unreachable:  # too busy to answer, or exited, which the supervisor notices
            running = max(1, shared.state.running)
        if running is None:
            shared.note(unseen=True)
            return
        if not shared.state.ending:
            shared.note(running=int(running))
        zeros = zeros + 1 if running == 0 else 0
        time.sleep(COUNT_EVERY)
    shared.note(idle=True)


def parse_running(text: str) -> float | None:
    """Sum vLLM's gauges of unfinished requests over all engines; None if there are none (--disable-log-stats). Pure."""
    try:
        values = [sample.value for sample in parse_samples(text, WAITING)]
    except ValueError:
        return None
    return sum(values) if values else None


def _is_answering(shared: SharedState, endpoint: Endpoint) -> bool:
    try:
        healthy = send_request(endpoint, "/health").status == HTTP_OK
    except Unreachable:
        healthy = False
    if healthy != shared.state.healthy:
        shared.note(healthy=healthy)
    return healthy


def _verify_until_answered(shared: SharedState, watched: Watched, profile: Mapping[str, Any]) -> bool:
    """Repeat the comparison until the server answers; then mark it as ready or wrong. Tell whether it generates."""
    question = (watched.endpoint, profile, watched.model, watched.engines)
    verdict = verify_answers(*question)
    while verdict.outcome == UNANSWERED:
        shared.note(trouble=f"known answer: {verdict.reason}")  # /readyz shows it
        time.sleep(ASK_AGAIN)
        verdict = verify_answers(*question)
    if verdict.outcome == WRONG:
        shared.note(wrong=f"wrong answer: {verdict.reason}", notes=verdict.notes)
        return True
    shared.note(verified=True, trouble="", notes=verdict.notes)
    shared.enter(READY)
    return verdict.generates
