"""What is decided on Intel GPUs, and why."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drydock.core.paths import ROOT
from entrypoints.core.records import Facts, ServePlan
from entrypoints.decide import xpu
from entrypoints.plan.plan import command
from entrypoints.request.intents import NONE, Intents
from entrypoints.request.vllm_flags import parse_given
from tests.support.hosts.expect import profile_of, read
from tests.support.hosts.models import LLAMA, SMOLLM2


def host(name: str) -> tuple[dict[str, Any], Facts]:
    profile = profile_of(name)
    return profile, read(name, profile)


def plan(name: str, *words: str, env: dict[str, str] | None = None, intents: Intents = NONE) -> ServePlan:
    profile, facts = host(name)
    return command(profile, facts, SMOLLM2, parse_given((SMOLLM2.name, *words), env or {}, (), intents))


def flag(found: ServePlan, name: str) -> str | None:
    return found.argv[found.argv.index(name) + 1] if name in found.argv else None


def test_level_zero_is_asked_to_number_by_pci_address() -> None:
    assert plan("xpu-arc-pro-b60-2x").env["ZE_ENABLE_PCI_ID_DEVICE_ORDER"] == "1"


def test_one_of_two_cards_is_named() -> None:
    assert plan("xpu-arc-pro-b60-2x", "-tp", "1").env["ZE_AFFINITY_MASK"] == "0"
    assert plan("xpu-arc-pro-b60-2x", intents=Intents(devices=(1,))).env["ZE_AFFINITY_MASK"] == "1"


def test_both_cards_need_no_mask_and_serve_as_processes() -> None:
    found = plan("xpu-max1550-2x", "-tp", "1", "-pp", "2", env={"ZE_AFFINITY_MASK": "0,1"})

    assert "ZE_AFFINITY_MASK" not in found.env
    assert flag(found, "--distributed-executor-backend") == "mp"
    assert "PLAN-036" in {finding.id for finding in found.findings}


def test_the_processors_own_graphics_is_masked() -> None:
    found = plan("xpu-b580-1x")

    assert found.env["ZE_AFFINITY_MASK"] == "1"
    assert "integrated graphics" in next(
        reason.because for reason in found.reasons if reason.setting == "ZE_AFFINITY_MASK"
    )


def test_the_old_stack_names_its_device_and_needs_ray() -> None:
    profile, facts = host("xpu-flex170-1x")
    second = facts.devices[0]._replace(number=1, bus="0000:9a:00.0")
    two = facts._replace(devices=(*facts.devices, second))

    found = command(profile, two, LLAMA, parse_given((LLAMA.name, "-tp", "2"), {}))

    assert flag(found, "--device") == "xpu"
    assert "--enforce-eager" in found.argv
    assert flag(found, "--distributed-executor-backend") == "ray"
    assert found.env["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"


def test_the_manuals_own_command_is_planned_as_it_stands() -> None:
    profile, facts = host("xpu-flex170-1x")
    tiles = tuple(facts.devices[0]._replace(number=number, memory_total=64 << 30) for number in range(16))
    words = ("--dtype=bfloat16", "--max_model_len=1024", "--distributed-executor-backend=ray")
    given = parse_given((SMOLLM2.name, *words, "--pipeline-parallel-size=2", "-tp=8"), {})
    model = LLAMA._replace(name=SMOLLM2.name)

    found = command(profile, facts._replace(devices=tiles), model, given)

    assert found.argv[-5:] == (*words, "--pipeline-parallel-size=2", "-tp=8")
    assert "--tensor-parallel-size" not in found.argv
    assert flag(found, "--device") == "xpu"
    assert "ZE_AFFINITY_MASK" not in found.env


def test_data_center_gpus_keep_the_models_type() -> None:
    assert flag(plan("xpu-flex170-1x"), "--dtype") == "auto"
    assert flag(plan("xpu-max1100-1x"), "--dtype") == "auto"


def test_a_type_of_the_stacks_stands_where_the_card_computes_it() -> None:
    _, facts = host("xpu-arc-pro-b60-2x")
    profile = json.loads((ROOT / "images" / "xpu-llm-scaler-vllm0.21" / "profile.json").read_text())

    assert "--dtype" not in xpu.decide(profile, facts, SMOLLM2, parse_given((SMOLLM2.name,), {})).values


@pytest.mark.parametrize(
    ("target", "name", "architecture", "dtype"),
    [
        ("xpu-max1100-1x", "Intel Arc A770", "acm-g10", "float16"),
        ("xpu-max1100-1x", "Intel Arc B580", "bmg-g21", "auto"),
        ("xpu-flex170-1x", "Intel Arc B580", "bmg-g21", "float16"),
        ("xpu-flex170-1x", "Intel Data Center GPU Flex 170", "acm-g10", "auto"),
    ],
)
def test_arc_takes_float16_where_bfloat16_goes_wrong(target: str, name: str, architecture: str, dtype: str) -> None:
    profile, facts = host(target)
    card = facts.devices[0]._replace(name=name, architecture=architecture)

    decision = xpu.decide(profile, facts._replace(devices=(card,)), SMOLLM2, parse_given((SMOLLM2.name,), {}))

    assert decision.values["--dtype"].value == dtype


def test_bfloat16_that_the_user_wants_is_kept_and_said() -> None:
    profile, facts = host("xpu-max1100-1x")
    card = facts.devices[0]._replace(name="Intel Arc A770", architecture="acm-g10")

    found = command(
        profile, facts._replace(devices=(card,)), SMOLLM2, parse_given((SMOLLM2.name, "--dtype", "bfloat16"), {})
    )

    assert "XPU-031" in {finding.id for finding in found.findings}
    assert flag(found, "--dtype") == "bfloat16"


def test_an_unknown_quantization_is_said() -> None:
    profile, facts = host("xpu-arc-pro-b60-2x")
    model = SMOLLM2._replace(quantization="bitsandbytes")

    decision = xpu.decide(profile, facts, model, parse_given((model.name,), {}))

    assert "XPU-032" in {finding.id for finding in decision.findings}
