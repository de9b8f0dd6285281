"""What a supervised vLLM gets for its drain, and how long it may make no progress."""

from __future__ import annotations

import pytest

from entrypoints.core.records import Value
from entrypoints.core.settings_precedence import COMMAND_LINE, DEFAULT, merge_setting_layers
from entrypoints.plan.supervision import choose_draining, stall_reason
from entrypoints.request.flags import SHUTDOWN
from entrypoints.request.vllm_flags import parse_user_flags
from tests.unit.entrypoints.plan.test_plan import SMOLLM2


def test_a_vllm_that_drains_gets_the_time() -> None:
    def flags(*option_strings: str) -> object:
        return {
            name: value.value
            for name, value in choose_draining(parse_user_flags(("--model", "m"), {}, option_strings), 7.5).items()
        }

    assert flags("--model", SHUTDOWN) == {SHUTDOWN: "8"}
    assert flags() == {}


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
    chosen = merge_setting_layers([(DEFAULT, {name: Value(value, "") for name, value in flags.items()})])
    assert stall_reason(accelerator, SMOLLM2, chosen).value == seconds


def test_a_stall_time_of_the_user_wins_and_0_is_one() -> None:
    reason = stall_reason("cpu", SMOLLM2, {}, 0.0)
    assert (reason.value, reason.origin) == ("0", COMMAND_LINE)
