"""Starts vLLM under a supervisor: the status port, the watches, and the other hosts, which are joined first. IO."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from entrypoints.core.errors import GROUP_ENDED, HOST, INTERNAL, NOT_READY, OK, EntrypointError
from entrypoints.serve.exit_status import TEARDOWN, End
from entrypoints.serve.job import FOREVER, MORE_PROCESSES, STOPS, TAKEN, Say, ServeJob, in_background, send_signal
from entrypoints.serve.phases import IMPORT, JOIN, SPAWN
from entrypoints.serve.supervise import Supervisor

if TYPE_CHECKING:
    from socket import socket

    from entrypoints.serve.rank_coordination import Alone, Follower, Leader
    from entrypoints.serve.watch import SharedState

LOOK_EVERY = 0.1
"""Seconds between two looks whether vLLM has ended after its supervisor."""
_SET_CHILD_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""


def supervise_server(job: ServeJob, profile: Mapping[str, Any], say: Say) -> End:
    """Run vLLM until it exits and return why. Raises HOST if there is no port, process or thread for it."""
    from entrypoints.serve.ports import listen_on_status_port

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)
    listener = listen_on_status_port(job.status_port)
    port = listener.getsockname()[1]
    if job.member and job.member.rank:
        return _after_joining(job, profile, say, listener)
    planned = time.monotonic()
    vllm_pid = job.spawn()
    spawned = time.monotonic()
    gc.enable()
    adopt_orphans()
    shared = _shared_state(job)
    shared.enter(SPAWN, planned - job.began)
    shared.enter(IMPORT, spawned - job.began)
    try:
        start_parent_watch(vllm_pid)
        group = _start_telling(job, shared, profile, listener, say)
        _start_watching(job, shared, vllm_pid, profile)
    except EntrypointError:
        send_signal(-vllm_pid, signal.SIGKILL)
        raise
    say(f"status on port {port}, vLLM is process {vllm_pid}")
    return _until_ended(job, shared, vllm_pid, say, group)


def _after_joining(job: ServeJob, profile: Mapping[str, Any], say: Say, listener: socket) -> End:
    """Join the first host, then run vLLM until it exits and return why. Raises HOST."""
    gc.enable()
    adopt_orphans()
    shared = _shared_state(job)
    group = _start_telling(job, shared, profile, listener, say)
    shared.enter(JOIN)
    say(f"status on port {listener.getsockname()[1]}, joining rank 0 at {job.member.leader if job.member else ''}")
    ended = _join_first_host(job, shared, say)
    if ended:
        return group.conclude(ended, requested=True)
    shared.enter(SPAWN)
    vllm_pid = job.spawn()
    shared.enter(IMPORT)
    try:
        start_parent_watch(vllm_pid)
        _start_watching(job, shared, vllm_pid, profile)
    except EntrypointError:
        send_signal(-vllm_pid, signal.SIGKILL)
        raise
    say(f"rank 0 has accepted this rank, vLLM is process {vllm_pid}")
    return _until_ended(job, shared, vllm_pid, say, group)


def _join_first_host(job: ServeJob, shared: SharedState, say: Say) -> End | None:
    """Wait until the first host accepts this one; return why it does not."""
    last_reason = ""
    while not shared.state.joined:
        received = signal.sigtimedwait(TAKEN, FOREVER)
        state = shared.state
        if received and received.si_signo in STOPS:
            code, name = NOT_READY if job.until_ready else OK, signal.Signals(received.si_signo).name
            return End(code, f"{name} received: no request was running")
        if state.parted or state.defect:
            return End(GROUP_ENDED, state.parted) if state.parted else End(INTERNAL, state.defect)
        reason = state.trouble.partition(": ")[2]
        if reason and reason != last_reason:
            last_reason = reason
            say(f"not ready: {state.trouble}")
    return None


def _shared_state(job: ServeJob) -> SharedState:
    from threading import get_ident

    from entrypoints.serve.watch import SharedState

    main = get_ident()
    return SharedState(job.began, wake=lambda: signal.pthread_kill(main, signal.SIGCHLD))


def _until_ended(job: ServeJob, shared: SharedState, vllm_pid: int, say: Say, group: Alone | Leader | Follower) -> End:
    supervisor = Supervisor(job, shared, vllm_pid, say)
    try:
        end = supervisor.run()
    except BaseException:  # a defect: vLLM must not go on without a supervisor, and hold the devices
        send_signal(-vllm_pid, signal.SIGKILL)
        raise
    return group.conclude(end, requested=supervisor.stop_requested)


def adopt_orphans() -> None:
    """Become the parent of vLLM's orphaned processes, as PID 1 always is."""
    if os.getpid() == 1:
        return
    import ctypes

    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start_parent_watch(vllm_pid: int) -> None:
    """Start a process that ends vLLM if this one is killed. Raises HOST.

    A parent-death signal would only reach vLLM's main process, and would need ctypes before vLLM starts. PID 1 needs
    neither: the kernel ends every process of its container with it.
    """
    if os.getpid() == 1:
        return
    reading, _ = os.pipe()  # the other end is closed by the end of this process
    try:
        child = os.fork()
    except OSError as error:
        raise EntrypointError(HOST, f"no process can be started: {error.strerror}", MORE_PROCESSES) from error
    if child:
        os.close(reading)
        return
    try:
        _end_after_parent(reading, vllm_pid)
    finally:
        os._exit(0)


def _end_after_parent(reading: int, vllm_pid: int) -> None:
    """End vLLM once the other end of a pipe is closed. Signals to stop are blocked here, as in the parent."""
    os.setsid()
    for name in os.listdir("/proc/self/fd"):  # such as the status port, and a log whose reader waits for its end
        if int(name) != reading:
            with suppress(OSError):
                os.close(int(name))
    os.read(reading, 1)
    send_signal(vllm_pid, signal.SIGTERM)
    due = time.monotonic() + TEARDOWN
    while time.monotonic() < due:
        os.kill(-vllm_pid, 0)  # ends this process when none of vLLM's is left, before another one gets their number
        time.sleep(LOOK_EVERY)
    send_signal(-vllm_pid, signal.SIGKILL)


def _start_telling(
    job: ServeJob, shared: SharedState, profile: Mapping[str, Any], listener: socket, say: Say
) -> Alone | Leader | Follower:
    """Answer on the status port, and talk with the other hosts. Raises HOST."""
    from entrypoints.serve.rank_coordination import Alone, Follower, Leader

    info = {
        **{name: str(profile[name]) for name in ("variant", "stack", "vllm")},
        "digest": job.digest,
        "cache": job.cache,
        "plan": job.find_plan_hash(),
    }
    member = job.member
    group: Alone | Leader | Follower = Alone(shared)
    if member:
        group = Follower(member, shared) if member.rank else Leader(member, shared, say)
    in_background(shared, _serve_status, listener, shared, info, group)
    if not isinstance(group, Alone):
        in_background(shared, group.watch)
    return group


def _start_watching(job: ServeJob, shared: SharedState, vllm_pid: int, profile: Mapping[str, Any]) -> None:
    from entrypoints.serve.watch import Watched, watch_headless, watch_processes, watch_start

    watched = Watched(job.endpoint, vllm_pid, job.model, job.stall, job.engines)
    if job.headless:
        in_background(shared, watch_headless, shared, vllm_pid)
    else:
        in_background(shared, watch_start, shared, watched, profile)
    in_background(shared, watch_processes, shared, vllm_pid)


def _serve_status(
    listener: socket, shared: SharedState, info: Mapping[str, str], group: Alone | Leader | Follower
) -> None:
    """Answer on the status port. asyncio takes a while to import, during which the kernel queues the clients."""
    from entrypoints.serve.status import GROUP, Response, StatusServer, answer_path

    def answer(path: str) -> Response:
        return group.answer() if path == GROUP else answer_path(path, shared.state, info, shared.now())

    StatusServer(listener, answer, take=getattr(group, "take", None)).run()
