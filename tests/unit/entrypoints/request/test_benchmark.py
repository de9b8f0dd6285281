"""The options of `bench`, and the requests that they make."""

from __future__ import annotations

import pytest

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.request.arguments import parse_arguments
from entrypoints.request.benchmark import LATENCY, Benchmark, Load, load_of
from entrypoints.request.intents import Intents


def test_requests_are_in_the_middle_of_the_ranges_and_never_outside() -> None:
    load = load_of(Benchmark(), Intents(input=(100, 300), output=(10, 90), concurrency=4))

    assert load == Load(200, 50, 4, 40, 0.5)
    assert load_of(Benchmark(), Intents(input=(100, 300), output=(64, 64))).spread == 0


def test_without_goals_the_lengths_are_those_of_vllms_own_data() -> None:
    assert load_of(Benchmark(), Intents()) == Load(1024, 128, 8, 80, 0)
    assert load_of(Benchmark(kind=LATENCY), Intents()).prompts == 30
    assert load_of(Benchmark(prompts=5), Intents()).prompts == 5


def test_words_are_drydocks_the_servers_or_the_benchmarks() -> None:
    words = (
        "bench",
        "--model",
        "m",
        "--concurrency",
        "4",
        "--drain-timeout=9",
        "--kind",
        "serve",
        "--dtype",
        "float16",
    )
    arguments = parse_arguments((*words, "--", "--request-rate", "2", "--json"))

    assert arguments.vllm == ("--model", "m", "--dtype", "float16")
    assert arguments.bench.server == ("--concurrency=4", "--drain-timeout=9")
    assert arguments.bench.words == ("--request-rate", "2", "--json")
    assert not arguments.options.json
    assert parse_arguments(("serve", "m", "--", "x")).vllm == ("m", "--", "x")


def test_a_number_of_requests_is_above_zero() -> None:
    with pytest.raises(EntrypointError, match="--prompts 0: invalid value") as caught:
        parse_arguments(("bench", "--prompts", "0"))
    assert caught.value.code == USAGE
