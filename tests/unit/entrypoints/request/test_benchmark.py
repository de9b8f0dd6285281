"""The options of `bench`, and the requests that they make."""

from __future__ import annotations

import pytest

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.request.arguments import parse_arguments
from entrypoints.request.benchmark import LATENCY, Benchmark, Load, loads
from entrypoints.request.intents import Intents


def error(*words: str) -> EntrypointError:
    def parse() -> None:
        arguments = parse_arguments(("bench", *words))
        loads(arguments.bench, arguments.intents)

    with pytest.raises(EntrypointError) as caught:
        parse()
    assert caught.value.code == USAGE
    return caught.value


def test_requests_are_in_the_middle_of_the_ranges_and_never_outside() -> None:
    (load,) = loads(Benchmark(), Intents(input=(100, 300), output=(10, 90), concurrency=4))

    assert load == Load(200, 50, 4, 40, 0.5)
    assert loads(Benchmark(), Intents(input=(100, 300), output=(64, 64)))[0].spread == 0


def test_without_goals_the_lengths_are_those_of_vllms_own_data() -> None:
    assert loads(Benchmark(), Intents()) == (Load(1024, 128, 8, 80, 0),)
    assert loads(Benchmark(kind=LATENCY), Intents())[0].prompts == 30


def test_a_sweep_has_a_run_for_each_concurrency() -> None:
    arguments = parse_arguments(("bench", "--model", "m", "--sweep", "concurrency=32,1,8,8", "--prompts", "5"))

    assert [(load.concurrency, load.prompts) for load in loads(arguments.bench, Intents())] == [(1, 5), (8, 5), (32, 5)]


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


@pytest.mark.parametrize("text", ["rate=1", "concurrency", "concurrency=0", "concurrency=1,,2", "concurrency=1;2"])
def test_a_sweep_names_what_it_takes(text: str) -> None:
    assert "expected concurrency=" in error("--sweep", text).message


def test_a_concurrency_is_given_once() -> None:
    assert "both give it" in error("--sweep", "concurrency=1,2", "--concurrency", "4").message
    assert "--prompts 0" in error("--prompts", "0").message
