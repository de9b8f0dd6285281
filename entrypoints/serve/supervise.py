"""PID 1: starts vLLM, forwards signals, reaps children, drains, and tells why the server ended. IO.

Signals are blocked and received one at a time with sigtimedwait. So there are no signal handlers and no signal is lost,
also not for PID 1, for which the kernel drops signals without a handler. Other threads wake this one with SIGCHLD.

A stop after SIGTERM: the server is not ready at once, but vLLM goes on serving for the drain pause, until balancers
have noticed. Then drydock's middleware in vLLM refuses new requests with 503, and when no request runs, vLLM's main
process gets SIGTERM. Without the middleware, a vLLM that drains by itself (--shutdown-timeout, since 0.32) gets it
after half of the drain timeout at the latest. A second signal, or the end of the drain timeout, kills all processes.
SIGINT is a person's, for whom no balancer needs time: it has no pause.

One of several hosts that serve together joins the others before it starts vLLM, and ends with them
(serve/rank_coordination.py). A host without a server, when it is asked to stop, waits for the first host to end.

A server that hangs, or has lost a process, is looked at before it is ended: its stacks are in the log (serve/hang.py).

Nothing is restarted here. A server that makes no progress becomes not ready, then not alive, and the container's
runtime decides (serve/progress.py). When one of vLLM's processes is lost, the server ends.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from entrypoints.core.errors import (
    GROUP_ENDED,
    INTERNAL,
    NOT_READY,
    OK,
    STALLED,
    WRONG_ANSWER,
    EntrypointError,
)
from entrypoints.host.processes import list_children
from entrypoints.serve.exit_status import (
    TEARDOWN,
    TELL,
    End,
    Stop,
    lost_stop,
    refused_end,
    requested_end,
    stop_at,
    unexpected_end,
)
from entrypoints.serve.job import FOREVER, STOPS, TAKEN, Say, ServeJob, in_background, send_signal
from entrypoints.serve.phases import READY, get_phase, is_ready, measure_phases

LOOKS_AT_MOST = 4
"""Looks at a server that hangs again and again; those before its end come in addition."""
SLOW_START = 60.0
"""Seconds after which a start that is stopped is looked at: a probe may have ended one that hangs."""

if TYPE_CHECKING:
    from entrypoints.serve.hang import Examination
    from entrypoints.serve.phases import State
    from entrypoints.serve.watch import SharedState


def reap_children(leader: int) -> int | None:
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

    def __init__(self, job: ServeJob, shared: SharedState, leader: int, say: Say) -> None:
        self._job = job
        self._shared = shared
        self._leader = leader
        self._say = say
        self._stop: Stop | None = None
        self.stop_requested = False
        """Whether a signal asked this process to stop."""
        self._announced = False
        self._stalled = False
        self._expired = 0.0
        self._refusing = False
        self._terminated_at: float | None = None
        self._killed = False
        self._looks: list[Examination] = []
        self._last_look = False
        """Whether the server was looked at because it ends."""

    def run(self) -> End:
        """Handle signals and changes of the state until vLLM has exited; return why it did."""
        while True:
            received = signal.sigtimedwait(TAKEN, self._timeout())
            ended = reap_children(self._leader)
            if ended is not None:
                for look in self._looks:  # before everything that runs here is killed, such as the device's tool
                    look.wait()
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
        at_least = 0.0 if self._is_told() else 0.05
        return max(at_least, due - time.monotonic())

    def _handle(self, number: int) -> None:
        import signal

        name = signal.Signals(number).name
        if number not in STOPS:
            send_signal(self._leader, number)
        elif self._stop is None:
            self.stop_requested = True
            self._begin_stop(f"{name} received", name, pauses=number == signal.SIGTERM)
        elif self._shared.state.leaving and not self.stop_requested:  # all hosts are stopped, another one was the first
            self.stop_requested = True
            self._stop = self._stop._replace(code=NOT_READY if self._job.until_ready else OK)
            self._say(f"{name} during a stop that rank 0 has begun for another rank")
        else:
            self._say(f"{name} during a stop: killing vLLM")
            self._kill()

    def _begin_stop(self, cause: str, name: str, *, pauses: bool) -> None:
        """Begin a stop because of a signal, here or at another rank; running requests get the drain timeout."""
        state, now = self._shared.state, time.monotonic()
        if get_phase(state) == READY and not state.stalled:
            self._stop = self._drain(now, cause, self._job.drain_pause if pauses else 0.0)
            self._mark(self._job.drain_file.leave)
            stop_text = f"draining, at most {self._job.drain_timeout:g} s"
        else:  # a server that makes no progress would not finish a request either
            if state.stalled or (name == signal.SIGTERM.name and self._shared.now() > SLOW_START):
                self._look_once_more(f"{cause} while {state.stalled or f'the start is in phase {get_phase(state)}'}")
            code = NOT_READY if self._job.until_ready else STALLED if state.stalled else OK
            self._stop = stop_at(now, code, cause)
            stop_text = "stopping a server without progress" if state.stalled else "stopping before it was ready"
        self._shared.note(stopping=f"stopping: {cause}")
        self._say(f"{name}: {stop_text}")

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
            in_background(self._shared, watch_drain, self._shared, self._job.endpoint)
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
        state = self._shared.state
        if self._stop.drains and state.lost and self._terminated_at is None:
            self._look_once_more(state.lost, brief=False)
            self._say(f"{state.lost}: stopping")
            self._stop = lost_stop(now, state, ready=True)
        early = state.idle or (state.unseen and self._job.drains_itself)
        if self._terminated_at is None and (early or now >= self._stop.term_at) and self._is_told():
            if not early:  # looking took time, which vLLM gets back
                self._stop = self._stop._replace(kill_at=self._stop.kill_at + now - self._stop.term_at)
            self._terminated_at = now
            self._shared.note(ending=True)
            send_signal(self._leader, signal.SIGTERM)
        if self._terminated_at is not None and now >= self._stop.kill_at:
            late = "vLLM did not exit in time"
            self._look_once_more(late)
            if self._is_told():
                self._say(f"{late}: killing it")
                self._kill()

    def _check_readiness(self, now: float) -> None:
        """Log once that vLLM is ready or wrong, and begin a stop if the job says so, or something is lost."""
        state = self._shared.state
        if state.lost or state.parted or state.leaving or state.defect:
            self._stop_for_loss(now, state)
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

    def _stop_for_loss(self, now: float, state: State) -> None:
        """Begin a stop because a process, another rank or a watch is lost, or another rank stops."""
        if state.lost:
            was_ready = get_phase(state) == READY
            if was_ready:  # in a failed start the error above says more than what the other processes do
                self._look_once_more(state.lost, brief=False)
            self._say(f"{state.lost}: stopping")
            self._stop = lost_stop(now, state, ready=was_ready)
        elif state.parted:
            if not state.dismissed:
                self._look_once_more(state.parted)
            self._say(f"{state.parted}: stopping")
            self._stop = stop_at(now, GROUP_ENDED, state.parted, TELL)
        elif state.leaving:
            self._begin_stop(state.leaving, "another rank", pauses=True)
            self._stop = self._stop and self._stop._replace(code=GROUP_ENDED)
        else:
            self._stop_unwatched(now, state)

    def _end_with_group(self, now: float) -> None:
        """Cut a drain short after another rank has ended, with which every request has."""
        parted = self._shared.state.parted
        if parted and self._stop and self._stop.drains and self._terminated_at is None and not self._shared.state.idle:
            self._say(f"{parted}: stopping")
            self._stop = stop_at(now, GROUP_ENDED, parted, TELL)

    def _stop_unwatched(self, now: float, state: State) -> None:
        """Begin a stop because a watch of drydock failed; running requests get the drain timeout."""
        cause = f"a defect of drydock's entrypoint, {state.defect}"
        self._say(f"{state.trace}{cause}: stopping")
        if get_phase(state) == READY:
            self._stop = self._drain(now, cause, self._job.drain_pause)._replace(code=INTERNAL)
            self._mark(self._job.drain_file.leave)
        else:
            self._stop = stop_at(now, INTERNAL, cause)
        self._shared.note(stopping=f"stopping: {cause}")

    def _tell_progress(self, stalled: str) -> None:
        """Log once that vLLM makes no progress, or makes it again."""
        if bool(stalled) != self._stalled:
            self._stalled = bool(stalled)
            self._say(f"not ready: {stalled}" if stalled else "ready again: vLLM makes progress")
            if stalled and len(self._looks) < LOOKS_AT_MOST:
                self._look(stalled, brief=False)

    def _look_once_more(self, why: str, *, brief: bool = True) -> None:
        """Look at the server before it ends, once."""
        if not self._last_look:
            self._last_look = True
            self._look(why, brief=brief)

    def _look(self, why: str, *, brief: bool) -> None:
        """Write to the log what the server does; with `brief` only what is known at once."""
        from entrypoints.serve.hang import Examination, Subject

        if self._job.stacks is not None:
            subject = Subject(self._leader, self._shared, self._job.stacks, () if brief else self._job.find_tool())
            self._looks.append(Examination(subject, why, self._say, brief=brief))

    def _is_told(self) -> bool:
        """Tell whether every look has written the stacks, which takes a second at most."""
        return all(look.told for look in self._looks)

    def _tell_expired(self, expired: float) -> None:
        """Log each rise of the number of requests whose KV cache was freed before it was read."""
        if expired > self._expired:
            self._say(
                f"WARN the KV cache of {expired - self._expired:g} requests expired before a decode server read it "
                f"({expired:g} in all): their answers may be wrong"
            )
        self._expired = expired

    def _ready_lines(self) -> tuple[str, ...]:
        state, now = self._shared.state, self._shared.now()
        took = ", ".join(f"{name} {value:.1f}" for name, value in measure_phases(state, now).items())
        measured = self._job.measured()
        memory = (f"memory: {measured}",) if measured else ()
        return f"ready after {now:.1f} s ({took})", *(f"known answer: {note}" for note in state.notes), *memory

    def _kill(self) -> None:
        self._killed = True
        self._shared.note(ending=True)
        send_signal(-self._leader, signal.SIGKILL)

    def _kill_leftovers(self) -> None:
        """Kill the processes that vLLM left behind, and then their own orphans."""
        self._shared.note(ending=True)  # or their watch would name one of them as the cause
        send_signal(-self._leader, signal.SIGKILL)
        while leftovers := list_children(os.getpid()):
            for pid in leftovers:
                send_signal(pid, signal.SIGKILL)
            time.sleep(0.01)
            reap_children(self._leader)

    def _end(self, code: int) -> End:
        """Return the end, given vLLM's own exit code (negative for a signal)."""
        passed = 128 - code if code < 0 else code
        stop, state, limits = self._stop, self._shared.state, self._job.limits()
        if state.parted and (stop is None or stop.cause == state.parted):
            return End(OK if self._job.until_ready and state.dismissed else GROUP_ENDED, state.parted)
        if self._job.headless and self.stop_requested:
            state = state._replace(idle=not self._killed)  # the requests are at rank 0
        ended_by_us = self._killed or self._terminated_at is not None
        lost_requests = stop is not None and stop.drains and not state.idle and not ended_by_us
        if stop is None or lost_requests or (state.lost and stop.cause == state.lost):
            until_ready, ready, prints = self._job.until_ready, self._announced, self._job.prints
            end = unexpected_end(passed, state, limits, until_ready=until_ready, ready=ready, prints=prints)
            return refused_end(end, self._job.refusal()) if end.failed else end
        cut = self._killed or (self._terminated_at is not None and stop.cut_at <= self._terminated_at)
        return requested_end(stop, passed, state, limits, cut=cut)
