"""PID 1: starts vLLM, forwards signals, reaps children, drains, and exits with vLLM's exit code. IO.

Signals are blocked and received one at a time with sigtimedwait. So there are no signal handlers and no signal is lost,
also not for PID 1, for which the kernel drops signals without a handler. Other threads wake this one with SIGCHLD.

A stop after SIGTERM or SIGINT: the server is not ready at once, but vLLM goes on serving until no request runs, because
requests can still be on their way. Then vLLM's main process gets SIGTERM. If requests keep coming for half of the drain
timeout and vLLM drains by itself (--shutdown-timeout, since 0.32), it gets SIGTERM at that time: it finishes running
requests and refuses new ones. A second signal, or the end of the drain timeout, kills the whole session.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from entrypoints.core.errors import NOT_READY, OK, WRONG_ANSWER
from entrypoints.host.processes import children
from entrypoints.serve.phases import IMPORT, READY, SPAWN, is_ready, phase, seconds

if TYPE_CHECKING:
    from socket import socket

    from entrypoints.serve.client import Endpoint
    from entrypoints.serve.watch import Board

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
FORWARDED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
TAKEN = (*STOPS, *FORWARDED, signal.SIGCHLD)

TEARDOWN = 4.0
"""Seconds for vLLM to exit after its last request; at most the drain timeout. Measured on CPUs: 2 to 3."""
FOREVER = 3600.0
KILLED = 128 + signal.SIGKILL
_SET_CHILD_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""


class ServeJob(NamedTuple):
    """What to run and how. Times are in seconds."""

    spawn: Callable[[], int]
    """Starts vLLM as the leader of a session and returns its pid."""
    endpoint: Endpoint
    model: str
    began: float
    """When this process began, on the monotonic clock."""
    status_port: int
    drain_timeout: float
    drains_itself: bool
    """vLLM finishes running requests after SIGTERM."""
    until_ready: bool
    """Stop as soon as vLLM is ready (the verb `warm`)."""
    keep_wrong: bool
    """Keep running, not ready, after a wrong answer, for debugging."""
    digest: str
    cache: str = "miss"
    """Whether the compile cache had this plan: hit or miss."""
    on_ready: Callable[[], None] = lambda: None
    """Called once, when the server becomes ready."""
    on_failure: Callable[[str], None] = lambda _: None
    """Called with the reason if vLLM exited before it was ready, or gave a wrong answer."""


Say = Callable[[str], None]


def supervise(job: ServeJob, profile: Mapping[str, Any], say: Say) -> int:
    """Run vLLM until it exits and return the exit code. Raises HOST before vLLM is started."""
    from entrypoints.serve.ports import listen

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)
    listener = listen(job.status_port)
    port = listener.getsockname()[1]
    planned = time.monotonic()
    leader = job.spawn()
    spawned = time.monotonic()
    gc.enable()
    adopt_orphans()

    from threading import get_ident

    from entrypoints.serve.watch import Board

    main = get_ident()
    board = Board(job.began, wake=lambda: signal.pthread_kill(main, signal.SIGCHLD))
    board.enter(SPAWN, planned - job.began)
    board.enter(IMPORT, spawned - job.began)
    _start_watching(job, board, leader, profile, listener)
    say(f"status on port {port}, vLLM is process {leader}")
    return Supervisor(job, board, leader, say).run()


def adopt_orphans() -> None:
    """Become the parent of vLLM's orphaned processes, as PID 1 always is."""
    if os.getpid() == 1:
        return
    import ctypes

    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(leader: int) -> int | None:
    """Reap every child that has exited; return the leader's wait status if it is one of them."""
    ended = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == leader:
            ended = status
        elif pid == 0:
            return ended


class Stop(NamedTuple):
    """A stop in progress. Times are on the monotonic clock."""

    code: int
    """The exit code if no request is lost."""
    drains: bool
    """Whether requests may be running."""
    term_at: float
    """When vLLM gets SIGTERM, unless it is idle earlier."""
    cut_at: float
    """When the drain timeout ends."""
    kill_at: float


class Supervisor:
    """Supervises one vLLM process from start to exit."""

    def __init__(self, job: ServeJob, board: Board, leader: int, say: Say) -> None:
        self._job = job
        self._board = board
        self._leader = leader
        self._say = say
        self._stop: Stop | None = None
        self._announced = False
        self._terminated_at: float | None = None
        self._killed = False

    def run(self) -> int:
        """Handle signals and changes of the state until vLLM has exited; return the exit code."""
        while True:
            received = signal.sigtimedwait(TAKEN, self._timeout())
            ended = reap(self._leader)
            if ended is not None:
                self._kill_leftovers()
                return self._exit_code(os.waitstatus_to_exitcode(ended))
            if received and received.si_signo != signal.SIGCHLD:
                self._handle(received.si_signo)
            self._update(time.monotonic())

    def _timeout(self) -> float:
        if self._stop is None or self._killed:
            return FOREVER
        due = self._stop.kill_at if self._terminated_at is not None else self._stop.term_at
        return max(0.0, due - time.monotonic())

    def _handle(self, number: int) -> None:
        import signal

        name = signal.Signals(number).name
        if number not in STOPS:
            _signal(self._leader, number)
        elif self._stop is None:
            self._begin_stop(name)
        else:
            self._say(f"{name} again: killing vLLM")
            self._kill()

    def _begin_stop(self, name: str) -> None:
        """Begin a stop because of a signal; running requests get the drain timeout."""
        serving, timeout, now = phase(self._board.state) == READY, self._job.drain_timeout, time.monotonic()
        drain = timeout if serving else 0.0
        cut_at = now + drain
        term_at = now + drain / 2 if self._job.drains_itself else cut_at
        code = NOT_READY if self._job.until_ready else OK
        self._stop = Stop(code, serving, term_at, cut_at, cut_at + min(TEARDOWN, timeout))
        self._board.note(stopping=f"stopping: {name} received")
        self._say(f"{name}: " + (f"draining, at most {timeout:g} s" if serving else "stopping before it was ready"))
        if serving:
            from entrypoints.serve.watch import watch_drain

            _in_background(watch_drain, self._board, self._job.endpoint)

    def _update(self, now: float) -> None:
        """Do what the state and the time require."""
        if self._stop is None:
            self._check_readiness(now)
        if self._stop is None or self._killed:
            return
        state = self._board.state
        early = state.idle or (state.unseen and self._job.drains_itself)
        if self._terminated_at is None and (early or now >= self._stop.term_at):
            self._terminated_at = now
            _signal(self._leader, signal.SIGTERM)
        if self._terminated_at is not None and now >= self._stop.kill_at:
            self._say("vLLM did not exit in time: killing it")
            self._kill()

    def _check_readiness(self, now: float) -> None:
        """Log once that vLLM is ready or wrong, and begin a stop if the job says so."""
        state = self._board.state
        if self._announced or not (state.wrong or is_ready(state)):
            return
        self._announced = True
        for line in (state.wrong,) if state.wrong else self._ready_lines():
            self._say(line)
        if not state.wrong:
            self._job.on_ready()
        if state.wrong and not self._job.keep_wrong:
            self._stop = Stop(WRONG_ANSWER, drains=False, term_at=now, cut_at=now, kill_at=now + TEARDOWN)
        elif self._job.until_ready and not state.wrong:
            self._stop = Stop(OK, drains=False, term_at=now, cut_at=now, kill_at=now + TEARDOWN)

    def _ready_lines(self) -> tuple[str, ...]:
        state, now = self._board.state, self._board.now()
        took = ", ".join(f"{name} {value:.1f}" for name, value in seconds(state, now).items())
        return f"ready after {now:.1f} s ({took})", *(f"known answer: {note}" for note in state.notes)

    def _kill(self) -> None:
        self._killed = True
        _signal(-self._leader, signal.SIGKILL)

    def _kill_leftovers(self) -> None:
        """Kill the processes that vLLM left behind, and then their own orphans."""
        _signal(-self._leader, signal.SIGKILL)
        while left := children(os.getpid()):
            for pid in left:
                _signal(pid, signal.SIGKILL)
            time.sleep(0.01)
            reap(self._leader)

    def _exit_code(self, code: int) -> int:
        """Return the exit code, given vLLM's own (negative for a signal)."""
        passed = 128 - code if code < 0 else code
        stop, state = self._stop, self._board.state
        if stop is None:
            unasked = ", without being asked to stop" if state.healthy and not passed else ""
            self._say(f"vLLM exited with {passed} after {self._board.now():.1f} s, phase {phase(state)}{unasked}")
            if passed and not self._announced:
                self._job.on_failure(f"vLLM exited with {passed}")
            return passed or (NOT_READY if self._job.until_ready or state.healthy else OK)
        if stop.code == WRONG_ANSWER:
            self._job.on_failure("vLLM gave a wrong answer")
        cut = self._killed or (self._terminated_at is not None and stop.cut_at <= self._terminated_at)
        return exit_code(stop, passed, idle=state.idle, cut=cut)


def exit_code(stop: Stop, passed: int, *, idle: bool, cut: bool) -> int:
    """Return the exit code after a requested stop, given vLLM's own code. Pure.

    `idle`: every request had ended. `cut`: requests were still running at the end of the drain timeout or at a second
    signal.
    """
    if not stop.drains or idle:
        return stop.code
    if cut:
        return KILLED
    return OK if passed in (OK, 128 + signal.SIGTERM, 128 + signal.SIGINT) else passed


def _start_watching(job: ServeJob, board: Board, leader: int, profile: Mapping[str, Any], listener: socket) -> None:
    from entrypoints.serve.watch import watch_start

    info = {
        **{name: str(profile[name]) for name in ("variant", "stack", "vllm")},
        "digest": job.digest,
        "cache": job.cache,
    }
    _in_background(_serve_status, listener, board, info)
    _in_background(watch_start, board, job.endpoint, leader, profile, job.model)


def _serve_status(listener: socket, board: Board, info: Mapping[str, str]) -> None:
    """Answer on the status port. asyncio takes a while to import, during which the kernel queues the clients."""
    from entrypoints.serve.status import StatusServer, respond

    StatusServer(listener, lambda path: respond(path, board.state, info, board.now())).run()


def _in_background(target: Callable[..., None], *arguments: Any) -> None:
    from threading import Thread

    Thread(target=target, args=arguments, daemon=True).start()


def _signal(pid: int, number: int) -> None:
    """Send a signal to a process, or to a process group if negative; do nothing if it no longer exists."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
