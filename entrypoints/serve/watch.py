"""Watches vLLM start, answer and drain, and keeps the shared State. IO.

Each watch runs in its own daemon thread, because a busy server can take long to answer. It writes to the Board, which
wakes the supervisor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from entrypoints.host.processes import session
from entrypoints.serve.client import Endpoint, Unreachable, ask
from entrypoints.serve.health import HTTP_OK, UNANSWERED, WRONG, verify_answers
from entrypoints.serve.phases import KNOWN_ANSWER, READY, State, enter, maps_weights, observed_phase, phase

LOOK_EVERY = 0.1
"""Seconds between two checks of a starting server; a small model's weights are mapped for only 0.15 s."""
ASK_AGAIN = 1.0
"""Seconds before a comparison without an answer is repeated."""
HEARTBEAT = 5.0
"""Seconds between two health checks of a server that is ready."""
COUNT_EVERY = 0.15
"""Seconds between two counts of running requests. Two in a row must be zero, because a request ends shortly before its
last bytes are sent, and a new request is counted only when it is scheduled."""

RUNNING = ("vllm:num_requests_running", "vllm:num_requests_waiting")
"""vLLM's gauges of unfinished requests."""


class Board:
    """The start's State, shared between threads; `wake` is called after each change."""

    def __init__(self, began: float, wake: Callable[[], None] = lambda: None) -> None:
        self._began = began
        """When the process began, on the monotonic clock."""
        self._wake = wake
        self._lock = threading.Lock()
        self._state = State()

    @property
    def state(self) -> State:
        """The current state."""
        return self._state

    def now(self) -> float:
        """Return seconds since the process began."""
        return time.monotonic() - self._began

    def enter(self, name: str, at: float | None = None) -> None:
        """Enter a phase, now or `at` a time in seconds, unless it has passed already."""
        with self._lock:
            self._state = enter(self._state, name, self.now() if at is None else at)
        self._wake()

    def note(self, **changes: Any) -> None:
        """Replace fields of the state."""
        with self._lock:
            self._state = self._state._replace(**changes)
        self._wake()


def watch_start(board: Board, endpoint: Endpoint, leader: int, profile: Mapping[str, Any], model: str) -> None:
    """Watch vLLM (the session of `leader`) until it is ready, then check its health periodically."""
    loaded = False
    while not _answers(board, endpoint):
        processes = session(leader)
        board.enter(observed_phase(processes, phase(board.state), loaded=loaded))
        loaded = loaded or maps_weights(processes)
        time.sleep(LOOK_EVERY)
    board.enter(KNOWN_ANSWER)
    _compare(board, endpoint, profile, model)
    while not board.state.wrong:
        _answers(board, endpoint)
        time.sleep(HEARTBEAT)


def watch_drain(board: Board, endpoint: Endpoint) -> None:
    """Count running requests until there are none, then mark the server as idle."""
    zeros = 0
    while zeros < 2:  # noqa: PLR2004 -- see COUNT_EVERY
        try:
            running = parse_running(ask(endpoint, "/metrics").body.decode(errors="replace"))
        except Unreachable:  # too busy to answer, or exited, which the supervisor notices
            running = 1
        if running is None:
            board.note(unseen=True)
            return
        zeros = zeros + 1 if running == 0 else 0
        time.sleep(COUNT_EVERY)
    board.note(idle=True)


def parse_running(text: str) -> float | None:
    """Sum vLLM's gauges of unfinished requests over all engines; None if there are none (--disable-log-stats). Pure."""
    values = [line.rpartition(" ")[2] for line in text.splitlines() if line.partition("{")[0] in RUNNING]
    try:
        return sum(float(value) for value in values) if values else None
    except ValueError:
        return None


def _answers(board: Board, endpoint: Endpoint) -> bool:
    try:
        healthy = ask(endpoint, "/health").status == HTTP_OK
    except Unreachable:
        healthy = False
    if healthy != board.state.healthy:
        board.note(healthy=healthy)
    return healthy


def _compare(board: Board, endpoint: Endpoint, profile: Mapping[str, Any], model: str) -> None:
    """Repeat the comparison until the server answers; then mark it as ready or wrong."""
    verdict = verify_answers(endpoint, profile, model)
    while verdict.outcome == UNANSWERED:
        board.note(trouble=f"known answer: {verdict.reason}")  # /readyz shows it
        time.sleep(ASK_AGAIN)
        verdict = verify_answers(endpoint, profile, model)
    if verdict.outcome == WRONG:
        board.note(wrong=f"wrong answer: {verdict.reason}", notes=verdict.notes)
        return
    board.note(verified=True, trouble="", notes=verdict.notes)
    board.enter(READY)
