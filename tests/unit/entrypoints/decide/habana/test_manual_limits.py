"""What Gaudi's manuals limit: each limit has a finding, and a setting within it has none."""

from __future__ import annotations

import pytest

from entrypoints.core.errors import EntrypointError
from entrypoints.decide.habana.habana import decide
from entrypoints.model.read import ModelFacts
from entrypoints.model.weights import Weights
from entrypoints.request.intents import NONE, Intents
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.sample import told
from tests.unit.entrypoints.decide.habana.test_habana import (
    FORK,
    LLAMA_8B,
    LLAMA_70B,
    LONG,
    OLD,
    OLDEST,
    PLUGIN,
    QWEN_7B,
    R1,
    decided,
    host,
    model,
    profile,
    values,
)


def ids(what: ModelFacts, *flags: str, variant: str = FORK, intents: Intents = NONE, **env: str) -> set[str]:
    finding_ids = {finding.id for finding in decided(what, *flags, variant=variant, intents=intents, **env).findings}
    return finding_ids - {"PLAN-025"}  # cards that one group leaves idle


@pytest.mark.parametrize(
    ("finding", "beyond", "within"),
    [
        ("HPU-054", ("-tp", "4"), ("-tp", "2")),
        ("HPU-055", ("--max-seq-len-to-capture", "1024"), ("--max-seq-len-to-capture", "2048")),
    ],
)
def test_a_flag_beyond_its_limit_is_found(finding: str, beyond: tuple[str, ...], within: tuple[str, ...]) -> None:
    few = QWEN_7B._replace(geometry=QWEN_7B.geometry._replace(kv_heads=2)) if QWEN_7B.geometry else QWEN_7B
    assert ids(few, *beyond) == {finding}
    assert ids(few, *within) == set()


def test_ranks_do_not_divide_latent_attention() -> None:
    latent = (
        LLAMA_70B._replace(geometry=LLAMA_70B.geometry._replace(kv_heads=1, latent=576)) if LLAMA_70B.geometry else None
    )
    assert latent is not None
    assert ids(latent, "-tp", "4") == set()


@pytest.mark.parametrize(
    ("what", "flags", "lazy", "expected"),
    [
        (LLAMA_70B, ("-tp", "4"), "1", {"HPU-056"}),
        (LLAMA_70B, ("-tp", "4", "--enforce-eager"), "1", set()),
        (LLAMA_70B, ("-tp", "4"), "0", set()),
        (LLAMA_8B, ("-tp", "1"), "1", set()),
    ],
)
def test_graphs_of_several_cards_need_lazy_collectives(
    what: ModelFacts, flags: tuple[str, ...], lazy: str, expected: set[str]
) -> None:
    assert ids(what, *flags, PT_HPU_LAZY_MODE=lazy, PT_HPU_ENABLE_LAZY_COLLECTIVES="false") == expected


def test_mode_0_is_experimental_in_1_18_only() -> None:
    assert ids(LLAMA_8B, variant=OLDEST, PT_HPU_LAZY_MODE="0") == {"HPU-057"}
    assert ids(LLAMA_8B, variant=FORK, PT_HPU_LAZY_MODE="0") == set()


@pytest.mark.parametrize(
    ("variable", "short", "enough"),
    [
        ("VLLM_PROMPT_SEQ_BUCKET_MAX", "4096", "8192"),
        ("VLLM_DECODE_BS_BUCKET_MAX", "32", "128"),
        ("VLLM_DECODE_BLOCK_BUCKET_MAX", "32", "4096"),
    ],
)
def test_buckets_that_end_before_the_longest_request_are_found(variable: str, short: str, enough: str) -> None:
    assert ids(LLAMA_8B, "--max-model-len", "8192", **{variable: short}) == {"HPU-059"}
    assert ids(LLAMA_8B, "--max-model-len", "8192", **{variable: enough}) == set()


def test_a_piece_of_a_prompt_is_the_longest_of_the_plugin() -> None:
    flags = ("--max-model-len", "8192", "--max-num-batched-tokens", "2048")
    assert "HPU-059" in ids(LLAMA_8B, *flags, variant=PLUGIN, VLLM_PROMPT_QUERY_BUCKET_MAX="1024")
    assert "HPU-059" not in ids(LLAMA_8B, *flags, variant=PLUGIN, VLLM_PROMPT_QUERY_BUCKET_MAX="2048")


DEEPSEEK = model("DeepSeek-R1-0528-G2", 642, 128, 128, 61, quantization="fp8", converted=True)
DEEPSEEK = DEEPSEEK._replace(weights=Weights(on_disk=642 << 30, elements=0, other=642 << 30))
if DEEPSEEK.geometry:
    DEEPSEEK = DEEPSEEK._replace(geometry=DEEPSEEK.geometry._replace(kv_heads=1, head_size=576, latent=576))


@pytest.mark.parametrize(("length", "share"), [("16384", "0.85"), ("18432", "0.85"), ("18560", "0.65")])
def test_long_requests_of_deepseek_leave_memory_for_activations(length: str, share: str) -> None:
    assert values(DEEPSEEK, "--max-model-len", length, variant=R1)["--gpu-memory-utilization"] == share
    assert values(LLAMA_8B, "--max-model-len", length)["--gpu-memory-utilization"] == "0.9"


def test_measurements_of_eight_ranks_do_not_serve_sixteen() -> None:
    name = "/q/scripts/quant_configs/inc_quant_per_channel_with_fp8kv_config.json"
    assert ids(DEEPSEEK, "--nnodes", "2", variant=R1, QUANT_CONFIG=name) == {"HPU-058"}
    assert ids(DEEPSEEK, variant=R1, QUANT_CONFIG=name) == set()


@pytest.mark.parametrize(
    ("name", "cache"),
    [("inc_quant_per_channel_bf16kv.json", "auto"), ("inc_quant_per_channel_with_fp8kv_config.json", "fp8_inc")],
)
def test_a_configuration_for_a_bfloat16_cache_keeps_it(name: str, cache: str) -> None:
    assert values(LLAMA_70B, variant=OLD, QUANT_CONFIG=f"/q/{name}")["--kv-cache-dtype"] == cache
    assert values(DEEPSEEK, variant=R1, QUANT_CONFIG=f"/q/{name}")["--kv-cache-dtype"] == cache


# --- the cache and its blocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("intents", "tokens"), [(NONE, 16384), (LONG, 6144)])
def test_buckets_count_the_users_blocks(intents: Intents, tokens: int) -> None:
    """Eight times smaller blocks are eight times as many: the last bucket has what all sequences hold."""
    for block, flags in ((128, ()), (16, ("--block-size", "16"))):
        last = int(values(LLAMA_8B, *flags, variant=OLDEST, intents=intents)["VLLM_DECODE_BLOCK_BUCKET_MAX"])
        batch = int(values(LLAMA_8B, *flags, variant=OLDEST, intents=intents)["VLLM_DECODE_BS_BUCKET_MAX"])
        assert last == -(-tokens // block) * batch


def test_unknown_lengths_limit_a_large_concurrency_only() -> None:
    known_lengths = decided(LLAMA_8B, intents=LONG._replace(concurrency=4096))
    unknown = decided(LLAMA_8B, intents=Intents(concurrency=4096))
    assert [
        item.id for decision in (known_lengths, unknown) for item in decision.findings if item.id != "PLAN-025"
    ] == ["PLAN-026"] * 2
    assert int(str(unknown.values["--max-num-seqs"].value)) < 512
    assert values(LLAMA_8B, intents=Intents(concurrency=128))["--max-num-seqs"] == "128"


# --- the profiler ---------------------------------------------------------------------------------------------------


def profiled(variant: str, *option_strings: str) -> dict[str, str | bool]:
    user_flags = parse_user_flags((LLAMA_8B.name,), {"VLLM_PROFILER_ENABLED": "true"})._replace(
        known=frozenset(option_strings)
    )
    decision = decide(profile(variant), host(), LLAMA_8B, user_flags)
    return {name: value.value for name, value in decision.values.items() if "PROFILE" in name or "log-" in name}


def test_the_profiler_writes_to_the_volume_and_requests_are_logged() -> None:
    trace = {"VLLM_PROFILE_FILE": "/cache/profile.json"}
    assert profiled(OLD) == trace | {"--disable-log-requests": False}
    assert profiled(PLUGIN, "--enable-log-requests") == trace | {"--enable-log-requests": True}
    assert values(LLAMA_8B, VLLM_PROFILER_ENABLED="true")["DRYDOCK_WORK_FOLDER"] == "/cache"
    assert not {"VLLM_PROFILE_FILE", "DRYDOCK_WORK_FOLDER"} & set(values(LLAMA_8B))


# --- weights that must be converted ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("/models/X-FP8", "docker run … IMG convert --model /models/X-FP8 --output /models/X-FP8-G2"),
        ("owner/X-FP8", "docker run -v .:/models … IMG convert --model /models/X-FP8 --output /models/X-FP8-G2"),
        ("modelscope:owner/X-FP8", "`model pull modelscope:owner/X-FP8 --output X-FP8`; docker run -v .:/models"),
    ],
)
def test_a_stack_that_does_not_convert_names_the_folder_to_serve(name: str, command: str) -> None:
    findings = told(decided(LLAMA_8B._replace(name=name, quantization="fp8"), variant=R1, intents=NONE).findings)
    conversion_finding = next(finding for finding in findings if finding.id == "HPU-041")
    assert command in conversion_finding.remediation
    assert conversion_finding.remediation.endswith("then serve --model /models/X-FP8-G2")
    assert conversion_finding.severity == "FAIL"


# --- several hosts --------------------------------------------------------------------------------------------------


def test_network_cards_join_the_hosts_of_gaudi2e_and_links_those_of_gaudi2() -> None:
    of_pcie = decided(LLAMA_70B, "--nnodes", "2", machine="habana-gaudi2e-8x").values["--tensor-parallel-size"]
    of_oam = decided(LLAMA_70B, "--nnodes", "2").values["--tensor-parallel-size"]
    assert "the hosts' network cards join them" in of_pcie.because
    assert "the devices' own links also join the hosts" in of_oam.because


def test_the_users_group_over_two_hosts_may_have_sixteen_ranks() -> None:
    assert "--tensor-parallel-size" not in values(DEEPSEEK, "-tp", "16", "--nnodes", "2", variant=R1)
    with pytest.raises(EntrypointError, match="tensor-parallel sizes 2, 4, 8, 16 only"):
        decided(LLAMA_70B, "-tp", "12", "--nnodes", "2")
    with pytest.raises(EntrypointError, match="tensor-parallel sizes 1, 2, 4, 8 only"):
        decided(LLAMA_70B, "-tp", "6", "--nnodes", "2")
