"""What vLLM serves with on TPUs: memory by generation, chips, shapes, the compile cache."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drydock.core.paths import ROOT
from entrypoints.core.errors import DOES_NOT_FIT, HOST, MODEL, USAGE, EntrypointError
from entrypoints.core.records import Device
from entrypoints.decide.case import Case
from entrypoints.decide.records import Decision
from entrypoints.decide.tpu import decide, rules, token_paddings
from entrypoints.model.read import ModelFacts
from entrypoints.request.intents import Intents
from entrypoints.request.vllm_flags import parse_given
from tests.support.hosts.models import LLAMA, SMOLLM2
from tests.support.sample import facts

PROFILE: dict[str, Any] = json.loads((ROOT / "images" / "tpu-vllm0.21" / "profile.json").read_text())
GIB = 1 << 30


def chips(generation: str, count: int, memory: int | None = None) -> tuple[Device, ...]:
    return tuple(
        Device(number, f"TPU {generation}", memory, None, 0, architecture=generation) for number in range(count)
    )


def plan(
    what: ModelFacts, devices: tuple[Device, ...], *words: str, env: dict[str, str] | None = None, **intents: Any
) -> Decision:
    given = parse_given(words, env or {}, intents=Intents(**intents))
    return decide(PROFILE, facts(accelerator="tpu", devices=devices), what, given)


def value(decision: Decision, name: str) -> str | None:
    return str(decision.values[name].value) if name in decision.values else None


@pytest.mark.parametrize(
    ("generation", "count", "tensor"),
    [("v5e", 8, "4"), ("v4", 4, "2"), ("v6e", 8, "2"), ("v5p", 4, "1"), ("v7x", 2, "1")],
)
def test_a_generation_tells_its_memory(generation: str, count: int, tensor: str) -> None:
    found = plan(LLAMA, chips(generation, count), "--max-num-seqs", "1", optimize="throughput")

    assert value(found, "--tensor-parallel-size") == tensor


def test_a_running_framework_tells_it_better() -> None:
    found = plan(LLAMA, chips("v6e", 8, 95 * GIB), "--max-num-seqs", "1", optimize="throughput")

    assert value(found, "--tensor-parallel-size") == "1"


def test_a_model_too_large_for_one_chip_is_refused_with_what_would_fit() -> None:
    with pytest.raises(EntrypointError) as found:
        plan(LLAMA, chips("v5e", 1))

    assert found.value.code == DOES_NOT_FIT


def test_no_chip_and_unknown_chips_are_errors_of_the_host() -> None:
    with pytest.raises(EntrypointError) as none:
        plan(SMOLLM2, ())
    with pytest.raises(EntrypointError) as unknown:
        plan(SMOLLM2, chips("v99", 1))

    assert (none.value.code, unknown.value.code) == (HOST, HOST)
    assert "v6e" in unknown.value.message


def test_chips_that_the_user_does_not_need_stay_free() -> None:
    decision = plan(SMOLLM2, chips("v6e", 8), "-tp", "1")

    assert [value(decision, name) for name in ("TPU_VISIBLE_CHIPS", "TPU_CHIPS_PER_PROCESS_BOUNDS")] == ["0", "1,1,1"]
    assert value(plan(LLAMA, chips("v6e", 2)), "TPU_VISIBLE_CHIPS") is None


def test_only_chips_that_the_user_made_visible_count() -> None:
    decision = plan(SMOLLM2, chips("v6e", 8), env={"TPU_VISIBLE_CHIPS": "3"})
    with pytest.raises(EntrypointError) as wrong:
        plan(SMOLLM2, chips("v6e", 8), env={"TPU_VISIBLE_CHIPS": "all"})

    assert (value(decision, "--tensor-parallel-size"), value(decision, "TPU_VISIBLE_CHIPS")) == ("1", None)
    assert wrong.value.code == USAGE


def test_both_dies_of_a_chip_are_one_visible_chip() -> None:
    dies = tuple(device._replace(card=device.number // 2) for device in chips("v7x", 4))

    assert value(plan(LLAMA, dies, "--tensor-parallel-size", "2"), "TPU_VISIBLE_CHIPS") == "0"


@pytest.mark.parametrize(("generation", "count", "memory"), [("v7x", 8, 94.75), ("v6e", 8, 31.25)])
def test_a_slice_is_used_whole_with_the_memory_of_each_core(generation: str, count: int, memory: float) -> None:
    case = Case(PROFILE, facts(accelerator="tpu", devices=chips(generation, count)), LLAMA, parse_given((), {}))
    found = rules(case, "bfloat16")

    assert (found.whole, found.memory) == (True, int(memory * GIB))


def test_experts_stay_whole_over_several_ranks() -> None:
    assert LLAMA.geometry
    experts = LLAMA._replace(geometry=LLAMA.geometry._replace(experts=128, expert_width=768))

    assert plan(experts, chips("v6e", 8), "-tp", "8").values["--enable-expert-parallel"].value is True
    assert "--enable-expert-parallel" not in plan(experts, chips("v6e", 8), "-tp", "1").values


@pytest.mark.parametrize(
    ("least", "most", "gap", "sizes"),
    [
        (16, 2048, 0, (16, 32, 64, 128, 256, 512, 1024, 2048)),
        (16, 300, 0, (16, 32, 64, 128, 256, 512)),
        (16, 512, 128, (16, 32, 64, 128, 256, 384, 512)),
        (8, 8, 0, (8,)),
    ],
)
def test_token_paddings_are_those_of_the_runner(least: int, most: int, gap: int, sizes: tuple[int, ...]) -> None:
    assert token_paddings(least, most, gap) == sizes


def test_how_many_shapes_are_compiled_is_told() -> None:
    usual = {finding.id: finding for finding in plan(SMOLLM2, chips("v6e", 1)).findings}
    fewer = plan(SMOLLM2, chips("v6e", 1), "--max-num-batched-tokens", "512", "--max-num-seqs", "16").findings
    none = plan(SMOLLM2, chips("v6e", 1), env={"SKIP_JAX_PRECOMPILE": "1"}).findings

    assert usual["TPU-041"].found.startswith("8 token counts (16, 32, ")
    assert [finding.found for finding in fewer] == ["6 token counts (16, 32, 64, 128, 256, 512) and 2 request counts"]
    assert none == ()


def test_latent_attention_gets_what_the_platform_asks_for() -> None:
    assert SMOLLM2.geometry is not None
    latent = SMOLLM2._replace(geometry=SMOLLM2.geometry._replace(latent=576))
    decision = plan(latent, chips("v6e", 1))

    assert (value(decision, "NEW_MODEL_DESIGN"), value(plan(SMOLLM2, chips("v6e", 1)), "NEW_MODEL_DESIGN")) == (
        "1",
        None,
    )
    assert "enable_dp_attention" in str(value(decision, "--additional-config"))


def test_a_quantisation_that_the_platform_refuses_is_an_error_before_the_start() -> None:
    with pytest.raises(EntrypointError) as found:
        plan(SMOLLM2._replace(quantization="bitsandbytes"), chips("v6e", 1))

    assert found.value.code == MODEL


def test_the_platform_chooses_its_own_executor() -> None:
    assert value(plan(LLAMA, chips("v4", 4)), "--distributed-executor-backend") is None
