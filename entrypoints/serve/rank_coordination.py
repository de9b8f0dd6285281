"""The ranks of one server, each under its own supervisor: who is there, who ended, and why. IO.

Rank 0 keeps the list (Leader). Every other rank reports to it (Follower), and starts its vLLM only after rank 0 has
accepted it: so a rank that starts again alone waits until the others have started again too. If one ends, all end, with
the same cause; vLLM's own processes may wait for a lost rank for minutes, and its first host exits with 0.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from entrypoints.core.errors import GROUP_ENDED, OK
from entrypoints.core.parse import parse_untrusted_json
from entrypoints.core.text import format_one_line
from entrypoints.serve.client import Endpoint, Unreachable, send_request
from entrypoints.serve.exit_status import End
from entrypoints.serve.network_path import list_mtus
from entrypoints.serve.phases import READY, State, get_phase
from entrypoints.serve.rank_protocol import (
    CAUSE_AT_MOST,
    LATE,
    LOADED,
    REPORT_EVERY,
    Final,
    Member,
    Reply,
    Report,
    Roll,
    check_signature,
    describe_end,
    describe_rank,
    encode_report,
    parse_reply,
    parse_report,
    sign_report,
)
from entrypoints.serve.status import GROUP, Response, format_answer_body

if TYPE_CHECKING:
    from entrypoints.serve.job import Say
    from entrypoints.serve.watch import SharedState

LOOK_EVERY = 0.1
"""Seconds between two looks at this rank's own state, so that its end is told at once."""
SETTLE = 1.5
"""Seconds that a rank whose vLLM ended waits for the reports of others, one of which may have ended first."""
SENDERS_AT_MOST = 64
"""Addresses whose refused reports are logged, once each."""
LINGER = 3.0
"""Seconds that a rank which has ended goes on answering, or tries to report."""
ANSWER_WITHIN = 3.0
REPLY_AT_MOST = 1 << 20
"""Bytes of an answer of rank 0: less than 1 KiB for each of 1024 ranks."""


def new_run() -> str:
    """Return a name that no one can guess."""
    from os import urandom

    return urandom(16).hex()


class Alone:
    """A server on one host."""

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        self._member = Member(0, 1, "", 0, 0.0, 0.0)
        self._run = new_run()

    def answer(self) -> Response:
        """Answer GET /group."""
        reply = describe_rank(self._member, self._shared.state, self._shared.now())
        return Response(200, format_answer_body({**reply, "run": self._run, "interfaces": list_mtus()}))

    def conclude(self, end: End, *, requested: bool) -> End:
        """Return the end as it is."""
        del requested
        return end


class Leader:
    """Rank 0 of several hosts."""

    def __init__(self, member: Member, shared: SharedState, say: Say) -> None:
        self._shared = shared
        self._say = say
        self._roll = Roll(member, new_run(), time.monotonic())
        self._lock = threading.Lock()
        self._waits = ""
        self._senders: set[str] = set()
        """Addresses whose reports were refused because of their signature."""

    def answer(self) -> Response:
        """Answer GET /group."""
        return Response(200, format_answer_body(self._told()))

    def _told(self) -> dict[str, Any]:
        now = time.monotonic()
        with self._lock:
            reply = self._roll.answer(self._shared.state, now - self._shared.now(), now)
        return {**reply, "interfaces": list_mtus()}

    def take(self, query: str, address: str) -> Response:
        """Answer POST /group: take in a report."""
        query, disbelief = check_signature(query, self._roll.member.secret)
        if disbelief:
            self._log(address, disbelief)
            return Response(403, format_answer_body({"error": f"{GROUP}: the report is not believed: {disbelief}"}))
        try:
            report = parse_report(query)
        except ValueError as error:
            return Response(400, format_answer_body({"error": f"{GROUP}: expected {error}"}))
        with self._lock:
            refused = self._roll.take(report, address, time.monotonic())
        if refused:
            return Response(409, format_answer_body({"error": refused, "run": self._roll.run}))
        return Response(200, format_answer_body(self._told()))

    def _log(self, address: str, disbelief: str) -> None:
        if address not in self._senders and len(self._senders) < SENDERS_AT_MOST:
            self._senders.add(address)
            self._say(
                f"WARN a report from {format_one_line(address)} is not believed, and changes nothing: {disbelief}"
            )

    def watch(self) -> None:
        """Note the first rank that ends, one that was asked to stop, and those that are absent."""
        while not self._shared.state.ending:
            self._look(self._shared.state, time.monotonic())
            time.sleep(LOOK_EVERY)

    def _look(self, state: State, now: float) -> None:
        with self._lock:
            if state.lost:
                self._roll.end(0, now, state.lost)
            first, other_ends = self._roll.first(now), self._roll.others_ended()
            leaving, absent, waited = self._roll.leaving(), self._roll.absent(), self._roll.waited(now)
        if other_ends and not state.parted:
            self._shared.note(parted=first)
        elif state.dead and not state.parted:  # a runtime that looked at /livez would restart this host alone
            self._shared.note(parted=f"the server makes no progress: {state.stalled}")
        if leaving != state.leaving:
            self._shared.note(leaving=leaving)
        if not state.healthy:
            self._wait(absent, waited=waited, parted=state.parted)

    def _wait(self, absent: tuple[int, ...], *, waited: bool, parted: str) -> None:
        """Tell for whom this start waits, and end it after some time."""
        member = self._roll.member
        ranks = f"rank{'s' * (len(absent) > 1)} {', '.join(map(str, absent))}"
        waits = f"waiting for {ranks} of {member.hosts} hosts" if absent else ""
        if waits != self._waits:
            self._waits = waits
            self._shared.note(trouble=waits)
        if absent and waited and not parted:
            self._shared.note(parted=f"{ranks} did not start within {member.wait:g} s")

    def conclude(self, end: End, *, requested: bool) -> End:
        """Return this rank's end with the cause of the first rank that ended, after the other ranks know it.

        `requested`: a signal asked this rank to stop.
        """
        if not requested and end.code not in (OK, GROUP_ENDED):
            with self._lock:
                self._roll.end(0, time.monotonic(), end.cause[:CAUSE_AT_MOST])
            _wait_for(self._others_ended, SETTLE)
            end = self._named(end)
        with self._lock:  # in one step: a rank that reads an end without its code takes it for a failure
            self._roll.end(0, time.monotonic(), end.cause[:CAUSE_AT_MOST])
            self._roll.final = Final(end.code, end.cause[:CAUSE_AT_MOST])
        # `warm` has succeeded: nothing waits for this exit, and a rank that does not hear of it would fail.
        linger = LINGER if requested or end.code != OK else max(LINGER, self._roll.member.patience)
        _wait_for(lambda: self._informed(max(LATE, linger)), linger)
        return end

    def _named(self, end: End) -> End:
        with self._lock:
            first = self._roll.first(time.monotonic())
        return end if first.startswith("rank 0 ") else End(GROUP_ENDED, first)

    def _others_ended(self) -> bool:
        with self._lock:
            return self._roll.others_ended()

    def _informed(self, silent_at_most: float) -> bool:
        with self._lock:
            return self._roll.informed(time.monotonic(), silent_at_most)


class Follower:
    """Any other rank of several hosts."""

    def __init__(self, member: Member, shared: SharedState) -> None:
        self._shared = shared
        self._member = member
        self._leader = Endpoint(member.leader, member.port)
        self._run = new_run()
        self._joined = self._refused_by = ""
        self._began = self._heard = time.monotonic()
        self._ended: tuple[str, float] = ("", 0.0)
        self._lock = threading.Lock()
        self._closed = False
        self._number = 0
        self._told = False
        """Whether rank 0 knows of this rank's end."""

    def answer(self) -> Response:
        """Answer GET /group."""
        reply = describe_rank(self._member, self._shared.state, self._shared.now(), self._ended[0])
        leader = {"leader": str(self._leader), "heard": round(time.monotonic() - self._heard, 3)}
        return Response(200, format_answer_body({**reply, **leader, "interfaces": list_mtus()}))

    def watch(self) -> None:
        """Report to rank 0 until this rank has ended."""
        while not self._closed:
            with self._lock:
                self.exchange()
            urgent_state = _read_urgent_state(self._shared.state)
            due = time.monotonic() + REPORT_EVERY
            while (
                time.monotonic() < due and not self._closed and _read_urgent_state(self._shared.state) == urgent_state
            ):
                time.sleep(LOOK_EVERY)

    def exchange(self) -> Reply | None:
        """Report once, and take in the answer; None if there is none."""
        if self._shared.state.lost and not self._ended[0]:
            self._ended = (self._shared.state.lost, time.monotonic())
        self._number += 1
        path = f"{GROUP}?{sign_report(encode_report(self._report()), self._member.secret)}"
        try:
            answer = send_request(self._leader, path, timeout=ANSWER_WITHIN, method="POST", most=REPLY_AT_MOST)
            reply = parse_reply(answer.status, parse_untrusted_json(answer.body))
        except (Unreachable, ValueError) as error:
            self._miss(_explain_no_answer(error, path), time.monotonic())
            return None
        if reply.refused:
            self._refused(reply)
            return None
        self._accepted(reply)
        return reply

    def _report(self) -> Report:
        state, now = self._shared.state, self._shared.now()
        cause, at = self._ended
        stopping = "" if state.parted else state.stopping.removeprefix("stopping: ")[:CAUSE_AT_MOST]
        ago = time.monotonic() - at if cause else 0.0
        since = now - state.entered[-1][1]
        report_fields = (get_phase(state), since, stopping, cause[:CAUSE_AT_MOST], ago)
        return Report(self._member.rank, self._run, self._joined or self._refused_by, *report_fields, self._number)

    def _named(self, text: str) -> str:
        return f"rank 0 ({self._member.leader}) {text}"

    def _miss(self, reason: str, now: float) -> None:
        """Take in that rank 0 does not answer."""
        member, silent = self._member, now - self._heard
        text = self._named(f"has not answered for {silent:.0f} s: {reason}")
        if self._told:  # rank 0 ended with this rank
            return
        if self._shared.state.stopping and self._joined and silent >= LATE:
            self._shared.note(idle=True)  # rank 0 ended first, and with it every request
        elif not self._joined:
            self._wait(text, now)
        elif member.patience and silent >= member.patience:
            self._part(text)
        elif silent >= LATE and member.headless:
            self._shared.note(healthy=False, trouble=text)

    def _refused(self, reply: Reply) -> None:
        if self._joined:
            self._part(self._named(f"does not accept this rank any more: {reply.refused}"))
        else:
            self._refused_by = reply.run
            self._wait(self._named(f"does not accept this rank yet: {reply.refused}"), time.monotonic())

    def _wait(self, text: str, now: float) -> None:
        """Tell why this start waits, and end it after some time."""
        wait = self._member.wait
        if wait and now - self._began >= wait:
            self._part(f"{text}; waited {wait:g} s")
        elif text != self._shared.state.trouble:
            self._shared.note(trouble=text)

    def _part(self, cause: str, *, dismissed: bool = False) -> None:
        if not self._shared.state.parted:
            self._shared.note(parted=cause, dismissed=dismissed)

    def _accepted(self, reply: Reply) -> None:
        """Take in the state of rank 0."""
        self._heard = time.monotonic()
        self._told = bool(self._ended[0])
        if not self._joined:
            self._joined = reply.run
            self._shared.note(joined=True, trouble="")
        first = reply.first or (describe_end(0, self._member.leader, reply.cause) if reply.ended else "")
        prefix = f"rank {self._member.rank} ("
        if first and self._shared.state.stopping:
            self._shared.note(idle=True)
        elif first and not first.startswith(prefix):
            self._part(first, dismissed=reply.ended and reply.code == OK)
        self._judge(reply.phase)

    def _judge(self, stage: str) -> None:
        """Note whether this rank is ready: its workers exist, and every rank has loaded."""
        state = self._shared.state
        there = bool(self._shared.processes) or not self._member.titled
        ready = there and stage in LOADED
        if not self._member.headless or ready == state.healthy:
            return
        if ready:
            self._shared.note(healthy=True, verified=True, trouble="")
            self._shared.enter(READY)
        else:
            self._shared.note(healthy=False, trouble=self._named(f"is in phase {stage}") if there else "")

    def conclude(self, end: End, *, requested: bool) -> End:
        """Return this rank's end with the cause of the first rank that ended, after rank 0 knows of this one's.

        `requested`: a signal asked this rank to stop.
        """
        self._closed = True
        if not self._joined:
            return end
        with self._lock:
            if not self._ended[0]:
                self._ended = (end.cause, time.monotonic())
            self._told = self._told or _retry_attempt(self.exchange) is not None
            if requested or end.code in (OK, GROUP_ENDED):
                return end
            if not self._told:
                return End(GROUP_ENDED, self._named(f"does not answer; {end.cause}"))
            time.sleep(SETTLE)
            self.exchange()
        parted = self._shared.state.parted
        return End(GROUP_ENDED, parted) if parted else end


def _read_urgent_state(state: State) -> tuple[str, ...]:
    """Return what rank 0 must know at once."""
    return state.lost, state.stopping, get_phase(state)


def _explain_no_answer(error: Exception, path: str) -> str:
    """Return why there was no answer, without the address, which the run's name is a part of."""
    return str(error).partition(f"{path}: ")[2] or str(error)


def _retry_attempt(attempt: Callable[[], Reply | None]) -> Reply | None:
    """Repeat an attempt until it succeeds, for LINGER seconds."""
    due = time.monotonic() + LINGER
    while True:
        reply = attempt()
        if reply or time.monotonic() >= due:
            return reply
        time.sleep(LOOK_EVERY * 2)


def _wait_for(holds: Callable[[], bool], seconds: float) -> None:
    due = time.monotonic() + seconds
    while not holds() and time.monotonic() < due:
        time.sleep(LOOK_EVERY)
