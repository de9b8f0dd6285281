"""What vLLM-GCU serves on S60 cards: the manual's commands, its tables, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from entrypoints.core.errors import DOES_NOT_FIT, MODEL, USAGE, EntrypointError
from entrypoints.core.records import Device
from entrypoints.decide.enflame import decide, find_vendor_table
from entrypoints.decide.records import Decision
from entrypoints.model.geometry import Geometry
from entrypoints.model.read import ModelFacts
from entrypoints.model.weights import Weights
from entrypoints.request.vllm_flags import parse_user_flags
from entrypoints.request.vllm_lists import VllmLists
from tests.support.hosts import expect
from tests.support.sample import facts, told

MIB = 1 << 20
QWEN_32B = Geometry(64, 0, 0, 40, 8, 128, 0, 32768, hidden=5120, vocabulary=152064)


def profile(variant: str) -> dict[str, Any]:
    return expect.profile_in(variant)


PROFILE = profile("gcu3.4-vllm0.8")


def model(architecture: str = "Qwen2ForCausalLM", **changes: Any) -> ModelFacts:
    plain = ModelFacts("/models/m", True, architecture, "", Weights(2 * 10**9, 10**9, 0), QWEN_32B, "")
    return plain._replace(**changes)


GPTQ_INT8 = model(quantization="gptq", bits=8, group=128, weights=Weights(35 * 10**9, 10**9, 33 * 10**9))


def cards(count: int, memory: int = 42976) -> tuple[Device, ...]:
    return tuple(
        Device(number, "S60", memory * MIB, 1129 * MIB, 0, health="ok", architecture="gcu300")
        for number in range(count)
    )


def plan(what: ModelFacts, *words: str, count: int = 2, env: dict[str, str] | None = None) -> Decision:
    return decide(PROFILE, facts(accelerator="enflame", devices=cards(count)), what, parse_user_flags(words, env or {}))


def refused(what: ModelFacts, *words: str) -> EntrypointError:
    with pytest.raises(EntrypointError) as exception_info:
        plan(what, *words)
    return exception_info.value


def test_the_manuals_serving_command_is_what_is_planned() -> None:
    values = plan(GPTQ_INT8).values
    constant = {item["setting"]: item["value"] for item in PROFILE["settings"]}

    assert {name: str(values[name].value) for name in ("--tensor-parallel-size", "--dtype")} == {
        "--tensor-parallel-size": "2",
        "--dtype": "float16",
    }
    assert "--max-model-len" not in values, "the model's own 32768 fit"
    assert (constant["--device"], constant["--block-size"], constant["--disable-log-requests"]) == ("gcu", "64", True)
    assert constant["VLLM_ATTENTION_BACKEND"] == "XFORMERS"


@pytest.mark.parametrize("variant", [row.id for row in read_matrix(DRYDOCK) if row.accelerator == "enflame"])
def test_torch_inductor_is_off_in_every_row(variant: str) -> None:
    constant = {item["setting"]: item["value"] for item in profile(variant)["settings"]}

    assert constant["TORCHGCU_INDUCTOR_ENABLE"] == "0"


def test_cards_that_are_not_needed_stay_free() -> None:
    assert plan(model(), count=8).values["TOPS_VISIBLE_DEVICES"].value == "0"
    assert "TOPS_VISIBLE_DEVICES" not in plan(GPTQ_INT8).values


def test_only_cards_that_the_user_made_visible_count() -> None:
    with pytest.raises(EntrypointError) as none:
        plan(model(), env={"TOPS_VISIBLE_DEVICES": "7"})
    with pytest.raises(EntrypointError) as wrong:
        plan(model(), env={"TOPS_VISIBLE_DEVICES": "all"})

    assert (none.value.code, wrong.value.code) == (USAGE, USAGE)
    assert str(none.value).startswith("TOPS_VISIBLE_DEVICES names 7: no such device")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantization": "fp8"}, "fp8"),
        ({"quantization": "squeezellm"}, "squeezellm"),
        ({"quantization": "gptq_marlin"}, "gptq_marlin"),
        ({"quantization": "gptq", "bits": 4, "group": 32}, "group size"),
        ({"quantization": "awq", "bits": 4, "group": 128}, "group size"),
        ({"quantization": "gptq", "bits": 4, "group": 128, "reordered": True}, "g_idx"),
        ({"architecture": "MixtralForCausalLM", "quantization": "gptq", "bits": 4, "group": 128}, "W4A16 GPTQ"),
    ],
)
def test_what_the_vendor_does_not_support_is_refused_unless_it_is_named(changes: dict[str, Any], message: str) -> None:
    what = model()._replace(**changes)
    error = refused(what)
    findings = plan(what, "--quantization", "gptq").findings

    assert error.code == MODEL
    assert message in error.message
    assert [finding.severity for finding in told(findings) if finding.id == "GCU-030"] == ["FAIL"]


@pytest.mark.parametrize(
    ("changes", "method", "detail"),
    [
        ({}, "fp8", "fp8"),
        ({}, "gptq_marlin", "gptq_marlin"),
        ({"quantization": "gptq", "bits": 4, "group": 128}, "gptq_marlin", "gptq_marlin"),
        ({"architecture": "MixtralForCausalLM"}, "gptq", "MixtralForCausalLM in W4A16 GPTQ"),
        ({"group": 128}, "awq", "128"),
    ],
)
def test_a_quantisation_of_the_users_is_checked_like_the_models_own(
    changes: dict[str, Any], method: str, detail: str
) -> None:
    """As docs/enflame.md says: a FAIL, and the choice is kept."""
    findings = told(plan(model(**changes), "--quantization", method).findings)

    assert [(finding.severity, finding.found) for finding in findings if finding.id == "GCU-030"] == [("FAIL", detail)]


@pytest.mark.parametrize(
    ("changes", "method"),
    [
        ({}, "gptq"),
        ({"quantization": "gptq", "bits": 4, "group": 128}, "gptq"),
        ({"quantization": "awq", "bits": 4, "group": 64}, "moe_wna16_gcu"),
    ],
)
def test_a_quantisation_of_the_users_that_the_vendor_supports_is_not_told(changes: dict[str, Any], method: str) -> None:
    assert "GCU-030" not in {finding.id for finding in plan(model(**changes), "--quantization", method).findings}


@pytest.mark.parametrize(
    ("architecture", "quantization", "dtype"),
    [
        ("LlamaForCausalLM", "", "float16"),
        ("LlamaForCausalLM", "awq", "float16"),
        ("DeepseekV3ForCausalLM", "", "bfloat16"),
        ("XLMRobertaForSequenceClassification", "", "bfloat16"),
        ("SomethingNewForCausalLM", "", "float16"),
    ],
)
def test_the_type_is_one_that_the_vendor_has_validated(architecture: str, quantization: str, dtype: str) -> None:
    decision = plan(model(architecture, quantization=quantization, bits=4, group=64))

    assert decision.values["--dtype"].value == dtype
    assert ("GCU-031" in {finding.id for finding in decision.findings}) == architecture.startswith("Something")


def test_a_model_whose_numbers_exceed_float16_gets_bfloat16() -> None:
    user_flags = parse_user_flags((), {})._replace(
        vllm=VllmLists({"float16_refused": {"gemma2": "Unstable. Use bfloat16."}})
    )
    values = [
        decide(PROFILE, facts(accelerator="enflame", devices=cards(2)), model(model_type=name), user_flags).values[
            "--dtype"
        ]
        for name in ("gemma2", "qwen2")
    ]
    assert [value.value for value in values] == ["bfloat16", "float16"]
    assert values[0].because == "vLLM refuses float16 for gemma2: unstable"


@pytest.mark.parametrize(
    ("architecture", "stored", "dtype", "words"),
    [
        ("LlamaForCausalLM", "bfloat16", "bfloat16", "validated in BF16, the model's stored type"),
        ("LlamaForCausalLM", "half", "float16", "validated in FP16, the model's stored type"),
        ("LlamaForCausalLM", "float32", "float16", "validated in FP16"),
        ("DeepseekV3ForCausalLM", "float16", "bfloat16", "validated in BF16, not in FP16"),
    ],
)
def test_the_models_own_type_is_taken_where_it_is_validated(
    architecture: str, stored: str, dtype: str, words: str
) -> None:
    value = plan(model(architecture, dtype=stored)).values["--dtype"]

    assert value.value == dtype
    assert words in value.because


def test_quantised_experts_need_their_kernels_named() -> None:
    experts = model(
        "Qwen3MoeForCausalLM", quantization="awq", bits=4, group=64, geometry=QWEN_32B._replace(experts=128)
    )
    values = plan(experts).values

    assert (values["--quantization"].value, values["--dtype"].value) == ("moe_wna16_gcu", "float16")


def test_the_exchange_buffer_follows_the_vendors_formula() -> None:
    words = ("--enable-expert-parallel", "--max-num-batched-tokens", "2048", "--dtype", "bfloat16")
    experts = model("DeepseekV3ForCausalLM", geometry=QWEN_32B._replace(hidden=7168, experts=256))
    values = plan(experts, *words, env={"VLLM_DP_SIZE": "8"}).values

    assert values["ECCL_ALLTOALLV_MAXSIZE"].value == str(2048 * 8 * (7168 + 16 + 16) * 2)


@pytest.mark.parametrize(
    ("words", "warning_ids"),
    [
        (("--kv-cache-dtype", "fp8"), {"GCU-033", "GCU-034"}),
        (("--kv-cache-dtype", "int8"), {"GCU-034"}),
        (("--kv-cache-dtype", "int8", "--quantization-param-path", "int8_kv_cache.json"), set()),
        (("--dtype", "bfloat16"), set()),
    ],
)
def test_choices_of_the_users_are_kept_and_commented_upon(words: tuple[str, ...], warning_ids: set[str]) -> None:
    decision = plan(model(), *words)

    warnings = {finding.id for finding in told(decision.findings) if finding.severity == "WARN"}
    assert warnings - {"PLAN-025"} == warning_ids


def test_a_type_without_a_tick_is_commented_upon() -> None:
    findings = plan(model("DeepseekV3ForCausalLM"), "--dtype", "float16").findings

    assert "GCU-032" in {finding.id for finding in findings}


@pytest.mark.parametrize(
    ("stored", "dtype"), [("bfloat16", "bfloat16"), ("float16", "float16"), ("float32", "float16")]
)
def test_a_model_that_is_validated_only_when_quantised_is_commented_upon(stored: str, dtype: str) -> None:
    decision = plan(model("DeepseekForCausalLM", dtype=stored))

    assert decision.values["--dtype"].value == dtype
    assert "validated in W8A8 INT8, not in FP16 or BF16" in decision.values["--dtype"].because
    assert [finding.found for finding in decision.findings if finding.id == "GCU-036"] == [
        f"DeepseekForCausalLM in {dtype}"
    ]
    quantised = plan(model("DeepseekForCausalLM", quantization="w8a8"))
    assert not {"GCU-032", "GCU-036"} & {finding.id for finding in quantised.findings}


def test_an_int8_cache_holds_twice_the_tokens() -> None:
    large = model(
        weights=Weights(70 * 10**9, 35 * 10**9, 0), geometry=QWEN_32B._replace(max_length=131072, kv_heads=40)
    )

    assert "--max-model-len" in plan(large, "--tensor-parallel-size", "2").values
    shorter = plan(large, "--tensor-parallel-size", "2").values["--max-model-len"].value
    longer = plan(large, "--tensor-parallel-size", "2", "--kv-cache-dtype", "int8").values["--max-model-len"].value
    assert int(str(longer)) > 1.9 * int(str(shorter))


def test_a_model_that_fits_nowhere_is_refused() -> None:
    assert refused(model(weights=Weights(10**12, 5 * 10**11, 0))).code == DOES_NOT_FIT


def test_schemes_are_the_vendors_columns() -> None:
    schemes = [
        find_vendor_table(model(quantization=name, bits=bits))
        for name, bits in (("gptq", 8), ("gptq", 4), ("w8a8", 8), ("", 0))
    ]

    assert schemes == ["gptq_8bit", "gptq_4bit", "w8a8", ""]


# --- what every start needs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "flags", "env", "expected"),
    [
        ("gcu3.4-vllm0.8", ("--device", "cuda"), {}, ["GCU-039"]),
        ("gcu3.4-vllm0.8", ("--device", "gcu"), {}, []),
        ("gcu3.4-vllm0.8", (), {"VLLM_ATTENTION_BACKEND": "FLASH_ATTN"}, ["GCU-037"]),
        ("gcu3.4-vllm0.8", (), {"VLLM_ATTENTION_BACKEND": "XFORMERS"}, []),
        ("gcu3.5-vllm0.9.2", (), {"VLLM_ATTENTION_BACKEND": "XFORMERS"}, []),
        ("gcu3.4-vllm0.8", (), {"VLLM_WORKER_MULTIPROC_METHOD": "fork"}, ["GCU-038"]),
        ("gcu3.4-vllm0.8", (), {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}, []),
    ],
)
def test_what_the_manual_requires_is_not_replaced_silently(
    variant: str, flags: tuple[str, ...], env: dict[str, str], expected: list[str]
) -> None:
    user_flags = parse_user_flags(flags, env)
    findings = decide(profile(variant), facts(accelerator="enflame", devices=cards(2)), GPTQ_INT8, user_flags).findings
    assert [finding.id for finding in findings if finding.id.startswith("GCU")] == expected


@pytest.mark.parametrize(("method", "bits"), [("gptq", 3), ("gptq", 2), ("awq", 8)])
def test_weights_of_a_width_without_kernels_are_refused(method: str, bits: int) -> None:
    error = refused(GPTQ_INT8._replace(quantization=method, bits=bits, group=64))
    assert error.code == MODEL
    assert f"found {bits} bits" in error.message
