"""Starts vLLM under a supervisor: the status port, the watches, and the other hosts, which are joined first. IO."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from entrypoints.core.errors import GROUP_ENDED, INTERNAL, NOT_READY, OK, EntrypointError
from entrypoints.serve.ending import End
from entrypoints.serve.job import FOREVER, STOPS, TAKEN, Say, ServeJob, in_background, send
from entrypoints.serve.phases import IMPORT, JOIN, SPAWN
from entrypoints.serve.supervise import Supervisor

if TYPE_CHECKING:
    from socket import socket

    from entrypoints.serve.together import Alone, Follower, Leader
    from entrypoints.serve.watch import Board

_SET_CHILD_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""


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
        send(-leader, signal.SIGKILL)
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
        send(-leader, signal.SIGKILL)
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
        send(-leader, signal.SIGKILL)
        raise
    return group.conclude(end, asked=supervisor.asked)


def adopt_orphans() -> None:
    """Become the parent of vLLM's orphaned processes, as PID 1 always is."""
    if os.getpid() == 1:
        return
    import ctypes

    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


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
    in_background(board, _serve_status, listener, board, info, group)
    if not isinstance(group, Alone):
        in_background(board, group.watch)
    return group


def _start_watching(job: ServeJob, board: Board, leader: int, profile: Mapping[str, Any]) -> None:
    from entrypoints.serve.watch import Watched, watch_headless, watch_processes, watch_start

    watched = Watched(job.endpoint, leader, job.model, job.stall, job.engines)
    if job.headless:
        in_background(board, watch_headless, board, leader)
    else:
        in_background(board, watch_start, board, watched, profile)
    in_background(board, watch_processes, board, leader)


def _serve_status(listener: socket, board: Board, info: Mapping[str, str], group: Alone | Leader | Follower) -> None:
    """Answer on the status port. asyncio takes a while to import, during which the kernel queues the clients."""
    from entrypoints.serve.status import GROUP, Response, StatusServer, respond

    def answer(path: str) -> Response:
        return group.answer() if path == GROUP else respond(path, board.state, info, board.now())

    StatusServer(listener, answer, take=getattr(group, "take", None)).run()
