"""What rank 0 believes, and whose end was the first."""

from __future__ import annotations

import random

import pytest

from entrypoints.serve.group import (
    CAUSE_AT_MOST,
    LATE,
    Final,
    Member,
    Reply,
    Report,
    Roll,
    encode,
    parse_reply,
    parse_report,
)
from entrypoints.serve.phases import State
from entrypoints.serve.status import HEAD_AT_MOST

MEMBER = Member(rank=0, hosts=3, leader="n0", port=8001, patience=30.0, wait=600.0)
FIRST, SECOND = "10.0.0.2", "10.0.0.3"


def roll() -> Roll:
    """Return a list on which both other ranks have reported at 100 s."""
    made = Roll(MEMBER, "run0", 90.0)
    assert made.absent() == (1, 2)
    assert made.take(Report(1, "run1", phase="load"), FIRST, 100.0) == ""
    assert made.take(Report(2, "run2", phase="load"), SECOND, 100.0) == ""
    return made


def test_the_first_end_counts_and_not_the_first_report() -> None:
    made = roll()
    made.take(Report(2, "run2", "run0", ended="connection closed", ago=0.1), SECOND, 101.0)
    made.take(Report(1, "run1", "run0", ended="killed by signal 9", ago=0.5), FIRST, 101.2)

    assert made.first(101.3) == f"rank 1 ({FIRST}) ended: killed by signal 9"


def test_a_later_report_does_not_change_an_end() -> None:
    made = roll()
    made.take(Report(1, "run1", ended="out of memory"), FIRST, 101.0)
    made.take(Report(1, "run1", ended="stopped"), FIRST, 102.0)

    assert made.first(103.0) == f"rank 1 ({FIRST}) ended: out of memory"


def test_a_silent_rank_has_ended_when_it_was_last_heard() -> None:
    made = roll()
    made.take(Report(2, "run2"), SECOND, 125.0)

    assert made.first(129.9) == ""
    assert made.first(130.0) == f"rank 1 ({FIRST}) ended: it has not reported for 30 s"


def test_without_patience_silence_is_no_end() -> None:
    made = Roll(MEMBER._replace(patience=0.0, wait=0.0), "run0", 90.0)
    made.take(Report(1, "run1"), FIRST, 100.0)

    assert made.first(100_000.0) == ""
    assert not made.waited(100_000.0)


def test_nobody_else_speaks_for_a_running_rank() -> None:
    made = roll()
    refused = made.take(Report(1, "foreign", ended="a lie"), "192.0.2.9", 101.0)

    assert refused == f"rank 1 ({FIRST}) is a part of the running server, which ends first"
    assert made.first(102.0) == ""
    assert made.take(Report(1, "run1", "run0"), FIRST, 103.0) == ""


def test_a_rank_that_starts_again_at_its_address_ends_the_server() -> None:
    made = roll()
    assert made.take(Report(1, "run1b"), FIRST, 101.0) != ""
    assert made.first(102.0) == f"rank 1 ({FIRST}) ended: it was started again"


def test_a_rank_of_an_earlier_rank_0_is_refused() -> None:
    made = Roll(MEMBER, "run0", 90.0)
    assert made.take(Report(1, "run1", joined="earlier"), FIRST, 100.0) == "rank 0 was started again"
    assert made.absent() == (1, 2)


@pytest.mark.parametrize("rank", [0, 3, 10**19])
def test_a_rank_that_the_group_does_not_have_is_refused(rank: int) -> None:
    assert roll().take(Report(rank, "run9"), FIRST, 100.0) == f"rank {rank}: expected a rank from 1 to 2"


def test_every_rank_that_still_reports_learns_of_the_end() -> None:
    made = roll()
    made.final = Final(0, "SIGTERM received")
    made.take(Report(1, "run1", "run0"), FIRST, 101.0)

    assert not made.informed(102.0)
    assert made.informed(100.0 + LATE)  # rank 2 is silent
    made.take(Report(2, "run2", "run0"), SECOND, 102.0)
    assert made.informed(102.0)


def test_an_answer_shows_no_names_of_reports() -> None:
    shown = str(roll().answer(State(), 1.0, 101.0))
    assert "run0" in shown
    assert "run1" not in shown
    assert "run2" not in shown


def test_reports_survive_the_way() -> None:
    report = Report(1, "a" * 64, "b" * 64, "engine_init", 1.5, "SIGTERM received", 'é "x" & y=1', 0.25)
    assert parse_report(encode(report)) == report
    assert parse_report(encode(Report(2, "a"))) == Report(2, "a")


def test_the_longest_report_fits_a_request() -> None:
    text = "\u20ac" * CAUSE_AT_MOST
    query = encode(Report(1023, "a" * 64, "b" * 64, "known_answer", 1e6 / 3, text, text, 1e6 / 3))
    others = f"POST /group? HTTP/1.1\r\nHost: {'h' * 253}:65535\r\nX-Request-Id: drydock-1{'0' * 18}\r\n" + "x" * 150

    assert len(others) + len(query) < HEAD_AT_MOST
    assert parse_report(query).ended.startswith("\u20ac" * 50)


def test_any_text_is_a_report_or_a_value_error() -> None:
    chance = random.Random(17)  # noqa: S311 - repeatable
    alphabet = "rank=1&run=a%ff+;phase=loadsinceago.-e9\x00é"
    for _ in range(3000):
        text = "".join(chance.choices(alphabet, k=chance.randrange(60)))
        try:
            parse_report(text)
        except ValueError:
            continue


def test_an_answer_of_another_program_is_none() -> None:
    for status, value in ((200, None), (200, []), (200, {}), (200, {"run": "a"}), (404, {"run": "a", "phase": "load"})):
        with pytest.raises(ValueError, match="expected the state of rank 0"):
            parse_reply(status, value)
    assert parse_reply(409, "x").refused == "refused"
    assert parse_reply(200, {"run": "a", "phase": "load", "code": "0"}) == Reply("a", "load")
