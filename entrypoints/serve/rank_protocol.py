"""What the ranks of one server tell each other, and whose end was the first. Pure.

Each rank above 0 asks rank 0 on its status port, every second, and tells its own state with the question:
`POST /group?rank=1&run=…`. So rank 0 knows of all, each other rank knows of rank 0, and nothing needs a new port.

`run` is a random name of one start of one rank, `joined` the run of rank 0 as its answers told it, `number` the number
of the report. Which report does what:

| report | answer | effect |
|---|---|---|
| not signed with the secret, where one is given | 403 | none |
| without `joined`, of a rank that is absent | 200 and the run of rank 0 | none |
| with `joined`, of a rank that is absent | 200 | the rank is a part of the server, under this `run` only |
| of that run, with a higher `number` | 200 | its state; `ended` ends the server, `stopping` drains it |
| of that run, with a `number` that was there | 200 | none |
| of another run of that rank | 409 and the run of rank 0 | none |
| the same, signed, with `joined`, from that rank's address | 409 | the rank was started again: the server ends |
| with another `joined` | 409 and the run of rank 0 | none |

A rank that starts again waits until the server has ended; without a secret, the silence of its earlier run ends it.

The secret signs the whole report (HMAC-SHA256). A report that is sent again does nothing: within a run its `number` is
old, and later the run of rank 0 is another one. Without a secret, only the random `run` of a rank protects it: it is in
no answer, but who reads the network knows it, and anyone who reaches the port can take the place of an absent rank.

The clocks of hosts differ, so a report says how many seconds ago something happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from entrypoints.core.parse import is_number
from entrypoints.serve.phases import KNOWN_ANSWER, ORDER, READY, State, get_phase

REPORT_EVERY = 1.0
"""Seconds between two reports."""
LATE = 5.0
"""Seconds without an answer after which a rank is not ready."""
CAUSE_AT_MOST = 400
"""Characters of a cause."""
QUERY_AT_MOST = 3000
"""Characters of a report: the whole head of a request has 4 KiB, and names of hosts have up to 253."""
LOADED = (KNOWN_ANSWER, READY)
"""Phases of rank 0 in which every rank has loaded, because vLLM's /health waits for all."""

_SIGNATURE = "&hmac="
_RUN_AT_MOST = 64
_SECONDS_AT_MOST = 10_000_000.0


class Member(NamedTuple):
    """One rank of a group, as this process knows it. Times are in seconds."""

    rank: int
    hosts: int
    leader: str
    """The address of rank 0."""
    port: int
    """The status port of rank 0."""
    patience: float
    """How long a rank may be silent until it counts as lost."""
    wait: float
    """How long a start waits for the other ranks."""
    headless: bool = False
    """Whether this rank's vLLM has no server."""
    titled: bool = True
    """Whether its workers have vLLM's titles; those of Ray have others."""
    secret: bytes = b""
    """What reports are signed with; empty for reports without a signature."""


class Report(NamedTuple):
    """What a rank tells rank 0."""

    rank: int
    run: str
    joined: str = ""
    """The run of rank 0 that has accepted or refused it; empty before any answer."""
    phase: str = ""
    since: float = 0.0
    """For how many seconds it is in this phase."""
    stopping: str = ""
    """Why it will end soon: running requests are to finish first."""
    ended: str = ""
    """Why it ended."""
    ago: float = 0.0
    """How many seconds ago it ended."""
    number: int = 0
    """The number of this report of its run."""


class Standing(NamedTuple):
    """What rank 0 knows of another rank."""

    report: Report
    address: str
    heard: float
    """When it reported last, on any one clock."""


class Ended(NamedTuple):
    """The end of a rank."""

    rank: int
    at: float
    cause: str


class Final(NamedTuple):
    """The end of this rank."""

    code: int
    cause: str


def encode_report(report: Report) -> str:
    """Write a report as the query of an address; texts are cut so that it fits the status port's limit."""
    from urllib.parse import urlencode

    most = CAUSE_AT_MOST
    while True:
        cut = report._replace(stopping=report.stopping[:most], ended=report.ended[:most])
        query = urlencode({name: value for name, value in cut._asdict().items() if value or name == "rank"})
        if len(query) <= QUERY_AT_MOST or not most:
            return query
        most //= 2


def sign_report(query: str, secret: bytes) -> str:
    """Return a report with its signature, if there is a secret."""
    return f"{query}{_SIGNATURE}{_compute_signature(query, secret)}" if secret else query


def check_signature(query: str, secret: bytes) -> tuple[str, str]:
    """Return a report without its signature, and why it is not believed; empty if it is."""
    report, signed, signature = query.partition(_SIGNATURE)
    if not secret:
        return report, "it is signed, but this rank has no group secret" if signed else ""
    if not signed:
        return report, "it is not signed with the group secret"
    from hmac import compare_digest

    same = compare_digest(signature.encode(), _compute_signature(report, secret).encode())
    return report, "" if same else "it is signed with another group secret"


def _compute_signature(query: str, secret: bytes) -> str:
    from hmac import digest  # takes 10 ms to import, while vLLM starts

    return digest(secret, query.encode(), "sha256").hex()


def parse_report(query: str) -> Report:
    """Read a report that anyone may have written. Raises ValueError that says what it expected."""
    from urllib.parse import parse_qsl

    pairs = parse_qsl(query, max_num_fields=len(Report._fields))
    words = dict(pairs)
    unknown = next((name for name, _ in pairs if name not in Report._fields), "")
    if unknown or len(words) < len(pairs):
        raise ValueError(f"the names {', '.join(Report._fields)}, each once")
    rank, run, number = words.get("rank", ""), words.get("run", ""), words.get("number", "0")
    if not is_number(rank) or not is_number(number) or not _is_run(run) or not _is_run(words.get("joined") or run):
        raise ValueError("rank=NUMBER, run=NAME and number=NUMBER")
    if words.get("phase", ORDER[0]) not in ORDER:
        raise ValueError(f"phase={'|'.join(ORDER)}")
    stage, stopping, ended = (_format_bounded_text(words.get(name, "")) for name in ("phase", "stopping", "ended"))
    since, ago = (_parse_seconds(words.get(name, "0")) for name in ("since", "ago"))
    return Report(int(rank), run, words.get("joined", ""), stage, since, stopping, ended, ago, int(number))


def _is_run(text: str) -> bool:
    return text.isascii() and text.isalnum() and len(text) <= _RUN_AT_MOST


def _format_bounded_text(text: str) -> str:
    """Return a bounded text that can be shown."""
    return "".join(character if character.isprintable() else " " for character in text[:CAUSE_AT_MOST])


def _parse_seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number <= _SECONDS_AT_MOST:
        raise ValueError("seconds")
    return number


def describe_end(rank: int, address: str, cause: str) -> str:
    """Return in one sentence which rank ended, and why."""
    return f"rank {rank} ({address}) ended: {cause}"


def describe_rank(member: Member, state: State, now: float, cause: str = "") -> dict[str, Any]:
    """Return what /group tells of any rank; `now` is in seconds since its start, `cause` is why it has ended."""
    return {
        "rank": member.rank,
        "hosts": member.hosts,
        "phase": get_phase(state),
        "since": round(now - state.entered[-1][1], 3),
        "stopping": state.stopping,
        "ended": bool(cause),
        "cause": cause,
    }


class Roll:
    """Rank 0's list of the others. Times are in seconds on any one clock. Not safe for several threads."""

    def __init__(self, member: Member, run: str, now: float) -> None:
        self.member = member
        self.run = run
        self.final: Final | None = None
        """Why this rank has ended, once it has."""
        self._began = now
        self._known: dict[int, Standing] = {}
        self._ends: dict[int, Ended] = {}
        self._informed: set[int] = set()

    def take(self, report: Report, address: str, now: float) -> str:
        """Take in a report; return why it is refused, empty if it is not. The table above says what it may do."""
        if not 0 < report.rank < self.member.hosts:
            return f"rank {report.rank}: expected a rank from 1 to {self.member.hosts - 1}"
        if report.joined not in ("", self.run):
            return "rank 0 was started again"
        before = self._known.get(report.rank)
        if before and before.report.run != report.run:
            if self.member.secret and report.joined and address == before.address:
                self.end(report.rank, now, "it was started again")
            return f"rank {report.rank} ({before.address}) is a part of the running server, which ends first"
        if not report.joined or (before and report.number <= before.report.number):
            return ""
        self._known[report.rank] = Standing(report, address, now)
        if report.ended:
            self.end(report.rank, now - report.ago, report.ended)
        if self.final:
            self._informed.add(report.rank)
        return ""

    def end(self, rank: int, at: float, cause: str) -> None:
        """Note that a rank ended; only its first end counts."""
        self._ends.setdefault(rank, Ended(rank, at, cause))

    def first(self, now: float) -> str:
        """Return which rank ended first, and why; empty if all run."""
        for rank, standing in self._known.items():
            silent = now - standing.heard
            if self.member.patience and silent >= self.member.patience:
                self.end(rank, standing.heard, f"it has not reported for {silent:.0f} s")
        if not self._ends:
            return ""
        ended = min(self._ends.values(), key=lambda end: end.at)
        return describe_end(ended.rank, self._address(ended.rank), ended.cause)

    def others_ended(self) -> bool:
        """Return whether a rank other than this one has ended."""
        return any(self._ends.keys() - {0})

    def leaving(self) -> str:
        """Return which rank was asked to stop, so that requests can finish; empty if none."""
        members = sorted(self._known.items())
        return next(
            (
                f"rank {rank} ({standing.address}) stops: {standing.report.stopping}"
                for rank, standing in members
                if standing.report.stopping and not standing.report.ended
            ),
            "",
        )

    def absent(self) -> tuple[int, ...]:
        """Return the ranks that are not a part of the server yet."""
        return tuple(rank for rank in range(1, self.member.hosts) if rank not in self._known)

    def informed(self, now: float, silent_at_most: float = LATE) -> bool:
        """Return whether every rank knows of the end; one that is silent for longer, in seconds, does not count."""
        return all(
            rank in self._informed or rank in self._ends or now - standing.heard >= silent_at_most
            for rank, standing in self._known.items()
        )

    def answer(self, state: State, began: float, now: float) -> dict[str, Any]:
        """Return what /group tells; `began` is when this rank's process began."""
        reply = describe_rank(self.member, state, now - began, self.final.cause if self.final else "")
        ranks = [
            _describe_standing(standing, now, self._ends.get(rank)) for rank, standing in sorted(self._known.items())
        ]
        reply["code"] = self.final.code if self.final else None
        return {**reply, "run": self.run, "first": self.first(now), "ranks": ranks, "absent": list(self.absent())}

    def waited(self, now: float) -> bool:
        """Return whether a start has waited for the other ranks for long enough."""
        return bool(self.member.wait) and now - self._began >= self.member.wait

    def _address(self, rank: int) -> str:
        return self._known[rank].address if rank else self.member.leader


def _describe_standing(standing: Standing, now: float, ended: Ended | None) -> dict[str, Any]:
    report = standing.report
    return {
        "rank": report.rank,
        "address": standing.address,
        "phase": report.phase,
        "since": report.since,
        "heard": round(now - standing.heard, 3),
        "stopping": report.stopping,
        "ended": ended is not None,
        "cause": ended.cause if ended else "",
    }


class Reply(NamedTuple):
    """What rank 0 answers to a report."""

    run: str = ""
    phase: str = ""
    first: str = ""
    """Which rank ended first, and why."""
    ended: bool = False
    """Whether rank 0 itself has ended."""
    cause: str = ""
    code: int = -1
    """The exit code of rank 0."""
    refused: str = ""


def parse_reply(status: int, value: Any) -> Reply:
    """Read an answer of rank 0. Raises ValueError if it is none."""
    fields: Mapping[str, Any] = value if isinstance(value, dict) else {}
    run, stage = str(fields.get("run", "")), str(fields.get("phase", ""))
    if status in (403, 409):  # Forbidden, Conflict
        return Reply(
            run if _is_run(run) else "", refused=_format_bounded_text(str(fields.get("error", ""))) or "refused"
        )
    if status != 200 or not _is_run(run) or stage not in ORDER:  # noqa: PLR2004
        raise ValueError(f"answered {status}, expected the state of rank 0; is this drydock's status port?")
    first, cause = (_format_bounded_text(str(fields.get(name, ""))) for name in ("first", "cause"))
    code = fields.get("code")
    return Reply(run, stage, first, fields.get("ended") is True, cause, code if isinstance(code, int) else -1)
