"""PID 1: starts vLLM, forwards signals, reaps, drains, and ends with vLLM's exit code. IO.

Signals are blocked and taken one at a time with sigtimedwait, so that there are no handlers and nothing is missed,
PID 1 included, for which the kernel drops signals that nobody handles. The watches' threads wake it with SIGCHLD.

How a stop goes, after SIGTERM or SIGINT: not ready at once; vLLM goes on serving, so that requests still on their way
to this server are answered, until no request runs; then SIGTERM to vLLM's main process. If requests keep coming for
half of the drain timeout and vLLM drains by itself (--shutdown-timeout, found in 0.32), it gets SIGTERM then: it
finishes what runs and refuses what comes. A second signal, or the end of the time, kills the whole session.
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
    from entrypoints.serve.client import Endpoint
    from entrypoints.serve.watch import Board

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
FORWARDED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
TAKEN = (*STOPS, *FORWARDED, signal.SIGCHLD)

TEARDOWN = 4.0
"""Seconds that vLLM gets to end once its requests have: measured 2 to 3 on cpu. Less if the drain timeout is less."""
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
    """Stop as soon as it is ready (warm)."""
    keep_wrong: bool
    """Stay, not ready, after a wrong answer, so that somebody can look."""
    digest: str
    cache: str = "miss"
    """Whether compiled code was there: hit or miss."""
    on_ready: Callable[[], None] = lambda: None
    """Called once, when requests may come."""
    on_failure: Callable[[str], None] = lambda _: None
    """Called with what happened when vLLM ended unasked before it was ready, or answered wrongly."""


Say = Callable[[str], None]


def supervise(job: ServeJob, profile: Mapping[str, Any], say: Say) -> int:
    """Run vLLM to its end and return the exit code. Raises HOST, before the start."""
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
    """Become the parent of vLLM's orphans, as PID 1 is by nature."""
    if os.getpid() == 1:
        return
    import ctypes

    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(leader: int) -> int | None:
    """Wait for every child that has ended; return the leader's wait status when it is one of them."""
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
    """A stop under way. Times are on the monotonic clock."""

    code: int
    """What to exit with when no request is lost."""
    drains: bool
    """Requests may be running."""
    term_at: float
    """When vLLM gets SIGTERM, unless it is idle before."""
    cut_at: float
    """When requests that still run have had their time."""
    kill_at: float


class Supervisor:
    """One vLLM, from its start to its end."""

    def __init__(self, job: ServeJob, board: Board, leader: int, say: Say) -> None:
        self._job = job
        self._board = board
        self._leader = leader
        self._say = say
        self._stop: Stop | None = None
        self._announced = False
        self._termed: float | None = None
        self._killed = False

    def run(self) -> int:
        """Wait for signals and for what the watches find, until vLLM has ended; return the exit code."""
        while True:
            received = signal.sigtimedwait(TAKEN, self._patience())
            ended = reap(self._leader)
            if ended is not None:
                self._sweep()
                return self._conclude(os.waitstatus_to_exitcode(ended))
            if received and received.si_signo != signal.SIGCHLD:
                self._handle(received.si_signo)
            self._act(time.monotonic())

    def _patience(self) -> float:
        if self._stop is None or self._killed:
            return FOREVER
        due = self._stop.kill_at if self._termed is not None else self._stop.term_at
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
        """Stop because a signal asks for it; running requests get their time."""
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

    def _act(self, now: float) -> None:
        """Do what is due."""
        if self._stop is None:
            self._look_at_readiness(now)
        if self._stop is None or self._killed:
            return
        state = self._board.state
        early = state.idle or (state.unseen and self._job.drains_itself)
        if self._termed is None and (early or now >= self._stop.term_at):
            self._termed = now
            _signal(self._leader, signal.SIGTERM)
        if self._termed is not None and now >= self._stop.kill_at:
            self._say("vLLM did not end in time: killing it")
            self._kill()

    def _look_at_readiness(self, now: float) -> None:
        """Say it once when vLLM is ready or wrong, and stop if that is what the job says."""
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

    def _sweep(self) -> None:
        """End what vLLM left behind; what those processes leave behind comes to us in turn."""
        _signal(-self._leader, signal.SIGKILL)
        while left := children(os.getpid()):
            for pid in left:
                _signal(pid, signal.SIGKILL)
            time.sleep(0.01)
            reap(self._leader)

    def _conclude(self, code: int) -> int:
        """Return the exit code, given vLLM's own (negative for a signal)."""
        passed = 128 - code if code < 0 else code
        stop, state = self._stop, self._board.state
        if stop is None:
            unasked = ", though nobody asked it to" if state.healthy and not passed else ""
            self._say(f"vLLM ended with {passed} after {self._board.now():.1f} s, phase {phase(state)}{unasked}")
            if passed and not self._announced:
                self._job.on_failure(f"vLLM ended with {passed}")
            return passed or (NOT_READY if self._job.until_ready or state.healthy else OK)
        if stop.code == WRONG_ANSWER:
            self._job.on_failure("vLLM answered wrongly")
        cut = self._killed or (self._termed is not None and stop.cut_at <= self._termed)
        return exit_code(stop, passed, idle=state.idle, cut=cut)


def exit_code(stop: Stop, passed: int, *, idle: bool, cut: bool) -> int:
    """Return what to exit with after a stop that was asked for, given vLLM's own code. Pure.

    `idle`: every request had ended; `cut`: some had not when their time was over or a second signal came.
    """
    if not stop.drains or idle:
        return stop.code
    if cut:
        return KILLED
    return OK if passed in (OK, 128 + signal.SIGTERM, 128 + signal.SIGINT) else passed


def _start_watching(job: ServeJob, board: Board, leader: int, profile: Mapping[str, Any], listener: Any) -> None:
    from entrypoints.serve.status import StatusServer, respond
    from entrypoints.serve.watch import watch_start

    info = {
        **{name: str(profile[name]) for name in ("variant", "stack", "vllm")},
        "digest": job.digest,
        "cache": job.cache,
    }
    server = StatusServer(listener, lambda path: respond(path, board.state, info, board.now()))
    _in_background(server.run)
    _in_background(watch_start, board, job.endpoint, leader, profile, job.model)


def _in_background(target: Callable[..., None], *arguments: Any) -> None:
    from threading import Thread

    Thread(target=target, args=arguments, daemon=True).start()


def _signal(pid: int, number: int) -> None:
    """Send a signal to a process, or to a process group if negative; one that is gone needs none."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
