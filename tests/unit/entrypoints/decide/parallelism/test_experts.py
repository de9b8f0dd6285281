"""When ranks hold whole experts: by the aim, and beside LoRA adapters."""

from __future__ import annotations

import pytest

from entrypoints.decide.parallelism.experts import beside_adapters, experts_on_gpus
from entrypoints.decide.parallelism.rules import Rules
from entrypoints.request.intents import Intents
from entrypoints.request.vllm_flags import parse_user_flags

RULES = Rules(usable=0.9, reserved=0, activations=0, expert="tp")


@pytest.mark.parametrize(("aim", "expert"), [(None, "many"), ("latency", "needed"), ("throughput", "tp")])
def test_on_gpus_experts_stay_whole_for_throughput(aim: str | None, expert: str) -> None:
    assert experts_on_gpus(parse_user_flags((), {}, intents=Intents(optimize=aim))) == expert


@pytest.mark.parametrize(
    ("flags", "vllm", "since", "expert"),
    [
        ((), "0.18.0", (0, 21), "tp"),
        (("--enable-lora",), "0.18.0", (0, 21), ""),
        (("--enable-lora",), "0.21.0", (0, 21), "tp"),
        (("--enable-lora",), "0.33.0", (0, 21), "tp"),
        (("--enable-lora", "--fully-sharded-loras"), "0.33.0", (0, 21), ""),
        (("--enable-lora",), "0.33.0", None, ""),
    ],
)
def test_adapters_exclude_whole_experts_where_vllm_would_not_start(
    flags: tuple[str, ...], vllm: str, since: tuple[int, ...] | None, expert: str
) -> None:
    assert beside_adapters(RULES, parse_user_flags(flags, {}), vllm, since).expert == expert
