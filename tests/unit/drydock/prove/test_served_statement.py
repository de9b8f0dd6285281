"""What a statement takes from a machine, and what keeps it from being about an image and a host."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drydock.core.errors import UntrustedError
from drydock.model.record import dump_record
from drydock.prove import served_statement
from drydock.prove.served_statement import Served, ServedSubject
from entrypoints.plugin.drydock_plugin import supervisor_report
from tests.support.hosts import expect

DIGEST, OTHER = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
NOW = 1_800_000_000
SUBJECT = ServedSubject(
    "habana1.22-fork0.9", {"linux/amd64": (DIGEST,)}, {"linux/amd64": "c" * 64}, NOW - 10_000, OTHER
)


def facts_of(host: str) -> Any:
    return json.loads((expect.HOSTS / host / "facts.json").read_text())


def served(**changes: Any) -> Served:
    """What `prove` could have seen on a machine with eight HL-225."""
    record = Served(
        variant="habana1.22-fork0.9",
        platform="linux/amd64",
        foundation=OTHER,
        inputs_sha256="c" * 64,
        commit="",
        host=served_statement.reduce_facts(facts_of("habana-gaudi2-8x")),
        checks={"HPU-001": "PASS", "CPU-002": "WARN"},
        command=("python3", "-m", "vllm"),
        environment={"OMP_NUM_THREADS": "8"},
        known_answer=("prefill and decode agree on 16 tokens",),
        memory=("Available KV cache memory: 61.25 GiB",),
        began=NOW - 100,
        ready=NOW - 40,
        ended=NOW - 30,
    )
    return record.model_copy(update=changes)


def problems(record: Served, digest: str = DIGEST, **changes: Any) -> list[str]:
    return list(served_statement.find_problems(digest, record, SUBJECT._replace(**changes), NOW))


def test_a_statement_about_the_image_and_the_host_has_no_problem() -> None:
    host = served_statement.reduce_facts(facts_of("habana-gaudi2-8x"))

    assert problems(served(), host=host) == []
    assert problems(served(), foundation=None) == []
    assert problems(served(), max_age=1) == []


def test_all_that_differs_is_said_with_what_was_found_and_expected() -> None:
    host = served_statement.reduce_facts(facts_of("habana-gaudi2e-8x"))
    texts = problems(served(foundation=DIGEST), OTHER, host=host)

    assert texts[0] == f"it is about the image {OTHER}, expected {DIGEST}"
    assert texts[1] == f"it is about {DIGEST}, expected the foundation {OTHER}"
    devices = next(text for text in texts if "devices" in text)
    assert "found 8 of HL-225 (103079215104 bytes), expected 8 of HL-288E" in devices
    assert any("another host: versions: found driver 1.22.0" in text for text in texts)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"began": NOW - 20_000}, "older than the image's inputs of 2027-01-15T05:13:20Z"),
        ({"ended": NOW + 7200}, "later than now (2027-01-15T08:00:00Z)"),
        ({"ready": NOW - 200}, "before it began"),
    ],
)
def test_a_time_that_cannot_be_is_a_problem(changes: dict[str, int], expected: str) -> None:
    (text,) = problems(served(**changes))

    assert expected in text


RIGHT = (
    "prefill and decode agree on 16 tokens: 'of 3' after 'one, two'",
    "1 recorded answer of SmolLM2-135M-Instruct given",
    "/v1/embeddings gives equal answers to equal requests: a vector of 384 numbers for each text",
)


@pytest.mark.parametrize("line", RIGHT)
def test_each_right_answer_counts_with_what_was_not_compared_next_to_it(line: str) -> None:
    lines = (line, "not compared: no answer is recorded for this model", "'Where is it?' → 'In Paris.'")
    assert problems(served(known_answer=lines)) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"variant": "cpu-vllm0.32"}, "it is about the variant cpu-vllm0.32, expected habana1.22-fork0.9"),
        ({"platform": "linux/arm64"}, "it is about linux/arm64, expected linux/amd64"),
        ({"inputs_sha256": "d" * 64}, f"of the inputs {'d' * 64}, expected {'c' * 64}"),
        ({"foundation": None}, f"it is about no foundation, expected the foundation {OTHER}"),
        ({"checks": {"HPU-001": "FAIL", "CPU-002": "PASS"}}, "checks of its host failed: HPU-001"),
        ({"known_answer": ()}, "of no answer that it was compared"),
        ({"known_answer": ("not compared: it cannot",)}, "of no answer that it was compared"),
        ({"known_answer": ("'What?' → 'This.'",)}, "of no answer that it was compared"),
        ({"known_answer": (*RIGHT, "token 3: decode chose 7, prefill 9")}, "that the known answer was given, but"),
        ({"known_answer": (*RIGHT, "prefill and decode agree on 0 tokens")}, "that the known answer was given, but"),
        ({"known_answer": (*RIGHT, "FAILED: prefill and decode agree on 16 tokens")}, "known answer was given, but"),
    ],
)
def test_what_says_the_opposite_is_a_problem(changes: dict[str, Any], expected: str) -> None:
    assert any(expected in text for text in problems(served(**changes)))


def test_an_age_is_compared_with_the_one_that_is_given() -> None:
    old = served(began=NOW - 9000, ready=NOW - 8500, ended=NOW - 8000)
    assert problems(old) == []
    (text,) = served_statement.find_problems(DIGEST, old, SUBJECT._replace(max_age=2), NOW + 2 * 86_400)
    assert "more than 2 days ago (--max-age)" in text


@pytest.mark.parametrize("host", expect.names())
def test_nothing_that_identifies_a_machine_is_taken_from_its_facts(host: str) -> None:
    facts = facts_of(host)
    text = json.dumps(dump_record(served_statement.reduce_facts(facts)))

    for device in facts["devices"]:
        assert not device["uuid"] or device["uuid"] not in text
        assert not device["bus"] or device["bus"] not in text


def test_lines_on_memory_are_taken_without_times_and_processes() -> None:
    log = (
        "(EngineCore pid=123) INFO 11-26 12:00:00 [gpu_worker.py:360] Available KV cache memory: 61.25 GiB\n"
        "INFO 11-26 12:00:00 [x.py:1] Starting\n"
        "\x1b[31mModel loading took 1 GiB\x1b[0m\n"
        "(EngineCore pid=123) INFO [kv_cache_utils.py:1] GPU KV cache size: 1,024 tokens\n"
    )

    assert served_statement.find_memory_lines(log) == (
        "Available KV cache memory: 61.25 GiB",
        "GPU KV cache size: 1,024 tokens",
    )
    assert len(served_statement.find_memory_lines(log * 1000)) == served_statement.MEMORY_LINES
    assert served_statement.MEMORY_MARKS == supervisor_report.MARKS


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"predicateType": "https://slsa.dev/provenance/v1"}, "expected a statement of urn:drydock:served:v1, found"),
        ({"_type": "https://in-toto.io/Statement/v0.1"}, "expected a statement of"),
        ({"subject": []}, "subject: Tuple should have at least 1 item"),
        ({"subject": [{"name": "x"}]}, "subject.0.digest: Field required"),
        ({"subject": 2 * [{"name": "x", "digest": {"sha256": "a" * 64}}]}, "subject: Tuple should have at most 1 item"),
        ({"subject": [{"name": "x", "digest": {"sha256": "a" * 64, "sha512": "b"}}]}, "subject.0.digest.sha512"),
        ({"more": 1}, "more: Extra inputs are not permitted"),
        ({"predicate": {**dump_record(served()), "commit": "\x1b[2Jmain"}}, "predicate.commit: "),
        ({"predicate": {**dump_record(served()), "checks": {"HPU-001": "ERROR"}}}, "predicate.checks.HPU-001: "),
        ({"predicate": {**dump_record(served()), "verdict": "bad"}}, "predicate.verdict: Extra"),
        ({"predicate": {"variant": "x"}}, "predicate.platform: Field required"),
        ({"predicate": 5}, "predicate: "),
    ],
)
def test_a_statement_of_another_form_is_refused(change: dict[str, Any], expected: str) -> None:
    statement = {**served_statement.make_statement(served(), DIGEST), **change}
    with pytest.raises(UntrustedError) as caught:
        served_statement.parse_statement(statement, "s.json")

    assert str(caught.value).startswith("s.json: ")
    assert expected in str(caught.value)


def test_what_is_written_is_read() -> None:
    statement = json.loads(json.dumps(served_statement.make_statement(served(), DIGEST)))

    assert served_statement.parse_statement(statement, "s.json") == (DIGEST, served())


def test_what_a_statement_shows_is_told_and_what_was_not_compared() -> None:
    shown, skipped = served_statement.list_shown(served(foundation=None), SUBJECT._replace(foundation=None))

    assert shown[0].startswith("served on 8 of HL-225 (103079215104 bytes), ")
    assert "checks: 1 PASS, 1 WARN" in shown
    assert "memory: Available KV cache memory: 61.25 GiB" in shown
    assert [line.partition(":")[0] for line in skipped] == ["host", "foundation", "age"]
