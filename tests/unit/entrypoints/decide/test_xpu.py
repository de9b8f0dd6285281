"""What is decided on Intel GPUs beyond the recorded plans."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from entrypoints.core.errors import DOES_NOT_FIT
from entrypoints.core.records import Facts
from entrypoints.model.read import ModelFacts
from entrypoints.model.weights import Weights
from tests.support.decision_rows import Row, check, with_devices
from tests.support.hosts.host_models import LLAMA, SMOLLM2

B60, MAX1550, MAX1100, FLEX = "xpu-arc-pro-b60-2x", "xpu-max1550-2x", "xpu-max1100-1x", "xpu-flex170-1x"
MASK, DTYPE, EXECUTOR = "ZE_AFFINITY_MASK", "--dtype", "--distributed-executor-backend"
PLAIN = "VLLM_MLA_DISABLE"
WINDOWS = "--disable-sliding-window"


def several(count: int, gib: int) -> Callable[[Facts], Facts]:
    """Return a change that makes several GPUs of the first."""
    return lambda facts: facts._replace(
        devices=tuple(facts.devices[0]._replace(number=number, memory_total=gib << 30) for number in range(count))
    )


def card(name: str, architecture: str) -> Callable[[Facts], Facts]:
    return with_devices(1, name=name, architecture=architecture)


def windowed(tokens: int) -> ModelFacts:
    """Return a model with a sliding window in half of its layers."""
    assert LLAMA.geometry
    return LLAMA._replace(geometry=LLAMA.geometry._replace(window=tokens, sliding_layers=16))


def latent(architecture: str) -> ModelFacts:
    """Return a model of latent attention."""
    assert SMOLLM2.geometry
    geometry = SMOLLM2.geometry._replace(heads=16, kv_heads=16, latent=576, plain_head_size=192)
    return SMOLLM2._replace(architecture=architecture, geometry=geometry)


ROWS = {
    "the batch gives way before a plan is refused for 2 % of the memory": Row(
        B60,
        "-tp 1",
        model=LLAMA._replace(weights=Weights(0, 10_500_000_000, 0)),
        values={"--max-num-batched-tokens": "2048"},
        finds={"PLAN-028": "--max-num-batched-tokens 2048"},
    ),
    "the user's does not": Row(
        B60,
        "-tp 1 --max-num-batched-tokens 8192",
        model=LLAMA._replace(weights=Weights(0, 10_500_000_000, 0)),
        code=DOES_NOT_FIT,
    ),
    "one of two cards is named": Row(B60, "-tp 1", values={MASK: "0"}),
    "--devices are named": Row(B60, goals={"devices": (1,)}, values={MASK: "1"}),
    "stages are kept and commented on": Row(
        MAX1550, "-tp 1 -pp 2", env={MASK: "0,1"}, values={MASK: None, EXECUTOR: "mp"}, finds={"PLAN-036": "2 stages"}
    ),
    "the old stack needs Ray": Row(FLEX, "-tp 2", changed=several(2, 64), values={EXECUTOR: "ray"}),
    "a type of the stack stands": Row(B60, target="xpu-llm-scaler-vllm0.21", values={DTYPE: None}),
    "windows stay on for a model with them": Row(
        B60,
        model=windowed(128),
        target="xpu-llm-scaler-vllm0.21",
        values={WINDOWS: False},
        because={WINDOWS: "128 tokens"},
    ),
    "a window as long as the model costs nothing": Row(
        B60, model=windowed(131_072), target="xpu-llm-scaler-vllm0.21", values={WINDOWS: None}
    ),
    "vLLM's own stack leaves windows on": Row(B60, model=windowed(128), values={WINDOWS: None}),
    "latent attention of DeepSeek-V2 is computed as plain attention": Row(
        B60, model=latent("DeepseekV2ForCausalLM"), values={PLAIN: "1"}, because={PLAIN: "Intel serves"}
    ),
    "of other architectures it is not": Row(B60, model=latent("Glm4MoeLiteForCausalLM"), values={PLAIN: None}),
    "the user's choice of it stays": Row(
        B60, model=latent("DeepseekV2ForCausalLM"), env={PLAIN: "0"}, values={PLAIN: None}
    ),
    "an A770 gets float16": Row(MAX1100, changed=card("Intel Arc A770", "acm-g10"), values={DTYPE: "float16"}),
    "a B580 computes bfloat16": Row(MAX1100, changed=card("Intel Arc B580", "bmg-g21"), values={DTYPE: "auto"}),
    "not on the old stack": Row(
        FLEX, model=SMOLLM2, changed=card("Intel Arc B580", "bmg-g21"), values={DTYPE: "float16"}
    ),
    "bfloat16 on an A770 is kept": Row(
        MAX1100, "--dtype bfloat16", changed=card("Intel Arc A770", "acm-g10"), finds={"XPU-031": "A770"}
    ),
    "an unknown quantisation is commented on": Row(
        B60, model=SMOLLM2._replace(quantization="bitsandbytes"), finds={"XPU-032": "bitsandbytes"}
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_decisions(row: Row) -> None:
    check(row)
