"""What counts as progress."""

from __future__ import annotations

import pytest

from entrypoints.serve.progress import Engine, Look, Progress, parse_look

METRICS = """vllm:num_requests_running{engine="0",model_name="a b"} 2.0
vllm:num_requests_waiting{engine="0",model_name="a b"} 1.0
vllm:num_requests_running{engine="1",model_name="a b"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="a b",reason="capacity"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="a b"} 0.25
vllm:generation_tokens_total{engine="0",model_name="a b"} 17.0
vllm:generation_tokens_created{engine="0",model_name="a b"} 1.79e+09
vllm:engine_sleep_state{engine="0",model_name="a b",sleep_state="awake"} 1.0
http_requests_total{handler="/metrics"} 9.0
"""
BUSY = Engine(1.0, (1.0, 17.0))
IDLE = Engine(0.0, (0.0, 17.0))


def look(**engines: Engine) -> Look:
    return Look(engines)


def test_each_engine_has_its_requests_and_its_numbers() -> None:
    look = parse_look(METRICS)
    first, second = look.engines["0"], look.engines["1"]
    assert (first.unfinished, first.numbers, second.unfinished) == (3.0, (2.0, 1.0, 0.25, 17.0), 0.0)
    assert (look.engines.keys(), look.asleep) == ({"0", "1"}, False)


def test_what_an_engine_does_is_one_line() -> None:
    progress = Progress(0.0)
    progress.see(parse_look(METRICS), 1.0)
    assert progress.describe_engines(9.0)[0] == (
        "engine 0: running requests 2, waiting requests 1, KV cache 25 % used, no token for 9 s; as vLLM told 8 s ago"
    )
    progress.see(parse_look(METRICS.replace(" 17.0", " 18.0")), 10.0)
    assert "KV cache 25 % used, no token for 1 s; as vLLM told 1 s ago" in progress.describe_engines(11.0)[0]
    assert "KV cache unknown" in progress.describe_engines(11.0)[1]


def test_a_server_that_sleeps_is_told_apart() -> None:
    assert parse_look(METRICS.replace('"awake"} 1.0', '"awake"} 0.0')).asleep


@pytest.mark.parametrize("text", ["", "# nothing\n", "vllm:num_requests_running 3\n"])
def test_a_server_that_counts_nothing_has_no_engines(text: str) -> None:
    assert parse_look(text) == Look({})


def test_requests_without_any_change_are_a_stall() -> None:
    progress = Progress(0.0)
    for now in (0.0, 5.0, 10.0):
        progress.see(look(a=BUSY), now)
    assert progress.stalled(9.0, 10.0) == ("", 0.0)
    assert progress.stalled(10.0, 10.0) == ("requests wait at engine a without progress for 10 s", 10.0)


def test_a_part_of_the_kv_cache_is_progress_without_a_token() -> None:
    progress = Progress(0.0)
    for now, share in ((0.0, "0.1"), (9.0, "0.2"), (18.0, "0.3")):
        progress.see(look(a=Engine(1.0, ("1.0", share))), now)
    assert progress.stalled(20.0, 10.0)[0] == ""


def test_an_idle_engine_does_not_stall() -> None:
    progress = Progress(0.0)
    for now in (0.0, 100.0):
        progress.see(look(a=IDLE), now)
    assert progress.stalled(100.0, 10.0)[0] == ""


def test_one_hung_engine_is_seen_beside_one_that_works() -> None:
    progress = Progress(0.0)
    for now in (0.0, 5.0, 10.0):
        progress.see(look(a=BUSY, b=Engine(1.0, ("1.0", str(now)))), now)
    assert "engine a" in progress.stalled(10.0, 10.0)[0]


def test_a_token_that_does_not_come_is_a_stall_until_it_comes() -> None:
    progress = Progress(0.0)
    progress.see(look(a=IDLE), 0.0)
    progress.ask(5.0)
    progress.ask(12.0)  # repeated: the first one counts
    progress.see(look(a=IDLE), 15.0)
    assert progress.stalled(15.0, 10.0) == ("vLLM has not generated a token that it was asked for for 10 s", 10.0)
    progress.answer(16.0)
    assert progress.stalled(16.0, 10.0)[0] == ""


def test_a_server_that_does_not_answer_is_a_stall() -> None:
    progress = Progress(0.0)
    progress.see(look(a=BUSY), 1.0)
    assert progress.stalled(11.0, 10.0)[0] == "vLLM's server has not answered for 10 s"


def test_a_server_that_sleeps_owes_nothing() -> None:
    progress = Progress(0.0)
    progress.see(look(a=BUSY), 0.0)
    progress.ask(1.0)
    progress.see(Look({"a": BUSY}, asleep=True), 20.0)
    assert progress.stalled(20.0, 10.0)[0] == ""
