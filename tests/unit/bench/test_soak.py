"""What a soak finds wrong."""

from __future__ import annotations

from bench.soak import SMALL, Soak, compute_memory_growth, find_soak_problems

MIB = 1 << 20
FLAT = tuple({"37 VLLM::EngineCore": 500 * MIB, "1 python3": 30 * MIB} for _ in range(9))
PASSED = Soak({"whole 200": 90, "garbage 400": 9}, {"whole 503": 12}, (), FLAT, 0)


def test_a_server_that_lost_nothing_and_stayed_flat_passes() -> None:
    assert find_soak_problems(PASSED) == []


def test_a_process_that_grows_is_named() -> None:
    growing = tuple({"37 VLLM::EngineCore": (500 + 40 * number) * MIB} for number in range(9))
    assert find_soak_problems(PASSED._replace(samples=growing)) == ["memory of 37 VLLM::EngineCore changed by +18%"]


def test_the_first_third_and_small_processes_are_not_compared() -> None:
    warming = ({"a": 100 * MIB},) * 3 + ({"a": 500 * MIB, "b": SMALL - 1},) * 5 + ({"a": 500 * MIB, "b": MIB},)
    assert compute_memory_growth(warming) == {"a": 0.0}


def test_each_loss_is_a_problem() -> None:
    soak = PASSED._replace(lost=("whole incomplete",), stopping={"whole 500": 3}, code=137, answers={})
    assert find_soak_problems(soak) == [
        "lost before SIGTERM: whole incomplete",
        "while stopping, whole 500: 3 times",
        "exit code 137, expected 0",
        "no whole request was answered",
    ]
