"""What rank 0 believes, and whose end was the first."""

from __future__ import annotations

import random

import pytest

from entrypoints.serve.phases import State
from entrypoints.serve.rank_protocol import (
    CAUSE_AT_MOST,
    LATE,
    Final,
    Member,
    Reply,
    Report,
    Roll,
    check_signature,
    encode_report,
    parse_reply,
    parse_report,
    sign_report,
)
from entrypoints.serve.status import HEAD_AT_MOST

MEMBER = Member(rank=0, hosts=3, leader="n0", port=8001, patience=30.0, wait=600.0)
FIRST, SECOND = "10.0.0.2", "10.0.0.3"


def roll() -> Roll:
    """Return a list on which both other ranks have reported at 100 s."""
    rank_roll = Roll(MEMBER, "run0", 90.0)
    assert rank_roll.absent() == (1, 2)
    assert rank_roll.take(Report(1, "run1", "run0", phase="load", number=2), FIRST, 100.0) == ""
    assert rank_roll.take(Report(2, "run2", "run0", phase="load", number=2), SECOND, 100.0) == ""
    assert rank_roll.absent() == ()
    return rank_roll


def test_the_first_end_counts_and_not_the_first_report() -> None:
    rank_roll = roll()
    rank_roll.take(Report(2, "run2", "run0", ended="connection closed", ago=0.1, number=3), SECOND, 101.0)
    rank_roll.take(Report(1, "run1", "run0", ended="killed by signal 9", ago=0.5, number=3), FIRST, 101.2)

    assert rank_roll.first(101.3) == f"rank 1 ({FIRST}) ended: killed by signal 9"


def test_a_later_report_does_not_change_an_end() -> None:
    rank_roll = roll()
    rank_roll.take(Report(1, "run1", "run0", ended="out of memory", number=3), FIRST, 101.0)
    rank_roll.take(Report(1, "run1", "run0", ended="stopped", number=4), FIRST, 102.0)

    assert rank_roll.first(103.0) == f"rank 1 ({FIRST}) ended: out of memory"


def test_a_silent_rank_has_ended_when_it_was_last_heard() -> None:
    rank_roll = roll()
    rank_roll.take(Report(2, "run2", "run0", number=3), SECOND, 125.0)

    assert rank_roll.first(129.9) == ""
    assert rank_roll.first(130.0) == f"rank 1 ({FIRST}) ended: it has not reported for 30 s"


def test_without_patience_silence_is_no_end() -> None:
    rank_roll = Roll(MEMBER._replace(patience=0.0, wait=0.0), "run0", 90.0)
    rank_roll.take(Report(1, "run1", "run0"), FIRST, 100.0)

    assert rank_roll.first(100_000.0) == ""
    assert not rank_roll.waited(100_000.0)


@pytest.mark.parametrize("joined", ["", "run0"])
@pytest.mark.parametrize("address", ["192.0.2.9", FIRST])
def test_another_run_does_not_speak_for_a_rank(joined: str, address: str) -> None:
    rank_roll = roll()
    refused = rank_roll.take(Report(1, "foreign", joined, stopping="a lie", ended="a lie", number=9), address, 101.0)

    assert refused == f"rank 1 ({FIRST}) is a part of the running server, which ends first"
    assert (rank_roll.first(102.0), rank_roll.leaving()) == ("", "")
    assert rank_roll.take(Report(1, "run1", "run0", number=3), FIRST, 103.0) == ""


def test_a_signed_report_of_a_new_start_at_the_ranks_address_ends_the_server() -> None:
    rank_roll = roll()
    rank_roll.member = MEMBER._replace(secret=b"secret")
    for joined, address in (("", FIRST), ("run0", SECOND)):  # an old report, sent again; a second host with this rank
        assert rank_roll.take(Report(1, "run1b", joined), address, 101.0) != ""
        assert rank_roll.first(101.0) == ""
    assert rank_roll.take(Report(1, "run1b", "run0"), FIRST, 101.0) != ""
    assert rank_roll.first(102.0) == f"rank 1 ({FIRST}) ended: it was started again"


def test_a_rank_that_has_not_joined_takes_no_place_and_ends_nothing() -> None:
    rank_roll = Roll(MEMBER, "run0", 90.0)
    assert rank_roll.take(Report(1, "foreign", stopping="a lie", ended="a lie"), "192.0.2.9", 100.0) == ""
    assert rank_roll.absent() == (1, 2)
    assert (rank_roll.first(200.0), rank_roll.leaving()) == ("", "")
    assert rank_roll.take(Report(1, "run1", "run0"), FIRST, 201.0) == ""


def test_a_report_that_is_sent_again_changes_nothing() -> None:
    rank_roll = roll()
    rank_roll.take(Report(1, "run1", "run0", stopping="SIGTERM received", number=3), FIRST, 101.0)
    rank_roll.take(Report(1, "run1", "run0", number=4), FIRST, 102.0)
    for number in (3, 4):
        assert (
            rank_roll.take(Report(1, "run1", "run0", stopping="again", ended="again", number=number), FIRST, 129.0)
            == ""
        )

    assert rank_roll.leaving() == ""
    rank_roll.take(Report(2, "run2", "run0", number=3), SECOND, 132.0)
    assert rank_roll.first(132.0) == f"rank 1 ({FIRST}) ended: it has not reported for 30 s"


def test_a_report_is_believed_only_with_the_signature_of_the_same_secret() -> None:
    report = encode_report(Report(1, "run1", ended="a & b"))
    signed = sign_report(report, b"one")

    assert sign_report(report, b"") == report
    for query, secret, disbelief in (
        (signed, b"one", ""),
        (report, b"", ""),
        (report, b"one", "it is not signed with the group secret"),
        (signed, b"other", "it is signed with another group secret"),
        (signed[:-1], b"one", "it is signed with another group secret"),
        (signed.replace("run1", "run2"), b"one", "it is signed with another group secret"),
        (f"{signed}\xe9&rank=2", b"one", "it is signed with another group secret"),
        (signed, b"", "it is signed, but this rank has no group secret"),
    ):
        assert check_signature(query, secret) == (query.partition("&hmac=")[0], disbelief), query


def test_a_rank_of_an_earlier_rank_0_is_refused() -> None:
    rank_roll = Roll(MEMBER, "run0", 90.0)
    assert rank_roll.take(Report(1, "run1", joined="earlier"), FIRST, 100.0) == "rank 0 was started again"
    assert rank_roll.absent() == (1, 2)


@pytest.mark.parametrize("rank", [0, 3, 10**19])
def test_a_rank_that_the_group_does_not_have_is_refused(rank: int) -> None:
    assert roll().take(Report(rank, "run9"), FIRST, 100.0) == f"rank {rank}: expected a rank from 1 to 2"


def test_every_rank_that_still_reports_learns_of_the_end() -> None:
    rank_roll = roll()
    rank_roll.final = Final(0, "SIGTERM received")
    rank_roll.take(Report(1, "run1", "run0", number=3), FIRST, 101.0)

    assert not rank_roll.informed(102.0)
    assert rank_roll.informed(100.0 + LATE)  # rank 2 is silent
    rank_roll.take(Report(2, "run2", "run0", number=3), SECOND, 102.0)
    assert rank_roll.informed(102.0)


def test_an_answer_shows_no_names_of_reports() -> None:
    answer = str(roll().answer(State(), 1.0, 101.0))
    assert "run0" in answer
    assert "run1" not in answer
    assert "run2" not in answer


def test_reports_survive_the_way() -> None:
    report = Report(1, "a" * 64, "b" * 64, "engine_init", 1.5, "SIGTERM received", 'é "x" & y=1', 0.25, 10**15)
    assert parse_report(encode_report(report)) == report
    assert parse_report(encode_report(Report(2, "a"))) == Report(2, "a")


def test_the_longest_report_fits_a_request() -> None:
    text = "\u20ac" * CAUSE_AT_MOST
    report = Report(1023, "a" * 64, "b" * 64, "known_answer", 1e6 / 3, text, text, 1e6 / 3, 10**15)
    query = sign_report(encode_report(report), b"secret")
    request_head = (
        f"POST /group? HTTP/1.1\r\nHost: {'h' * 253}:65535\r\nX-Request-Id: drydock-1{'0' * 18}\r\n" + "x" * 150
    )

    assert len(request_head) + len(query) < HEAD_AT_MOST
    assert parse_report(check_signature(query, b"secret")[0]).ended.startswith("\u20ac" * 50)


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
    assert parse_reply(409, "x") == parse_reply(403, {"run": "a b"}) == Reply(refused="refused")
    assert parse_reply(409, {"run": "a", "error": "b"}) == Reply("a", refused="b")
    assert parse_reply(200, {"run": "a", "phase": "load", "code": "0"}) == Reply("a", "load")
