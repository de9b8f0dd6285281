"""What is decided on Gaudi: the manuals' example commands, and what cards, models and the user's choices change."""

from __future__ import annotations

from collections.abc import Callable
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
from tests.support.decision_rows import Row, check, with_devices
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


ENDS = ("MIN", "STEP", "MAX")


def buckets(chosen: dict[str, str], phase: str, size: str) -> tuple[str, ...]:
    return tuple(chosen.get(f"VLLM_{phase}_{size}_BUCKET_{end}", "") for end in ENDS)


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


def ids(decision: Decision) -> list[str]:
    return [finding.id for finding in decision.findings]


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


def test_a_users_utilisation_is_kept_and_counted() -> None:
    chosen = values(LLAMA_8B, "--gpu-memory-utilization", "0.5", intents=LONG)

    assert "--gpu-memory-utilization" not in chosen
    assert int(chosen["--max-num-seqs"]) < int(values(LLAMA_8B, intents=LONG)["--max-num-seqs"])


def test_what_the_user_shares_out_is_counted() -> None:
    less = decided(LLAMA_8B, VLLM_GRAPH_RESERVED_MEM="0.4", intents=LONG).values["--max-num-seqs"].value

    assert int(str(less)) < int(str(decided(LLAMA_8B, intents=LONG).values["--max-num-seqs"].value))
    with pytest.raises(EntrypointError):
        decided(LLAMA_8B, VLLM_GRAPH_RESERVED_MEM="much")


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


@pytest.mark.parametrize(("there", "tensor"), [(False, "4"), (True, "8")])
def test_without_network_cards_a_model_stays_within_four_linked_cards_if_it_fits(there: bool, tensor: str) -> None:
    large = model("Llama-300B", 300, 128, 8, 126)
    facts = host("habana-gaudi2e-8x")._replace(grants={"/dev/infiniband/uverbs[0-9]*": there})

    def chosen(what: ModelFacts, *words: str) -> str:
        user_flags = parse_user_flags((what.name, "--max-model-len", "4096", *words), {})
        decision = decide(profile(), facts, what, user_flags)
        return str(decision.values["--tensor-parallel-size"].value)

    assert chosen(QWEN_72B) == tensor
    assert chosen(large) == "8"
    assert chosen(large, "--nnodes", "2") == "16"  # which has network cards, or it would be no server


# --- what a card, a model or the user changes -----------------------------------------------------------------------


def gaudi(what: ModelFacts, words: str = "", target: str = FORK, host: str = "habana-gaudi2-8x", **more: Any) -> Row:
    """Return a row on cards that nobody else uses."""
    free = with_devices(busy=False, memory_used=768 << 20)
    return Row(host, words, model=what, target=target, **{"changed": free, **more})


def with_network_cards(there: bool | None) -> Callable[[Facts], Facts]:
    grants = {} if there is None else {"/dev/infiniband/uverbs[0-9]*": there}
    return lambda facts: facts._replace(grants=grants)


def of_experts(name: str) -> ModelFacts:
    experts = model(name, 109, 40, 8, 48)
    return experts._replace(geometry=experts.geometry and experts.geometry._replace(experts=16, expert_width=8192))


G2E, G3 = "habana-gaudi2e-8x", "habana-gaudi3-8x"
TENSOR, LENGTH, SEQUENCES, EXPERTS, METHOD, CACHE = (
    "--tensor-parallel-size",
    "--max-model-len",
    "--max-num-seqs",
    "--enable-expert-parallel",
    "--quantization",
    "--kv-cache-dtype",
)
MODULES, CPUS, SPACING, MODE = (
    "HABANA_VISIBLE_MODULES",
    "DRYDOCK_CPUS",
    "VLLM_EXPONENTIAL_BUCKETING",
    "PT_HPU_LAZY_MODE",
)
PROMPT, DECODE_BATCH, DECODE_BLOCK = "VLLM_PROMPT_SEQ_BUCKET", "VLLM_DECODE_BS_BUCKET", "VLLM_DECODE_BLOCK_BUCKET"
ALL = {MODULES: "all"}
LONG_RANGES, SHORT_RANGES = ({"input": item.input, "output": item.output} for item in (LONG, SHORT))
MAXABS, MEASURED = {"QUANT_CONFIG": "/q/maxabs_quant_g2.json"}, {"QUANT_CONFIG": CONFIG}
LOST = {"QUANT_CONFIG": "/q/inc_quant_per_channel_with_fp8kv_config.json"}
FP8, HUGE = LLAMA_8B._replace(quantization="fp8"), model("Llama-300B", 300, 128, 8, 126)
ROWS = {
    "a stack for eight cards refuses four": gaudi(LLAMA_8B, "-tp 4", R1, refused="possible: -tp 8"),
    # start_vllm.sh -q -b 128 -l 16384; its step of 128 tokens would make 128 prompt graphs, as LIMIT is ignored
    "DeepSeek-R1 takes eight cards and few graphs": gaudi(
        DEEPSEEK_R1,
        "--max-model-len 16384 --max-num-seqs 128",
        R1,
        env=ALL,
        values={
            TENSOR: "8",
            MODULES: "0,1,2,3,4,5,6,7",
            **dict(zip((f"{DECODE_BATCH}_{end}" for end in ENDS), ("1", "8", "128"), strict=True)),
            **dict(zip((f"{PROMPT}_{end}" for end in ENDS), ("128", "1024", "16384"), strict=True)),
            **dict(zip((f"{DECODE_BLOCK}_{end}" for end in ENDS), ("128", "1024", "16384"), strict=True)),
        },
    ),
    # start_vllm.sh -h: -b, default 128; -l, maximal value for single node 32768
    "it takes the manual's batch": gaudi(DEEPSEEK_R1, target=R1, values={SEQUENCES: "128"}),
    "a longer context than the manual's is told": gaudi(
        DEEPSEEK_R1, "--max-model-len 32896 --max-num-seqs 1", R1, finds={"HPU-049": ""}
    ),
    "its longest is not": gaudi(DEEPSEEK_R1, "--max-model-len 32768 --max-num-seqs 1", R1, quiet=("HPU-049",)),
    "a model in 16 bits is quantised once": gaudi(
        LLAMA_70B, target=R1, env=MEASURED, values={METHOD: "inc", "VLLM_REQUANT_FP8_INC": None}
    ),
    **{
        f"{target} quantises nothing again": gaudi(
            LLAMA_8B, target=target, env=MEASURED, values={"VLLM_REQUANT_FP8_INC": None}
        )
        for target in (OLD, FORK, PLUGIN)
    },
    # the plugin's docs/configuration/quantization/inc.md: --quantization inc --kv-cache-dtype fp8_inc
    "the plugin needs flags beside the configuration": gaudi(
        LLAMA_70B, target=PLUGIN, env=MAXABS, values={METHOD: "inc", CACHE: "fp8_inc"}
    ),
    "measurements that cannot be found are told": gaudi(DEEPSEEK_R1, target=R1, env=LOST, finds={"HPU-048": ""}),
    "a folder of them is believed": gaudi(
        DEEPSEEK_R1, target=R1, env={**LOST, "INC_MEASUREMENT_DUMP_PATH_PREFIX": "/q"}, quiet=("HPU-048",)
    ),
    # _verify_quantization of vLLM: the method of the configuration does not match the argument
    "--quantization inc beside the model's own method is a FAIL": gaudi(
        DEEPSEEK_R1, "--quantization inc", R1, env=MEASURED, finds={"HPU-052": ""}
    ),
    "without the flag it is none": gaudi(DEEPSEEK_R1, target=R1, env=MEASURED, quiet=("HPU-052",)),
    "nor without a method of the model": gaudi(LLAMA_8B, "--quantization inc", OLD, env=MAXABS, quiet=("HPU-052",)),
    "a quantised model is told by 1.18": gaudi(
        LLAMA_8B._replace(quantization="awq"), target=OLDEST, finds={"HPU-045": ""}
    ),
    "unknown lengths are spaced by doubling": gaudi(
        LLAMA_8B,
        values={SPACING: "true", f"{PROMPT}_MAX": None},
        because={SPACING: "lengths of requests are unknown", "VLLM_SKIP_WARMUP": "graphs"},
    ),
    "without a word about lengths they are the manual's usual ones": gaudi(
        LLAMA_8B, values={LENGTH: "16384", "--gpu-memory-utilization": "0.9"}, because={LENGTH: "131072"}
    ),
    "the user's length stays": gaudi(LLAMA_8B, "--max-model-len 131072", values={LENGTH: None}),
    "on the plugin they are the model's": gaudi(LLAMA_8B, target=PLUGIN, host=G3, values={LENGTH: None}),
    "lengths that make too many graphs are spaced by doubling too": gaudi(
        LLAMA_8B,
        "--max-num-seqs 128",
        goals={"input": (1, 60000), "output": (1, 60000)},
        values={SPACING: "true"},
        because={SPACING: "graphs"},
    ),
    "a user's bucket wins and the others follow": gaudi(
        LLAMA_8B,
        env={f"{PROMPT}_MAX": "2048"},
        goals=LONG_RANGES,
        values={f"{PROMPT}_MAX": "2048", f"{PROMPT}_MIN": "896"},
    ),
    "equal prompts need no zero padding": gaudi(
        LLAMA_8B, goals={"input": (1024, 1024), "output": (1, 1024)}, values={"VLLM_ZERO_PADDING": "false"}
    ),
    "throughput lets more short prompts into a step": gaudi(
        LLAMA_8B,
        goals={"input": (100, 1024), "output": (1, 1024), "optimize": "throughput"},
        values={"--max-num-prefill-seqs": "16"},
    ),
    "known lengths take padding limits on the plugin": gaudi(
        LLAMA_8B,
        target=PLUGIN,
        host=G3,
        goals=LONG_RANGES,
        values={
            "VLLM_BUCKETING_STRATEGY": "pad",
            "VLLM_PROMPT_QUERY_BUCKET_PAD_PERCENT": "25",
            "VLLM_PROMPT_QUERY_BUCKET_MAX": "2048",
            MODE: "0",
        },
    ),
    "cards are named by module, and cores are those beside them": gaudi(
        LLAMA_70B, "-tp 4", host=G2E, goals=SHORT_RANGES, values={MODULES: "0,1,2,3", CPUS: "0-39"}
    ),
    "one card is named by its own variable": gaudi(
        LLAMA_8B, goals=SHORT_RANGES, values={"HLS_MODULE_ID": "4", CPUS: "40-49"}
    ),
    "cards of two nodes are not bound": gaudi(QWQ, "-tp 8", goals=SHORT_RANGES, env=ALL, values={CPUS: None}),
    "a module that is not here is refused": gaudi(LLAMA_8B, env={MODULES: "0,9"}, code=USAGE),
    "a module is a number": gaudi(LLAMA_8B, env={MODULES: "first"}, code=USAGE),
    "more than four Gaudi2E cards need host NICs": gaudi(
        model("Llama-3.1-405B", 405, 128, 8, 126),
        target=PLUGIN,
        host=G2E,
        refused="--target gaudi2e",
        code=DOES_NOT_FIT,
    ),
    "with them eight serve": gaudi(HUGE, "--max-model-len 4096", host=G2E, values={TENSOR: "8"}),
    "without cards there is no plan": gaudi(LLAMA_8B, changed=with_devices(0), code=HOST),
    "experts are spread over the cards": gaudi(of_experts("Mixtral-of-16"), "-tp 4", values={EXPERTS: True}),
    "unless the vendor leaves it out": gaudi(
        of_experts("Llama-4-Scout-17B-16E-Instruct"), "-tp 4", values={EXPERTS: None}
    ),
    "a quantisation configuration brings its switches": gaudi(
        LLAMA_70B, "-tp 2", env=MAXABS, goals=SHORT_RANGES, values={"PT_HPU_WEIGHT_SHARING": "0", METHOD: None}
    ),
    "other ones in 1.21": gaudi(
        LLAMA_70B,
        "-tp 2",
        OLD,
        env=MAXABS,
        goals=SHORT_RANGES,
        values={METHOD: "inc", CACHE: "fp8_inc", "VLLM_DISABLE_MARK_SCALES_AS_CONST": "true"},
    ),
    **{
        f"{method} takes Gaudi's own kernels": gaudi(
            LLAMA_8B._replace(quantization=method), values={METHOD: f"{method}_hpu"}
        )
        for method in ("awq", "gptq")
    },
    "FP8 weights are converted for Gaudi2": gaudi(FP8, values={"VLLM_HPU_CONVERT_TO_FP8UZ": "true"}),
    "or must be": gaudi(FP8, target=OLD, finds={"HPU-041": ""}),
    "converted weights are not scaled again": gaudi(
        FP8._replace(converted=True), values={"VLLM_HPU_CONVERT_TO_FP8UZ": "false"}
    ),
    "nor by the plugin": gaudi(FP8._replace(converted=True), target=PLUGIN, values={"VLLM_SCALE_ADJUSTMENT": "false"}),
    "nor must they be": gaudi(FP8._replace(converted=True), target=OLD, quiet=("HPU-041",)),
    "what does not fit names the script that halves it": gaudi(
        LLAMA_8B._replace(modalities=("image",), weights=Weights(10**13, 5 * 10**12, 0)), refused="halve the weights: "
    ),
    "Qwens keep their tensors": gaudi(QWEN_7B, values={"PT_HPUGRAPH_DISABLE_TENSOR_CACHE": "false"}),
    "others do not": gaudi(LLAMA_8B, values={"PT_HPUGRAPH_DISABLE_TENSOR_CACHE": None}),
    "the fork has HPU graphs": gaudi(LLAMA_8B, because={MODE: "HPU graphs"}),
    "and a lazy mode without": gaudi(LLAMA_8B, "--enforce-eager", because={MODE: "lazy mode without graphs"}),
    "the plugin compiles": gaudi(LLAMA_8B, target=PLUGIN, because={MODE: "torch.compile"}),
    "or is eager": gaudi(LLAMA_8B, "--enforce-eager", PLUGIN, because={MODE: "eager"}),
    "a skipped warm-up is warned of": gaudi(LLAMA_8B, env={"VLLM_SKIP_WARMUP": "true"}, finds={"HPU-042": ""}),
    "a padding limit of the user's is warned of": gaudi(
        LLAMA_8B, env={f"{PROMPT}_LIMIT": "0.25"}, finds={"HPU-044": ""}
    ),
    "a quantisation that the platform does not name is told": gaudi(
        LLAMA_8B._replace(quantization="bitsandbytes"), finds={"HPU-045": ""}
    ),
    "the fork does not name modelopt": gaudi(LLAMA_8B._replace(quantization="modelopt"), finds={"HPU-045": ""}),
    "the plugin does": gaudi(LLAMA_8B._replace(quantization="modelopt"), target=PLUGIN, quiet=("HPU-045",)),
    "both name AWQ": gaudi(LLAMA_8B._replace(quantization="awq"), quiet=("HPU-045",)),
    "network cards are missed by a group that needs them": gaudi(
        QWEN_72B, "-tp 8", host=G2E, changed=with_network_cards(False), finds={"HPU-053": ""}, quiet=("HPU-043",)
    ),
    **{
        f"not where {why}": gaudi(
            QWEN_72B, words, host=G2E, changed=with_network_cards(there), quiet=("HPU-043", "HPU-053")
        )
        for why, words, there in (
            ("they are", "-tp 8", True),
            ("four cards are linked", "-tp 4", False),
            ("nobody looked", "-tp 8", None),
        )
    },
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_decisions(row: Row) -> None:
    check(row)
