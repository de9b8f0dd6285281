"""Goals of the user, parsed or refused."""

from __future__ import annotations

import pytest

from entrypoints.core.errors import EntrypointError
from entrypoints.request.arguments import parse_arguments
from entrypoints.request.intents import Intents, parse_intents


def test_goals_are_taken_out_of_the_command_line() -> None:
    words = "serve m --input-range 4,1024 --output-range=100 --concurrency 8 --optimize latency --devices 0-2,5 -tp 2"
    arguments = parse_arguments(tuple(words.split()))

    assert arguments.intents == Intents((4, 1024), (100, 100), 8, "latency", (0, 1, 2, 5))
    assert arguments.vllm == ("m", "-tp", "2")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--input-range", "9,4"),
        ("--input-range", "0,4"),
        ("--output-range", "4,"),
        ("--output-range", "four"),
        ("--concurrency", "0"),
        ("--concurrency", "-1"),
        ("--optimize", "both"),
        ("--devices", "3-1"),
        ("--devices", ","),
    ],
)
def test_an_invalid_goal_is_refused_by_name(flag: str, value: str) -> None:
    with pytest.raises(EntrypointError, match=flag):
        parse_intents({flag: value})


def test_a_goal_cannot_be_used_with_check() -> None:
    with pytest.raises(EntrypointError, match="--concurrency cannot be used with check"):
        parse_arguments(("check", "--concurrency", "8"))


def test_a_workload_gives_the_ranges_that_are_not_set() -> None:
    requests = ((20, 5, 1.0), (812, 150, 2.0))

    assert Intents().with_workload(requests) == Intents(input=(20, 812), output=(5, 150), workload=requests)
    assert Intents(input=(4, 1024)).with_workload(requests).input == (4, 1024)
    assert parse_intents({"--workload": "lengths.csv"}).workload_file == "lengths.csv"


def test_a_hot_spot_is_two_numbers() -> None:
    assert parse_intents({"--hot-spot": "8,24000"}).hot == (8, 24000)
    for text in ("8", "0,24000", "a,b"):
        with pytest.raises(EntrypointError):
            parse_intents({"--hot-spot": text})
