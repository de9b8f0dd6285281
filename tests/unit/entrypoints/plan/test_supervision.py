"""What a supervised vLLM gets for its drain, and how long it may make no progress."""

from __future__ import annotations

import pytest

from entrypoints.core.cascade import COMMAND_LINE, DEFAULT, cascade
from entrypoints.core.records import Value
from entrypoints.decide.spread.executor import PLUGIN, PYTHON_PATH
from entrypoints.plan.supervision import MIDDLEWARE_NAME, draining, stall_reason
from entrypoints.request.flags import MIDDLEWARE, SHUTDOWN
from entrypoints.request.vllm_flags import parse_given
from tests.unit.entrypoints.plan.test_plan import SMOLLM2

KNOWN = ("--model", SHUTDOWN, MIDDLEWARE)


def values(
    *words: str, env: dict[str, str] | None = None, exported: str = "", known: tuple[str, ...] = KNOWN
) -> object:
    base = {PYTHON_PATH: Value(exported, "the base image")} if exported else {}
    chosen = draining(parse_given(("--model", "m", *words), env or {}, known), 7.5, base)
    return {name: value.value for name, value in chosen.items()}


def test_a_vllm_that_can_refuse_gets_the_middleware_and_its_folder() -> None:
    assert values() == {SHUTDOWN: "8", MIDDLEWARE: MIDDLEWARE_NAME, PYTHON_PATH: PLUGIN}


def test_a_vllm_without_the_flags_gets_neither() -> None:
    assert values(known=()) == {}


def test_what_the_base_image_exports_stays_before_the_folder() -> None:
    assert values(exported="/cann/python") == {
        SHUTDOWN: "8",
        MIDDLEWARE: MIDDLEWARE_NAME,
        PYTHON_PATH: f"/cann/python:{PLUGIN}",
    }


@pytest.mark.parametrize(("words", "env"), [((MIDDLEWARE, "my.Own"), {}), ((), {PYTHON_PATH: "/mine"})])
def test_what_the_user_sets_is_left_alone(words: tuple[str, ...], env: dict[str, str]) -> None:
    assert values(*words, env=env) == {SHUTDOWN: "8"}


@pytest.mark.parametrize(
    ("accelerator", "flags", "seconds"),
    [
        ("cuda", {"--max-num-batched-tokens": "8192"}, "77"),
        ("cpu", {"--max-num-batched-tokens": "8192"}, "334"),
        ("cuda", {"--max-model-len": "128k"}, "77"),
        ("cuda", {"--max-model-len": "2048"}, "65"),
        ("openvino", {"--max-num-batched-tokens": "256"}, "69"),
        ("cuda", {"--max-model-len": "auto"}, "77"),
    ],
)
def test_the_stall_time_covers_the_longest_step(accelerator: str, flags: dict[str, str], seconds: str) -> None:
    chosen = cascade([(DEFAULT, {name: Value(value, "") for name, value in flags.items()})])
    assert stall_reason(accelerator, SMOLLM2, chosen).value == seconds


def test_a_stall_time_of_the_user_wins_and_0_is_one() -> None:
    reason = stall_reason("cpu", SMOLLM2, {}, 0.0)
    assert (reason.value, reason.origin) == ("0", COMMAND_LINE)
