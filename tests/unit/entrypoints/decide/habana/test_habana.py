"""What is decided on Gaudi: the manuals' example commands, and what cards, models and the user's choices change."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from entrypoints.core.errors import DOES_NOT_FIT, HOST, USAGE, EntrypointError
from entrypoints.core.records import Facts, Finding
from entrypoints.decide.habana.habana import decide
from entrypoints.decide.records import Decision
from entrypoints.model.geometry import Geometry
from entrypoints.model.read import ModelFacts
from entrypoints.model.weights import Weights
from entrypoints.request.intents import NONE, Intents
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.hosts import expect
from tests.support.sample import told

FORK, OLD, R1, PLUGIN = "habana1.22-fork0.9", "habana1.21-fork0.8", "habana1.21-deepseek-r1", "habana1.24-plugin0.26"
OLDEST = "habana1.18-vllm0.8"


@cache
def profile(variant: str = FORK) -> dict[str, Any]:
    return expect.profile_in(variant)


@cache
def host(name: str = "habana-gaudi2-8x") -> Facts:
    """Read a recorded host, with nobody else's work on its cards."""
    facts = expect.read(name, profile())
    free = (device._replace(busy=False, memory_used=768 << 20) for device in facts.devices)
    return facts._replace(devices=tuple(free))


def model(name: str, billions: float, heads: int = 32, kv_heads: int = 8, layers: int = 32, **more: Any) -> ModelFacts:
    geometry = Geometry(layers, 0, 0, heads, kv_heads, 128, 0, 131_072, hidden=heads * 128)
    elements = int(billions * 1e9)
    weights = Weights(on_disk=2 * elements, elements=elements, other=0)
    plain = ModelFacts(f"/models/{name}", True, "LlamaForCausalLM", "", weights, geometry, "")
    return plain._replace(**more)


LLAMA_8B = model("DeepSeek-R1-Distill-Llama-8B", 8)
LLAMA_70B = model("DeepSeek-R1-Distill-Llama-70B", 70.6, 64, 8, 80)
QWEN_72B = model("Qwen2-72B-Instruct", 72.7, 64, 8, 80, architecture="Qwen2ForCausalLM")
QWEN_32B = model("DeepSeek-R1-Distill-Qwen-32B", 32.8, 40, 8, 64, architecture="Qwen2ForCausalLM")
QWEN_7B = model("Qwen2.5-7B-Instruct", 7.6, 28, 4, 28, architecture="Qwen2ForCausalLM")
QWEN3_8B = model("Qwen3-8B", 8.2, 32, 8, 36, architecture="Qwen3ForCausalLM")
QWQ = model("QwQ-32B", 32.8, 40, 8, 64, architecture="Qwen2ForCausalLM")


def decided(
    what: ModelFacts, *flags: str, variant: str = FORK, intents: Intents = NONE, machine: str = "", **env: str
) -> Decision:
    user_flags = parse_user_flags((what.name, *flags), env, (), intents)
    return decide(profile(variant), host(machine or "habana-gaudi2-8x"), what, user_flags)


def values(what: ModelFacts, *flags: str, **more: Any) -> dict[str, str]:
    return {name: str(value.value) for name, value in decided(what, *flags, **more).values.items()}


def buckets(chosen: dict[str, str], phase: str, size: str) -> tuple[str, ...]:
    return tuple(chosen.get(f"VLLM_{phase}_{size}_BUCKET_{end}", "") for end in ("MIN", "STEP", "MAX"))


# --- the manual of 1.22: start_gaudi_vllm_server.sh -w … -t … -m … -i … -o … -b …

LONG = Intents(input=(800, 4096), output=(800, 2048))
SHORT = Intents(input=(800, 1024), output=(400, 512))


@pytest.mark.parametrize(
    ("what", "cards", "modules", "batch", "intents", "length", "prompts", "sequences", "blocks"),
    [
        (QWEN_72B, 4, "0,1,2,3", 128, SHORT, "1536", "1024", ("1", "8", "128"), ("128", "128", "1536")),
        (LLAMA_70B, 4, "0,1,2,3", 128, LONG, "6144", "4096", ("1", "8", "128"), ("128", "128", "6144")),
        (QWEN_32B, 2, "0,1", 32, LONG, "6144", "4096", ("1", "2", "32"), ("128", "128", "1536")),
        (LLAMA_8B, 1, "0", 32, LONG, "6144", "4096", ("1", "2", "32"), ("128", "128", "1536")),
        (QWEN_7B, 1, "0", 32, LONG, "6144", "4096", ("1", "2", "32"), ("128", "128", "1536")),
        (QWQ, 2, "0,1", 32, LONG, "6144", "4096", ("1", "2", "32"), ("128", "128", "1536")),
        (QWEN3_8B, 2, "0,1", 32, LONG, "6144", "4096", ("1", "2", "32"), ("128", "128", "1536")),
    ],
)
def test_the_examples_of_the_manual_of_1_22(  # noqa: PLR0913, PLR0917 - a row is one of the manual's commands
    what: ModelFacts,
    cards: int,
    modules: str,
    batch: int,
    intents: Intents,
    length: str,
    prompts: str,
    sequences: tuple[str, ...],
    blocks: tuple[str, ...],
) -> None:
    """As set_bucketing of aice/v1.22.0 at 1dd4da7 computes them; -b is --max-num-seqs, -m HABANA_VISIBLE_MODULES."""
    flags = ("-tp", str(cards), "--max-num-seqs", str(batch))
    chosen = values(what, *flags, intents=intents, HABANA_VISIBLE_MODULES=modules)

    assert buckets(chosen, "PROMPT", "BS") == ("1", "1", "1")
    assert buckets(chosen, "PROMPT", "SEQ") == ("896", "128", prompts)
    assert buckets(chosen, "DECODE", "BS") == sequences
    assert buckets(chosen, "DECODE", "BLOCK") == blocks
    assert chosen["VLLM_EXPONENTIAL_BUCKETING"] == "false"
    assert chosen["--max-model-len"] == length
    assert chosen["--max-num-batched-tokens"] == str(max(2048, int(length)))
    assert chosen["--max-num-prefill-seqs"] == "1"
    assert chosen["--distributed-executor-backend"] == ("mp" if cards > 1 else "uni")
    assert chosen["--dtype"] == "bfloat16"
    assert chosen["PT_HPU_LAZY_MODE"] == "1"
    assert chosen.get("PT_HPU_ENABLE_LAZY_COLLECTIVES", "") == ("true" if cards > 1 else "")
    assert chosen["VLLM_SKIP_WARMUP"] == "false"
    assert chosen["VLLM_ZERO_PADDING"] == "true"
    assert chosen.get("VLLM_FP32_SOFTMAX", "false") == ("true" if what is QWEN_7B else "false")


def test_no_padding_limit_is_set_where_the_extension_would_stop_at_it() -> None:
    decision = decided(LLAMA_8B)

    assert not [name for name in decision.values if name.endswith("_LIMIT")]
    assert any("LIMIT" in text for text in decision.values["VLLM_EXPONENTIAL_BUCKETING"].instead)


# --- the manual of 1.21: -n … -m … -b … -i … -o … -l 8192 -t 8192


@pytest.mark.parametrize(
    ("what", "cards", "modules", "batch", "intents", "prompts", "lengths", "sequences", "blocks"),
    [
        (QWEN_72B, 4, "0,1,2,3", 128, SHORT, "10", "1152", ("1", "8", "128"), ("128", "128", "1664")),
        (LLAMA_70B, 4, "0,1,2,3", 128, LONG, "10", "4224", ("1", "8", "128"), ("128", "128", "6272")),
        (QWEN_32B, 2, "0,1", 32, LONG, "10", "4224", ("1", "2", "32"), ("128", "128", "1664")),
        (LLAMA_8B, 1, "0", 32, LONG, "10", "4224", ("1", "2", "32"), ("128", "128", "1664")),
    ],
)
def test_the_examples_of_the_manual_of_1_21(  # noqa: PLR0913, PLR0917 - as above
    what: ModelFacts,
    cards: int,
    modules: str,
    batch: int,
    intents: Intents,
    prompts: str,
    lengths: str,
    sequences: tuple[str, ...],
    blocks: tuple[str, ...],
) -> None:
    flags = ("-tp", str(cards), "--max-num-seqs", str(batch), "--max-model-len=8192", "--max-num-batched-tokens=8192")
    chosen = values(what, *flags, variant=OLD, intents=intents, HABANA_VISIBLE_MODULES=modules)

    assert buckets(chosen, "PROMPT", "BS") == ("1", "1", prompts)
    assert buckets(chosen, "PROMPT", "SEQ") == ("896", "128", lengths)
    assert buckets(chosen, "DECODE", "BS") == sequences
    assert buckets(chosen, "DECODE", "BLOCK") == blocks
    assert chosen.get("VLLM_FP32_SOFTMAX", "") == ("" if what is QWEN_72B else "false")


def test_a_hot_spot_changes_nothing_where_exponential_buckets_are_fewer_and_that_is_said() -> None:
    """-n 8 -b 24 -i 4,38912 -o 4,2048 -l 40960 -t 40960 -r 8,24000: its linear buckets are 1,132 graphs."""
    usual = Intents(input=(4, 38912), output=(4, 2048))
    flags = ("-tp", "8", "--max-num-seqs", "24", "--max-model-len=40960", "--max-num-batched-tokens=40960")
    hot, cold = (
        decided(QWQ, *flags, variant=OLD, intents=intents, HABANA_VISIBLE_MODULES="all").values
        for intents in (usual._replace(hot=(8, 24000)), usual)
    )
    spacing = hot["VLLM_EXPONENTIAL_BUCKETING"]

    assert (spacing.value, hot["VLLM_SKIP_WARMUP"].because) == ("true", cold["VLLM_SKIP_WARMUP"].because)
    assert spacing.because.startswith(
        "--hot-spot changes nothing: up to its end linear buckets for these lengths need 1132"
    )
    assert "--hot-spot" not in cold["VLLM_EXPONENTIAL_BUCKETING"].because


def test_a_small_hot_spot_ends_the_linear_ranges() -> None:
    """As -r of the 1.21 script, its lengths rounded up to KV blocks."""
    intents = Intents(input=(4, 38912), output=(4, 256), hot=(2, 256))
    flags = ("-tp", "8", "--max-num-seqs", "24")
    chosen = values(QWQ, *flags, variant=OLD, intents=intents, HABANA_VISIBLE_MODULES="all")

    assert buckets(chosen, "PROMPT", "SEQ") == ("128", "128", "256")
    assert buckets(chosen, "DECODE", "BS") == ("1", "2", "2")
    assert chosen["VLLM_EXPONENTIAL_BUCKETING"] == "false"
    why = decided(QWQ, *flags, variant=OLD, intents=intents, HABANA_VISIBLE_MODULES="all").values
    assert "if 2 sequences had 256 tokens" in why["VLLM_DECODE_BLOCK_BUCKET_MAX"].because
    settings = values(QWQ, *flags, variant=OLD, intents=intents._replace(hot=(8, 24000)), VLLM_DECODE_BS_BUCKET_MAX="8")
    assert settings["VLLM_EXPONENTIAL_BUCKETING"] == "false", "exponential buckets would ignore the user's own variable"


def graphs(what: ModelFacts, *flags: str, **more: Any) -> int:
    """Return the number of graphs that the warm-up compiles."""
    return int(decided(what, *flags, **more).values["VLLM_SKIP_WARMUP"].because.split()[0])


def test_a_stack_for_eight_cards_refuses_four() -> None:
    with pytest.raises(EntrypointError) as error:
        decided(LLAMA_8B, "-tp", "4", variant=R1)
    assert error.value.hint == "possible: -tp 8"


def test_deepseek_r1_takes_eight_cards_and_few_graphs() -> None:
    """start_vllm.sh -q -b 128 -l 16384; its step of 128 tokens would make 128 prompt graphs, as LIMIT is ignored."""
    what = model("DeepSeek-R1-0528-G2", 0, 128, 128, 61, quantization="fp8")
    geometry = what.geometry._replace(latent=576) if what.geometry else None
    what = what._replace(geometry=geometry, weights=Weights(on_disk=671 * 10**9, elements=0, other=671 * 10**9))
    flags = ("--max-model-len", "16384", "--max-num-seqs", "128")
    chosen = values(what, *flags, variant=R1, HABANA_VISIBLE_MODULES="all")

    assert chosen["--tensor-parallel-size"] == "8"
    assert chosen["HABANA_VISIBLE_MODULES"] == "0,1,2,3,4,5,6,7"
    assert buckets(chosen, "DECODE", "BS") == ("1", "8", "128")
    assert buckets(chosen, "PROMPT", "SEQ") == ("128", "1024", "16384")
    assert buckets(chosen, "DECODE", "BLOCK") == ("128", "1024", "16384")


def test_qwen3_coder_480b_is_served_as_the_manual_of_1_22_has_it() -> None:
    """3.3.2: start_vllm.sh -w …-G2 -q; `-q` is what `convert` says to set.

    The script sets no --quantization: vLLM refuses one that differs from the model's own.
    """
    what = model("Qwen3-Coder-480B-A35B-Instruct-FP8-G2", 0, 96, 8, 62, quantization="fp8", converted=True)
    what = what._replace(weights=Weights(on_disk=482 * 10**9, elements=0, other=482 * 10**9))
    calibrate = next(item for item in profile(R1)["conversions"] if item["kind"] == "calibrate")
    served = {name: value.format(output="/models/measured") for name, value in calibrate["serve"].items()}
    decision = decided(what, "--max-num-seqs", "64", variant=R1, **served)
    chosen = {name: str(value.value) for name, value in decision.values.items()}

    assert served["QUANT_CONFIG"].endswith("inc_quant_per_channel_with_fp8kv_config.json")
    assert (chosen["--tensor-parallel-size"], chosen["PT_HPU_WEIGHT_SHARING"]) == ("8", "0")
    assert (chosen.get("--quantization"), chosen["--kv-cache-dtype"]) == (None, "fp8_inc")
    assert chosen["VLLM_HPU_MARK_SCALES_AS_CONST"] == "false"
    assert not {"HPU-041", "HPU-046", "HPU-048"} & {finding.id for finding in decision.findings}


DEEPSEEK_R1 = model("DeepSeek-R1-0528-G2", 0, 128, 128, 61, quantization="fp8", converted=True)._replace(
    geometry=Geometry(61, 0, 0, 128, 128, 128, 576, 163_840, hidden=7168),
    weights=Weights(on_disk=671 * 10**9, elements=0, other=671 * 10**9),
)
LAYOUT = "/opt/drydock/conversions/vllm-fork"
CONFIG = f"{LAYOUT}/scripts/quant_configs/inc_quant_per_channel_with_fp8kv_config.json"


def test_a_quantisation_configuration_alone_is_all_that_q_of_start_vllm_sets() -> None:
    """scripts/quickstart/start_vllm.sh -q of deepseek_r1."""
    chosen = values(DEEPSEEK_R1, variant=R1, QUANT_CONFIG=CONFIG)

    assert {name: chosen[name] for name in chosen if name.startswith(("VLLM_REQ", "VLLM_EN", "INC_", "VLLM_MOE"))} == {
        "VLLM_REQUANT_FP8_INC": "1",
        "VLLM_ENABLE_RUNTIME_DEQUANT": "1",
        "VLLM_ENGINE_ITERATION_TIMEOUT_S": "3600",
        "VLLM_MOE_N_SLICE": "1",
        "INC_FORCE_NAIVE_SCALING": "1",
        "INC_MEASUREMENT_DUMP_PATH_PREFIX": LAYOUT,
    }
    assert chosen["VLLM_HPU_MARK_SCALES_AS_CONST"] == "false"
    assert "--quantization" not in chosen
    assert "--weights-load-device" not in chosen


def test_no_other_stack_or_model_is_quantised_again() -> None:
    unquantised = values(LLAMA_70B, variant=R1, QUANT_CONFIG=CONFIG)

    assert unquantised["--quantization"] == "inc"
    for chosen in (
        unquantised,
        *(values(LLAMA_8B, variant=variant, QUANT_CONFIG=CONFIG) for variant in (OLD, FORK, PLUGIN)),
    ):
        assert "VLLM_REQUANT_FP8_INC" not in chosen


def test_the_plugin_needs_flags_beside_the_configuration() -> None:
    """The plugin's docs/configuration/quantization/inc.md: --quantization inc --kv-cache-dtype fp8_inc."""
    chosen = values(LLAMA_70B, variant=PLUGIN, QUANT_CONFIG="/q/maxabs_quant_g2.json")

    assert (chosen["--quantization"], chosen["--kv-cache-dtype"]) == ("inc", "fp8_inc")


@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("DeepSeek-R1-0528-G2", "Yi30/ds-r1-0528-default-pile-g2-0529"),
        ("DeepSeek-R1", "Yi30/inc-woq-2282samples-514-g2"),
        ("DeepSeek-R1-Distill-Llama-8B", ""),
    ],
)
def test_published_measurements_are_named_with_their_place(name: str, repository: str) -> None:
    """The manual's table in 3.1.2, and the folder that start_vllm.sh looks into."""
    findings = told(decided(DEEPSEEK_R1._replace(name=f"/models/{name}"), variant=R1).findings)
    remedies = [finding.remediation for finding in findings if finding.id == "HPU-047"]

    assert len(remedies) == bool(repository)
    assert all(repository in text and f"{LAYOUT}/scripts/nc_workspace_measure_kvcache" in text for text in remedies)
    assert all(f"QUANT_CONFIG={CONFIG}" in text for text in remedies)


def test_measurements_that_cannot_be_found_are_told() -> None:
    missing_measurements = {"QUANT_CONFIG": "/q/inc_quant_per_channel_with_fp8kv_config.json"}

    assert "HPU-048" in ids(decided(DEEPSEEK_R1, variant=R1, **missing_measurements))
    assert "HPU-048" not in ids(
        decided(DEEPSEEK_R1, variant=R1, INC_MEASUREMENT_DUMP_PATH_PREFIX="/q", **missing_measurements)
    )


def test_quantization_inc_beside_the_models_own_method_is_a_fail() -> None:
    """_verify_quantization of vLLM: the method of the configuration does not match the argument."""
    assert "HPU-052" in ids(decided(DEEPSEEK_R1, "--quantization", "inc", variant=R1, QUANT_CONFIG=CONFIG))
    assert "HPU-052" not in ids(decided(DEEPSEEK_R1, variant=R1, QUANT_CONFIG=CONFIG))
    assert "HPU-052" not in ids(decided(LLAMA_8B, "--quantization", "inc", variant=OLD, QUANT_CONFIG="/q/g2.json"))


def ids(decision: Decision) -> list[str]:
    return [finding.id for finding in decision.findings]


def test_deepseek_r1_takes_the_manuals_batch_and_is_told_of_its_longest_context() -> None:
    """start_vllm.sh -h: -b, default 128; -l, maximal value for single node 32768."""
    assert values(DEEPSEEK_R1, variant=R1)["--max-num-seqs"] == "128"
    assert "HPU-049" in ids(decided(DEEPSEEK_R1, "--max-model-len", "32896", "--max-num-seqs", "1", variant=R1))
    assert "HPU-049" not in ids(decided(DEEPSEEK_R1, "--max-model-len", "32768", "--max-num-seqs", "1", variant=R1))


def test_the_warm_up_of_the_manuals_own_buckets_takes_its_hour() -> None:
    """3.1.2: about an hour; start_vllm.sh -b 128 -l 16384 spaces prompts and blocks by 128."""
    manual_env = {"VLLM_PROMPT_SEQ_BUCKET_STEP": "128", "VLLM_DECODE_BLOCK_BUCKET_STEP": "128", "QUANT_CONFIG": CONFIG}
    flags = ("--max-num-seqs", "128", "--max-model-len", "16384")

    assert "about 6" in decided(DEEPSEEK_R1, *flags, variant=R1, **manual_env).values["VLLM_SKIP_WARMUP"].because
    assert 12 * 60 < 12 * graphs(DEEPSEEK_R1, *flags, variant=R1, QUANT_CONFIG=CONFIG) < 3600


def test_a_float8_warm_up_is_longer_without_recipes_and_hardly_longer_with_them() -> None:
    """The plugin's docs, managing warm-up: BF16 66 s and 23 s, FP8 504 s and 34 s."""
    plain, calibrated = (decided(LLAMA_8B, intents=SHORT, **env) for env in ({}, {"QUANT_CONFIG": "/q/g2.json"}))
    minutes = [decision.values["VLLM_SKIP_WARMUP"].because for decision in (plain, calibrated)]

    assert minutes[0].split(" graphs")[0] == minutes[1].split(" graphs")[0]
    assert 7 < seconds(minutes[1]) / seconds(minutes[0]) < 8.2


def seconds(because: str) -> float:
    """Return the first duration in the reason of the warm-up."""
    number, unit = because.partition("about ")[2].split(",")[0].split()
    return float(number) * (60 if unit == "min" else 1)


def test_a_start_that_outlasts_the_health_check_is_told_with_the_room_that_it_needs() -> None:
    slow = {f"VLLM_{name}_BUCKET_STEP": "128" for name in ("PROMPT_SEQ", "DECODE_BLOCK")} | {"QUANT_CONFIG": CONFIG}
    flags = ("--max-model-len", "32768", "--max-num-seqs", "128", "--max-num-prefill-seqs", "8")
    finding = next(
        finding
        for finding in told(decided(DEEPSEEK_R1, *flags, variant=R1, **slow).findings)
        if finding.id == "HPU-050"
    )
    minutes = int(finding.found.split()[0])

    assert minutes > 120
    assert f"--health-start-period {minutes}m" in finding.remediation
    assert f"failureThreshold of {6 * minutes}" in finding.remediation
    assert "HPU-050" not in ids(decided(DEEPSEEK_R1, variant=R1, QUANT_CONFIG=CONFIG))
    assert "HPU-050" not in ids(decided(DEEPSEEK_R1, *flags, variant=R1, VLLM_SKIP_WARMUP="true", **slow))


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (("--enable-lora",), "LoRA adapters"),
        (("--enable-chunked-prefill",), "chunked prefill"),
        (("--quantization", "awq"), "quantisation"),
    ],
)
def test_what_the_manual_of_1_18_lists_as_unsupported_is_told(flags: tuple[str, ...], what: str) -> None:
    """The installation manual of vLLM, Intel Gaudi: beam search, LoRA, quantisation, chunked prefill."""
    unsupported = [
        finding for finding in told(decided(LLAMA_8B, *flags, variant=OLDEST).findings) if finding.id == "HPU-051"
    ]

    assert [finding.text for finding in unsupported] == [f"This stack does not support {what} on Gaudi."]
    assert "HPU-051" not in ids(decided(LLAMA_8B, *flags))
    assert "HPU-051" not in ids(decided(LLAMA_8B, "--no-enable-chunked-prefill", variant=OLDEST))


def test_a_quantised_model_is_told_by_1_18() -> None:
    assert "HPU-045" in ids(decided(LLAMA_8B._replace(quantization="awq"), variant=OLDEST))


# --- lengths


def test_unknown_lengths_are_spaced_by_doubling() -> None:
    decision = decided(LLAMA_8B).values

    assert decision["VLLM_EXPONENTIAL_BUCKETING"].value == "true"
    assert "lengths of requests are unknown" in decision["VLLM_EXPONENTIAL_BUCKETING"].because
    assert "VLLM_PROMPT_SEQ_BUCKET_MAX" not in decision
    assert "graphs" in decision["VLLM_SKIP_WARMUP"].because


def test_without_a_word_about_lengths_they_are_the_manuals_usual_ones() -> None:
    decision = decided(LLAMA_8B).values

    assert decision["--max-model-len"].value == "16384"
    assert "131072" in decision["--max-model-len"].instead[0]
    assert "--max-model-len" not in decided(LLAMA_8B, "--max-model-len", "131072").values
    assert "--max-model-len" not in decided(LLAMA_8B, variant=PLUGIN, machine="habana-gaudi3-8x").values
    assert decision["--gpu-memory-utilization"].value == "0.9"


def test_lengths_that_make_too_many_graphs_are_spaced_by_doubling_too() -> None:
    intents = Intents(input=(1, 60000), output=(1, 60000))
    decision = decided(LLAMA_8B, "--max-num-seqs", "128", intents=intents).values

    assert decision["VLLM_EXPONENTIAL_BUCKETING"].value == "true"
    assert "graphs" in decision["VLLM_EXPONENTIAL_BUCKETING"].because


def test_a_users_bucket_wins_and_the_others_follow() -> None:
    chosen = values(LLAMA_8B, VLLM_PROMPT_SEQ_BUCKET_MAX="2048", intents=LONG)

    assert chosen["VLLM_PROMPT_SEQ_BUCKET_MAX"] == "2048"
    assert chosen["VLLM_PROMPT_SEQ_BUCKET_MIN"] == "896"


def test_equal_prompts_need_no_zero_padding() -> None:
    assert values(LLAMA_8B, intents=Intents(input=(1024, 1024), output=(1, 1024)))["VLLM_ZERO_PADDING"] == "false"


def test_throughput_lets_more_short_prompts_into_a_step() -> None:
    intents = Intents(input=(100, 1024), output=(1, 1024), optimize="throughput")

    assert values(LLAMA_8B, intents=intents)["--max-num-prefill-seqs"] == "16"


def test_real_lengths_choose_the_linear_ranges_of_the_fork() -> None:
    requests = ((150, 200, 40.0), (300, 200, 30.0), (2900, 300, 9.0), (8000, 400, 1.0))
    intents = Intents(workload_file="chat.csv").with_workload(requests)
    decision = decided(LLAMA_8B, "--max-num-seqs", "32", intents=intents).values

    assert "chat.csv" in decision["VLLM_PROMPT_SEQ_BUCKET_MAX"].because
    assert int(str(decision["VLLM_PROMPT_SEQ_BUCKET_MAX"].value)) >= 8000


def test_real_lengths_become_a_file_of_buckets_for_the_plugin() -> None:
    requests = ((150, 200, 40.0), (300, 200, 30.0), (2900, 300, 9.0), (8000, 400, 1.0))
    intents = Intents(workload_file="chat.csv").with_workload(requests)
    decision = decided(LLAMA_8B, variant=PLUGIN, intents=intents, machine="habana-gaudi3-8x")
    path = str(decision.values["VLLM_BUCKETING_FROM_FILE"].value)
    text = decision.files[path]

    assert path.startswith("/cache/buckets/buckets-")
    assert "(1, 256, [0, " in text
    assert "at best" in decision.values["VLLM_BUCKETING_FROM_FILE"].because
    assert all(line.startswith("(") and line.endswith(")") for line in text.splitlines())


def test_known_lengths_take_padding_limits_on_the_plugin() -> None:
    chosen = values(LLAMA_8B, variant=PLUGIN, intents=LONG, machine="habana-gaudi3-8x")

    assert chosen["VLLM_BUCKETING_STRATEGY"] == "pad"
    assert chosen["VLLM_PROMPT_QUERY_BUCKET_PAD_PERCENT"] == "25"
    assert chosen["VLLM_PROMPT_QUERY_BUCKET_MAX"] == "2048"
    assert chosen["PT_HPU_LAZY_MODE"] == "0"


# --- cards


def test_cards_are_named_by_module_and_cores_are_those_beside_them() -> None:
    chosen = values(LLAMA_70B, "-tp", "4", intents=SHORT, machine="habana-gaudi2e-8x")

    assert chosen["HABANA_VISIBLE_MODULES"] == "0,1,2,3"
    assert chosen["DRYDOCK_CPUS"] == "0-39"


def test_one_card_is_named_by_its_own_variable() -> None:
    chosen = values(LLAMA_8B, intents=SHORT)

    assert chosen["HLS_MODULE_ID"] == "4"
    assert chosen["DRYDOCK_CPUS"] == "40-49"


def test_cards_of_two_nodes_are_not_bound() -> None:
    assert "DRYDOCK_CPUS" not in values(QWQ, "-tp", "8", intents=SHORT, HABANA_VISIBLE_MODULES="all")


def test_a_module_that_is_not_here_is_refused() -> None:
    with pytest.raises(EntrypointError) as error:
        decided(LLAMA_8B, HABANA_VISIBLE_MODULES="0,9")
    assert error.value.code == USAGE

    with pytest.raises(EntrypointError):
        decided(LLAMA_8B, HABANA_VISIBLE_MODULES="first")


def test_more_than_four_gaudi2e_cards_need_host_nics() -> None:
    large = model("Llama-3.1-405B", 405, 128, 8, 126)
    with pytest.raises(EntrypointError) as error:
        decided(large, machine="habana-gaudi2e-8x", variant=PLUGIN)

    assert error.value.code == DOES_NOT_FIT
    assert "--target gaudi2e" in error.value.hint
    smaller = model("Llama-300B", 300, 128, 8, 126)
    assert values(smaller, "--max-model-len", "4096", machine="habana-gaudi2e-8x")["--tensor-parallel-size"] == "8"


def test_without_cards_there_is_no_plan() -> None:
    user_flags = parse_user_flags((LLAMA_8B.name,), {})
    with pytest.raises(EntrypointError) as error:
        decide(profile(), host()._replace(devices=()), LLAMA_8B, user_flags)

    assert error.value.code == HOST


def test_experts_are_spread_over_the_cards_unless_the_vendor_leaves_it_out() -> None:
    experts = model("Llama-4-Scout-17B-16E-Instruct", 109, 40, 8, 48)
    geometry = experts.geometry._replace(experts=16, expert_width=8192) if experts.geometry else None
    spread = experts._replace(geometry=geometry)

    assert "--enable-expert-parallel" not in values(spread, "-tp", "4")
    assert values(spread._replace(name="/models/Mixtral-of-16"), "-tp", "4")["--enable-expert-parallel"] == "True"


def test_a_users_utilisation_is_kept_and_counted() -> None:
    chosen = values(LLAMA_8B, "--gpu-memory-utilization", "0.5", intents=LONG)

    assert "--gpu-memory-utilization" not in chosen
    assert int(chosen["--max-num-seqs"]) < int(values(LLAMA_8B, intents=LONG)["--max-num-seqs"])


def test_what_the_user_shares_out_is_counted() -> None:
    less = decided(LLAMA_8B, VLLM_GRAPH_RESERVED_MEM="0.4", intents=LONG).values["--max-num-seqs"].value

    assert int(str(less)) < int(str(decided(LLAMA_8B, intents=LONG).values["--max-num-seqs"].value))
    with pytest.raises(EntrypointError):
        decided(LLAMA_8B, VLLM_GRAPH_RESERVED_MEM="much")


# --- models


def test_a_quantisation_configuration_brings_its_switches() -> None:
    new = values(LLAMA_70B, "-tp", "2", QUANT_CONFIG="/q/maxabs_quant_g2.json", intents=SHORT)
    old = values(LLAMA_70B, "-tp", "2", QUANT_CONFIG="/q/maxabs_quant_g2.json", intents=SHORT, variant=OLD)

    assert new["PT_HPU_WEIGHT_SHARING"] == "0"
    assert "--quantization" not in new
    assert (old["--quantization"], old["--kv-cache-dtype"]) == ("inc", "fp8_inc")
    assert old["VLLM_DISABLE_MARK_SCALES_AS_CONST"] == "true"


def test_awq_and_gptq_take_gaudis_own_kernels() -> None:
    for method in ("awq", "gptq"):
        assert values(LLAMA_8B._replace(quantization=method))["--quantization"] == f"{method}_hpu"


def test_fp8_weights_are_converted_for_gaudi2_or_must_be() -> None:
    what = LLAMA_8B._replace(quantization="fp8")

    assert values(what)["VLLM_HPU_CONVERT_TO_FP8UZ"] == "true"
    assert [finding.id for finding in decided(what, variant=OLD).findings if finding.id == "HPU-041"] == ["HPU-041"]


def test_converted_weights_are_not_scaled_again() -> None:
    what = LLAMA_8B._replace(quantization="fp8", converted=True)

    assert values(what)["VLLM_HPU_CONVERT_TO_FP8UZ"] == "false"
    assert values(what, variant=PLUGIN)["VLLM_SCALE_ADJUSTMENT"] == "false"
    assert not [finding.id for finding in decided(what, variant=OLD).findings if finding.id == "HPU-041"]


def test_the_command_that_converts_is_named_and_where_it_is_to_be_had() -> None:
    """The manual of 1.21, 3.1.1: convert_for_g2.py -i DeepSeek-R1-0528 -o DeepSeek-R1-0528-G2, then start_vllm.sh."""
    what = LLAMA_8B._replace(name="/models/DeepSeek-R1-0528", quantization="fp8")
    command = "IMG convert --model /models/DeepSeek-R1-0528 --output /models/DeepSeek-R1-0528-G2"

    has, lacks = (unconverted(what, variant) for variant in (R1, OLD))

    assert has.remediation == f"docker run … {command}, then serve --model /models/DeepSeek-R1-0528-G2"
    assert command in lacks.remediation
    assert "habana1.21-deepseek-r1" in lacks.remediation


def unconverted(what: ModelFacts, variant: str) -> Finding:
    """Return the finding that weights must be converted."""
    return next(finding for finding in told(decided(what, variant=variant).findings) if finding.id == "HPU-041")


def test_quantisation_without_measurements_names_the_command_that_measures() -> None:
    findings = decided(LLAMA_8B, "--quantization", "inc").findings

    calibration_finding = next(finding for finding in told(findings) if finding.id == "HPU-046")
    assert (
        f"convert --model {LLAMA_8B.name} --output {LLAMA_8B.name}-measurements --kind calibrate"
        in calibration_finding.remediation
    )
    config_findings = decided(LLAMA_8B, "--quantization", "inc", QUANT_CONFIG="/m/maxabs_quant_g2.json").findings
    assert "HPU-046" not in [finding.id for finding in config_findings]


def test_what_does_not_fit_names_the_script_that_halves_it() -> None:
    large = LLAMA_8B._replace(modalities=("image",), weights=Weights(10**13, 5 * 10**12, 0))

    with pytest.raises(EntrypointError, match=r"halve the weights: .* convert"):
        decided(large)


def test_qwens_keep_their_tensors() -> None:
    assert values(QWEN_7B)["PT_HPUGRAPH_DISABLE_TENSOR_CACHE"] == "false"
    assert "PT_HPUGRAPH_DISABLE_TENSOR_CACHE" not in values(LLAMA_8B)


@pytest.mark.parametrize(
    ("variant", "flags", "words"),
    [
        (FORK, (), "HPU graphs"),
        (FORK, ("--enforce-eager",), "lazy mode without graphs"),
        (PLUGIN, (), "torch.compile"),
        (PLUGIN, ("--enforce-eager",), "eager"),
    ],
)
def test_the_execution_modes(variant: str, flags: tuple[str, ...], words: str) -> None:
    assert words in decided(LLAMA_8B, *flags, variant=variant).values["PT_HPU_LAZY_MODE"].because


def test_a_skipped_warm_up_is_warned_of() -> None:
    findings = decided(LLAMA_8B, VLLM_SKIP_WARMUP="true").findings

    assert "HPU-042" in [finding.id for finding in findings]


def test_a_padding_limit_of_the_users_is_warned_of() -> None:
    findings = decided(LLAMA_8B, VLLM_PROMPT_SEQ_BUCKET_LIMIT="0.25").findings

    assert "HPU-044" in [finding.id for finding in findings]


# --- quantisation


@pytest.mark.parametrize(
    ("method", "variant", "warned"),
    [
        ("bitsandbytes", FORK, True),
        ("modelopt", FORK, True),
        ("modelopt", "habana1.24-plugin0.26", False),
        ("awq", FORK, False),
    ],
)
def test_a_quantisation_that_the_platform_does_not_name_is_told(method: str, variant: str, *, warned: bool) -> None:
    what = LLAMA_8B._replace(quantization=method)
    ids = {finding.id for finding in decided(what, variant=variant).findings}

    assert ("HPU-045" in ids) is warned


@pytest.mark.parametrize(
    ("cards", "there", "finding_ids"), [("8", False, ["HPU-053"]), ("8", True, []), ("4", False, []), ("8", None, [])]
)
def test_network_cards_are_missed_only_by_a_group_that_needs_them(
    cards: str, there: bool | None, finding_ids: list[str]
) -> None:
    grants = {} if there is None else {"/dev/infiniband/uverbs[0-9]*": there}
    facts = host("habana-gaudi2e-8x")._replace(grants=grants)
    decision = decide(profile(), facts, QWEN_72B, parse_user_flags((QWEN_72B.name, "-tp", cards), {}))

    assert [name for name in ids(decision) if name in ("HPU-043", "HPU-053")] == finding_ids


@pytest.mark.parametrize(("there", "tensor"), [(False, "4"), (True, "8")])
def test_without_network_cards_a_model_stays_within_four_linked_cards_if_it_fits(there: bool, tensor: str) -> None:
    large = model("Llama-300B", 300, 128, 8, 126)
    facts = host("habana-gaudi2e-8x")._replace(grants={"/dev/infiniband/uverbs[0-9]*": there})

    def chosen(what: ModelFacts) -> str:
        decision = decide(profile(), facts, what, parse_user_flags((what.name, "--max-model-len", "4096"), {}))
        return str(decision.values["--tensor-parallel-size"].value)

    assert chosen(QWEN_72B) == tensor
    assert chosen(large) == "8"
