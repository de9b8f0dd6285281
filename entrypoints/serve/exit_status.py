"""Why a server ends, as one sentence and as exit code. Pure.

vLLM exits with 0 after its engine core was killed. So its 0 counts only if it was asked to stop, or to print its help.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import NamedTuple

from entrypoints.core.errors import (
    DIED,
    GROUP_ENDED,
    INTERNAL,
    LIMITED,
    NOT_READY,
    OK,
    REFUSED,
    STALLED,
    WRONG_ANSWER,
)
from entrypoints.serve.phases import IMPORT, JOIN, PLAN, SPAWN, State, get_phase

_SIGNALLED = 128
KILLED = _SIGNALLED + signal.SIGKILL
TEARDOWN = 4.0
"""Seconds for vLLM to exit after its last request; at most the drain timeout. Measured on CPUs: 2 to 3."""
TELL, TELL_STARTING = 1.0, 10.0
"""Seconds for vLLM to report to its clients and in its log that a process is lost: when ready, and while it starts."""


class Stop(NamedTuple):
    """A stop in progress. Times are on the monotonic clock."""

    code: int
    """The exit code if no request is lost."""
    drains: bool
    """Whether requests may be running."""
    refuse_at: float
    """When new requests are refused; until then balancers notice that the server is not ready."""
    term_at: float
    """When vLLM gets SIGTERM, unless it is idle earlier."""
    cut_at: float
    """When the drain timeout ends."""
    kill_at: float
    cause: str = ""


class End(NamedTuple):
    """The end of a server."""

    code: int
    cause: str
    failed: bool = False
    """Whether vLLM failed before it was ready or answered wrongly, for which its caches may be the reason."""
    hint: str = ""
    """What to do, of an end that is an error of the command."""


def stop_at(now: float, code: int, cause: str, grace: float = 0.0) -> Stop:
    """Return a stop that waits for no request; vLLM gets SIGTERM after `grace` seconds."""
    term = now + grace
    return Stop(code, drains=False, refuse_at=now, term_at=term, cut_at=term, kill_at=term + TEARDOWN, cause=cause)


def lost_stop(now: float, state: State, *, ready: bool) -> Stop:
    """Return the stop after one of vLLM's processes is lost."""
    return stop_at(now, DIED, state.lost, TELL if ready else TELL_STARTING)


def exit_code(stop: Stop, passed: int, *, idle: bool, cut: bool) -> int:
    """Return the exit code after a requested stop, given vLLM's own code. Pure.

    `idle`: every request had ended. `cut`: requests were still running at the end of the drain timeout or at a second
    signal.
    """
    if not stop.drains or idle:
        return stop.code
    if cut:
        return KILLED
    return stop.code if passed in (OK, 128 + signal.SIGTERM, 128 + signal.SIGINT) else passed


def requested_end(stop: Stop, passed: int, state: State, limits: str, *, cut: bool) -> End:
    """Return the end after a stop that a signal asked for, or that became necessary."""
    code = exit_code(stop, passed, idle=state.idle, cut=cut)
    how = {
        OK: "every request had ended" if stop.drains else "no request was running",
        KILLED: f"requests were cut off: {state.running}" if state.running else "requests were cut off",
        GROUP_ENDED: "every request had ended" if stop.drains else "no request was running",
        STALLED: f"requests were lost, because {state.stalled}",
        NOT_READY: "the server was not ready",
        INTERNAL: "nothing watched the server any more",
    }
    sentence = f"{stop.cause}: {how.get(code, f'vLLM exited with {passed}')}"
    sentence += f"; {limits}" if limits and code != OK else ""
    return End(code, state.wrong if code == WRONG_ANSWER else sentence, failed=code == WRONG_ANSWER)


def unexpected_end(passed: int, state: State, limits: str, *, until_ready: bool, ready: bool, prints: bool) -> End:
    """Return the end of a vLLM that no one asked to stop. `limits`: which limit of the container was enforced.

    `prints`: it was only asked to print its help.
    """
    began = get_phase(state) not in (PLAN, JOIN, SPAWN, IMPORT)
    how = f"was killed by signal {passed - _SIGNALLED}" if passed > _SIGNALLED else f"exited with {passed}"
    exited = f"vLLM {how} in phase {get_phase(state)}, without being asked to stop"
    cause = state.lost or exited
    failed = not ready and bool(passed or state.lost)
    if limits and (passed or state.lost or began):
        return End(LIMITED, f"{cause}; {limits}")
    if state.lost:
        return End(DIED, cause, failed)
    if passed:
        return End(passed, cause, failed)
    if until_ready:
        return End(NOT_READY, exited)
    return End(OK, "vLLM printed its help") if prints and not began else End(DIED, exited)


def refused_end(end: End, refusal: str) -> End:
    """Return the end of a vLLM that failed before it was ready; `refusal` says that and how it refused its command.

    A damaged cache can be the reason, too: vLLM keeps there what it found out about a model's class.
    """
    hint = "change what vLLM names; the reasons above say who set it"
    return End(REFUSED, refusal, failed=end.failed, hint=hint) if refusal else end


def advise_on_memory(end: End, remedies: Sequence[str]) -> str:
    """Return what to try, in this order, if a start failed because a device has too little memory; empty otherwise.

    Only vLLM's log says whether it was memory: each accelerator's runtime has its own words for it.
    """
    if not (end.failed and remedies) or end.code == WRONG_ANSWER:
        return ""
    return f"; if the log above says out of memory, try in this order: {', '.join(remedies)}"
