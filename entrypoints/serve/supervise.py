"""PID 1: starts vLLM, forwards signals, reaps children, drains, and tells why the server ended. IO.

Signals are blocked and received one at a time with sigtimedwait. So there are no signal handlers and no signal is lost,
also not for PID 1, for which the kernel drops signals without a handler. Other threads wake this one with SIGCHLD.

A stop after SIGTERM: the server is not ready at once, but vLLM goes on serving for the drain pause, until balancers
have noticed. Then drydock's middleware in vLLM refuses new requests with 503, and when no request runs, vLLM's main
process gets SIGTERM. Without the middleware, a vLLM that drains by itself (--shutdown-timeout, since 0.32) gets it
after half of the drain timeout at the latest. A second signal, or the end of the drain timeout, kills all processes.
SIGINT is a person's, for whom no balancer needs time: it has no pause.

One of several hosts that serve together joins the others before it starts vLLM, and ends with them
(serve/together.py). A host without a server, when it is asked to stop, waits for the first host to end.

Nothing is restarted here. A server that makes no progress becomes not ready, then not alive, and the container's
runtime decides (serve/progress.py). When one of vLLM's processes is lost, the server ends.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from entrypoints.core.errors import (
    GROUP_ENDED,
    HOST,
    INTERNAL,
    NOT_READY,
    OK,
    STALLED,
    WRONG_ANSWER,
    EntrypointError,
)
from entrypoints.host.processes import children
from entrypoints.serve.ending import TEARDOWN, TELL, End, Stop, asked_end, lost_stop, stop_at, unasked_end
from entrypoints.serve.phases import IMPORT, JOIN, READY, SPAWN, is_ready, phase, seconds

if TYPE_CHECKING:
    from socket import socket

    from entrypoints.serve.client import Endpoint
    from entrypoints.serve.draining import DrainFile
    from entrypoints.serve.group import Member
    from entrypoints.serve.phases import State
    from entrypoints.serve.together import Alone, Follower, Leader
    from entrypoints.serve.watch import Board

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
FORWARDED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
TAKEN = (*STOPS, *FORWARDED, signal.SIGCHLD)

MORE_PROCESSES = "raise docker's --pids-limit, or Kubernetes' podPidsLimit; vLLM needs some hundred threads"
FOREVER = 3600.0
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
    drain_pause: float
    """How long new requests are served after SIGTERM; at most half of the drain timeout."""
    stall: float
    """How long nothing may make progress until the server is not ready; 0 does not look."""
    drains_itself: bool
    """vLLM finishes running requests after SIGTERM."""
    refuses: bool
    """drydock's middleware is loaded."""
    drain_file: DrainFile
    until_ready: bool
    """Stop as soon as vLLM is ready (the verb `warm`)."""
    keep_wrong: bool
    """Keep running, not ready, after a wrong answer, for debugging."""
    digest: str
    cache: str = "miss"
    """Whether the compile cache had this plan: hit or miss."""
    on_ready: Callable[[], None] = lambda: None
    """Called once, when the server becomes ready."""
    engines: int = 1
    """Data-parallel engines on this host."""
    prints: bool = False
    """Whether vLLM was only asked to print its help."""
    limits: Callable[[], str] = lambda: ""
    """Tells which limit of the container was enforced since the start; empty if none was."""
    member: Member | None = None
    """Which of several hosts this is; None on one host."""

    @property
    def headless(self) -> bool:
        """Whether vLLM has no server here."""
        return self.member is not None and self.member.headless


Say = Callable[[str], None]


def supervise(job: ServeJob, profile: Mapping[str, Any], say: Say) -> End:
    """Run vLLM until it exits and return why. Raises HOST if there is no port, process or thread for it."""
    from entrypoints.serve.ports import listen

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)
    listener = listen(job.status_port)
    port = listener.getsockname()[1]
    if job.member and job.member.rank:
        return _after_joining(job, profile, say, listener)
    planned = time.monotonic()
    leader = job.spawn()
    spawned = time.monotonic()
    gc.enable()
    adopt_orphans()
    board = _board(job)
    board.enter(SPAWN, planned - job.began)
    board.enter(IMPORT, spawned - job.began)
    try:
        group = _start_telling(job, board, profile, listener)
        _start_watching(job, board, leader, profile)
    except EntrypointError:
        _signal(-leader, signal.SIGKILL)
        raise
    say(f"status on port {port}, vLLM is process {leader}")
    return _until_ended(job, board, leader, say, group)


def _after_joining(job: ServeJob, profile: Mapping[str, Any], say: Say, listener: socket) -> End:
    """Join the first host, then run vLLM until it exits and return why. Raises HOST."""
    gc.enable()
    adopt_orphans()
    board = _board(job)
    group = _start_telling(job, board, profile, listener)
    board.enter(JOIN)
    say(f"status on port {listener.getsockname()[1]}, joining rank 0 at {job.member.leader if job.member else ''}")
    ended = _join(job, board, say)
    if ended:
        return group.conclude(ended, asked=True)
    board.enter(SPAWN)
    leader = job.spawn()
    board.enter(IMPORT)
    try:
        _start_watching(job, board, leader, profile)
    except EntrypointError:
        _signal(-leader, signal.SIGKILL)
        raise
    say(f"rank 0 has accepted this rank, vLLM is process {leader}")
    return _until_ended(job, board, leader, say, group)


def _join(job: ServeJob, board: Board, say: Say) -> End | None:
    """Wait until the first host accepts this one; return why it does not."""
    told = ""
    while not board.state.joined:
        received = signal.sigtimedwait(TAKEN, FOREVER)
        state = board.state
        if received and received.si_signo in STOPS:
            code, name = NOT_READY if job.until_ready else OK, signal.Signals(received.si_signo).name
            return End(code, f"{name} received: no request was running")
        if state.parted or state.defect:
            return End(GROUP_ENDED, state.parted) if state.parted else End(INTERNAL, state.defect)
        reason = state.trouble.partition(": ")[2]
        if reason and reason != told:
            told = reason
            say(f"not ready: {state.trouble}")
    return None


def _board(job: ServeJob) -> Board:
    from threading import get_ident

    from entrypoints.serve.watch import Board

    main = get_ident()
    return Board(job.began, wake=lambda: signal.pthread_kill(main, signal.SIGCHLD))


def _until_ended(job: ServeJob, board: Board, leader: int, say: Say, group: Alone | Leader | Follower) -> End:
    supervisor = Supervisor(job, board, leader, say)
    try:
        end = supervisor.run()
    except BaseException:  # a defect: vLLM must not go on without a supervisor, and hold the devices
        _signal(-leader, signal.SIGKILL)
        raise
    return group.conclude(end, asked=supervisor.asked)


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


class Supervisor:
    """Supervises one vLLM process from start to exit."""

    def __init__(self, job: ServeJob, board: Board, leader: int, say: Say) -> None:
        self._job = job
        self._board = board
        self._leader = leader
        self._say = say
        self._stop: Stop | None = None
        self.asked = False
        """Whether a signal asked this process to stop."""
        self._announced = False
        self._stalled = False
        self._expired = 0.0
        self._refusing = False
        self._terminated_at: float | None = None
        self._killed = False

    def run(self) -> End:
        """Handle signals and changes of the state until vLLM has exited; return why it did."""
        while True:
            received = signal.sigtimedwait(TAKEN, self._timeout())
            ended = reap(self._leader)
            if ended is not None:
                self._kill_leftovers()
                self._job.drain_file.remove()
                return self._end(os.waitstatus_to_exitcode(ended))
            if received and received.si_signo != signal.SIGCHLD:
                self._handle(received.si_signo)
            self._update(time.monotonic())

    def _timeout(self) -> float:
        if self._stop is None or self._killed:
            return FOREVER
        due = self._stop.kill_at if self._terminated_at is not None else self._stop.term_at
        due = min(due, self._stop.refuse_at) if self._stop.drains and not self._refusing else due
        return max(0.0, due - time.monotonic())

    def _handle(self, number: int) -> None:
        import signal

        name = signal.Signals(number).name
        if number not in STOPS:
            _signal(self._leader, number)
        elif self._stop is None:
            self.asked = True
            self._begin_stop(f"{name} received", name, pauses=number == signal.SIGTERM)
        elif self._board.state.leaving and not self.asked:  # all hosts are stopped, another one was the first
            self.asked = True
            self._stop = self._stop._replace(code=NOT_READY if self._job.until_ready else OK)
            self._say(f"{name} during a stop that rank 0 has begun for another rank")
        else:
            self._say(f"{name} during a stop: killing vLLM")
            self._kill()

    def _begin_stop(self, cause: str, name: str, *, pauses: bool) -> None:
        """Begin a stop because of a signal, here or at another rank; running requests get the drain timeout."""
        state, now = self._board.state, time.monotonic()
        if phase(state) == READY and not state.stalled:
            self._stop = self._drain(now, cause, self._job.drain_pause if pauses else 0.0)
            self._mark(self._job.drain_file.leave)
            told = f"draining, at most {self._job.drain_timeout:g} s"
        else:  # a server that makes no progress would not finish a request either
            code = NOT_READY if self._job.until_ready else STALLED if state.stalled else OK
            self._stop = stop_at(now, code, cause)
            told = "stopping a server without progress" if state.stalled else "stopping before it was ready"
        self._board.note(stopping=f"stopping: {cause}")
        self._say(f"{name}: {told}")

    def _drain(self, now: float, cause: str, pause: float) -> Stop:
        timeout = self._job.drain_timeout
        refuse_at, cut_at = now + min(pause, timeout / 2), now + timeout
        half = self._job.drains_itself and not (self._job.refuses or self._job.headless)
        code = NOT_READY if self._job.until_ready else OK
        term_at = max(refuse_at, now + timeout / 2) if half else cut_at
        return Stop(code, True, refuse_at, term_at, cut_at, cut_at + min(TEARDOWN, timeout), cause)

    def _refuse(self) -> None:
        """Refuse new requests, and look for the end of the running ones."""
        from entrypoints.serve.watch import watch_drain

        self._refusing = True
        self._mark(self._job.drain_file.refuse)
        if self._job.headless:  # it sees no requests: it waits for rank 0
            return
        try:
            _in_background(self._board, watch_drain, self._board, self._job.endpoint)
        except EntrypointError as error:
            self._say(f"WARN running requests are not counted: {error.message}")

    def _mark(self, change: Callable[[], None]) -> None:
        """Tell the middleware of a change."""
        try:
            change()
        except OSError as error:
            self._say(f"WARN {self._job.drain_file.path}: {error.strerror}; vLLM does not refuse new requests")

    def _update(self, now: float) -> None:
        """Do what the state and the time require."""
        if self._stop is None:
            self._check_readiness(now)
        if self._stop is None or self._killed:
            return
        self._end_with_group(now)
        if self._stop.drains and not self._refusing and now >= self._stop.refuse_at:
            self._refuse()
        state = self._board.state
        if self._stop.drains and state.lost and self._terminated_at is None:
            self._say(f"{state.lost}: stopping")
            self._stop = lost_stop(now, state, ready=True)
        early = state.idle or (state.unseen and self._job.drains_itself)
        if self._terminated_at is None and (early or now >= self._stop.term_at):
            self._terminated_at = now
            self._board.note(ending=True)
            _signal(self._leader, signal.SIGTERM)
        if self._terminated_at is not None and now >= self._stop.kill_at:
            self._say("vLLM did not exit in time: killing it")
            self._kill()

    def _check_readiness(self, now: float) -> None:
        """Log once that vLLM is ready or wrong, and begin a stop if the job says so, or a process is lost."""
        state = self._board.state
        if state.lost:
            self._say(f"{state.lost}: stopping")
            self._stop = lost_stop(now, state, ready=phase(state) == READY)
            return
        if state.parted:
            self._say(f"{state.parted}: stopping")
            self._stop = stop_at(now, GROUP_ENDED, state.parted, TELL)
            return
        if state.leaving:
            self._begin_stop(state.leaving, "another rank", pauses=True)
            self._stop = self._stop and self._stop._replace(code=GROUP_ENDED)
            return
        if state.defect:
            self._stop_unwatched(now, state)
            return
        self._tell_progress(state.stalled)
        self._tell_expired(state.expired)
        if self._announced or not (state.wrong or is_ready(state)):
            return
        self._announced = True
        for line in (state.wrong,) if state.wrong else self._ready_lines():
            self._say(line)
        if not state.wrong:
            self._job.on_ready()
        if state.wrong and not self._job.keep_wrong:
            self._stop = stop_at(now, WRONG_ANSWER, "wrong answer")
        elif self._job.until_ready and not state.wrong and not self._job.headless:
            self._stop = stop_at(now, OK, "ready, as asked for")

    def _end_with_group(self, now: float) -> None:
        """Cut a drain short after another rank has ended, with which every request has."""
        parted = self._board.state.parted
        if parted and self._stop and self._stop.drains and self._terminated_at is None and not self._board.state.idle:
            self._say(f"{parted}: stopping")
            self._stop = stop_at(now, GROUP_ENDED, parted, TELL)

    def _stop_unwatched(self, now: float, state: State) -> None:
        """Begin a stop because a watch of drydock failed; running requests get the drain timeout."""
        cause = f"a defect of drydock's entrypoint, {state.defect}"
        self._say(f"{state.trace}{cause}: stopping")
        if phase(state) == READY:
            self._stop = self._drain(now, cause, self._job.drain_pause)._replace(code=INTERNAL)
            self._mark(self._job.drain_file.leave)
        else:
            self._stop = stop_at(now, INTERNAL, cause)
        self._board.note(stopping=f"stopping: {cause}")

    def _tell_progress(self, stalled: str) -> None:
        """Log once that vLLM makes no progress, or makes it again."""
        if bool(stalled) != self._stalled:
            self._stalled = bool(stalled)
            self._say(f"not ready: {stalled}" if stalled else "ready again: vLLM makes progress")

    def _tell_expired(self, expired: float) -> None:
        """Log each rise of the number of requests whose KV cache was freed before it was read."""
        if expired > self._expired:
            self._say(
                f"WARN the KV cache of {expired - self._expired:g} requests expired before a decode server read it "
                f"({expired:g} in all): their answers may be wrong"
            )
        self._expired = expired

    def _ready_lines(self) -> tuple[str, ...]:
        state, now = self._board.state, self._board.now()
        took = ", ".join(f"{name} {value:.1f}" for name, value in seconds(state, now).items())
        return f"ready after {now:.1f} s ({took})", *(f"known answer: {note}" for note in state.notes)

    def _kill(self) -> None:
        self._killed = True
        self._board.note(ending=True)
        _signal(-self._leader, signal.SIGKILL)

    def _kill_leftovers(self) -> None:
        """Kill the processes that vLLM left behind, and then their own orphans."""
        _signal(-self._leader, signal.SIGKILL)
        while left := children(os.getpid()):
            for pid in left:
                _signal(pid, signal.SIGKILL)
            time.sleep(0.01)
            reap(self._leader)

    def _end(self, code: int) -> End:
        """Return the end, given vLLM's own exit code (negative for a signal)."""
        passed = 128 - code if code < 0 else code
        stop, state, limits = self._stop, self._board.state, self._job.limits()
        if state.parted and (stop is None or stop.cause == state.parted):
            return End(OK if self._job.until_ready and state.dismissed else GROUP_ENDED, state.parted)
        if self._job.headless and self.asked:
            state = state._replace(idle=not self._killed)  # the requests are at rank 0
        asked = self._killed or self._terminated_at is not None
        lost_requests = stop is not None and stop.drains and not state.idle and not asked
        if stop is None or lost_requests or (state.lost and stop.cause == state.lost):
            until_ready, ready, prints = self._job.until_ready, self._announced, self._job.prints
            return unasked_end(passed, state, limits, until_ready=until_ready, ready=ready, prints=prints)
        cut = self._killed or (self._terminated_at is not None and stop.cut_at <= self._terminated_at)
        return asked_end(stop, passed, state, limits, cut=cut)


def _start_telling(
    job: ServeJob, board: Board, profile: Mapping[str, Any], listener: socket
) -> Alone | Leader | Follower:
    """Answer on the status port, and talk with the other hosts. Raises HOST."""
    from entrypoints.serve.together import Alone, Follower, Leader

    info = {
        **{name: str(profile[name]) for name in ("variant", "stack", "vllm")},
        "digest": job.digest,
        "cache": job.cache,
    }
    member = job.member
    group = Alone(board) if member is None else Follower(member, board) if member.rank else Leader(member, board)
    _in_background(board, _serve_status, listener, board, info, group)
    if not isinstance(group, Alone):
        _in_background(board, group.watch)
    return group


def _start_watching(job: ServeJob, board: Board, leader: int, profile: Mapping[str, Any]) -> None:
    from entrypoints.serve.watch import Watched, watch_headless, watch_processes, watch_start

    watched = Watched(job.endpoint, leader, job.model, job.stall, job.engines)
    if job.headless:
        _in_background(board, watch_headless, board, leader)
    else:
        _in_background(board, watch_start, board, watched, profile)
    _in_background(board, watch_processes, board, leader)


def _serve_status(listener: socket, board: Board, info: Mapping[str, str], group: Alone | Leader | Follower) -> None:
    """Answer on the status port. asyncio takes a while to import, during which the kernel queues the clients."""
    from entrypoints.serve.status import GROUP, Response, StatusServer, respond

    def answer(path: str) -> Response:
        return group.answer() if path == GROUP else respond(path, board.state, info, board.now())

    StatusServer(listener, answer, take=getattr(group, "take", None)).run()


def _in_background(board: Board, target: Callable[..., None], *arguments: Any) -> None:
    """Run a function in a daemon thread. Raises HOST."""
    from entrypoints.serve.watch import in_background

    try:
        in_background(board, target, *arguments)
    except RuntimeError as error:  # the kernel refused it
        raise EntrypointError(
            HOST, f"{error}: the container's limit of processes is too low", MORE_PROCESSES
        ) from error


def _signal(pid: int, number: int) -> None:
    """Send a signal to a process, or to a process group if negative; do nothing if it no longer exists."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
