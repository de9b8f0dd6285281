"""What is decided on Ascend hosts, against what the vendor's guides start by hand."""

from __future__ import annotations

import json

import pytest

from drydock.core.paths import ROOT
from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.records import Facts
from entrypoints.decide.ascend import AscendCase, decide, make_ascend_rules
from entrypoints.decide.parallelism.constraints import find_tensor_obstacle
from entrypoints.decide.records import Decision
from entrypoints.model.geometry import Geometry
from entrypoints.model.read import ModelFacts
from entrypoints.model.weights import Weights
from entrypoints.plan.plan import make_serve_plan
from entrypoints.plan.role_profile import apply_role
from entrypoints.request.intents import NONE, Intents
from entrypoints.request.roles import Role
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.hosts import expect
from tests.support.hosts.host_models import LLAMA
from tests.support.sample import told

A2, ONE, A3, CLOUD, DUO = (f"ascend-{name}" for name in ("910b3-8x", "910b4-1x", "a3-8x2", "cloudmatrix384", "310p3"))

A3_IMAGES = ("8.3-a3-vllm0.11", "8.5-a3-vllm0.18", "9.1-a3-vllm0.23")

QWEN = ModelFacts(
    name="/data/Qwen2.5-0.5B-Instruct",
    local=True,
    architecture="Qwen2ForCausalLM",
    quantization="",
    weights=Weights(988_097_824, 494_032_768, 0),
    geometry=Geometry(24, 0, 0, 14, 2, 64, 0, 32_768),
    unknown="",
)
QWEN_32B = ModelFacts(
    name="/models/Qwen3-32B",
    local=True,
    architecture="Qwen3ForCausalLM",
    quantization="",
    weights=Weights(65_524_246_528, 32_762_123_264, 0),
    geometry=Geometry(64, 0, 0, 64, 8, 128, 0, 40_960, 5120, 151_936, 25_600),
    unknown="",
)
QWEN_MOE = ModelFacts(
    name="/models/Qwen3-30B-A3B",
    local=True,
    architecture="Qwen3MoeForCausalLM",
    quantization="",
    weights=Weights(61_064_245_248, 30_532_122_624, 0),
    geometry=Geometry(48, 0, 0, 32, 4, 128, 0, 40_960, 2048, 151_936, 6144, 128, 768),
    unknown="",
)


def host(name: str) -> Facts:
    return expect.read(name, expect.profile_of(name))


def decided(
    name: str,
    model: ModelFacts,
    *flags: str,
    facts: Facts | None = None,
    intents: Intents = NONE,
    role: str = "serve",
    **env: str,
) -> Decision:
    user_flags = parse_user_flags(flags, env, intents=intents)._replace(role=Role(role))
    return decide(apply_role(expect.profile_of(name), role), facts or host(name), model, user_flags)


def ascend_case(name: str, model: ModelFacts, *flags: str) -> AscendCase:
    return AscendCase(expect.profile_of(name), host(name), model, parse_user_flags(flags, {}))


def values(name: str, model: ModelFacts, *flags: str, facts: Facts | None = None, **env: str) -> dict[str, str | bool]:
    return {key: value.value for key, value in decided(name, model, *flags, facts=facts, **env).values.items()}


def advices(decision: Decision) -> list[str]:
    return [finding.id for finding in decision.findings]


# --- the guides' examples -------------------------------------------------------------------------------------------


def test_qwen3_32b_in_bfloat16_takes_all_eight_chips() -> None:
    settings = values(A2, QWEN_32B)

    assert settings["--tensor-parallel-size"] == "8"
    assert settings["HCCL_OP_EXPANSION_MODE"] == "AIV"
    assert settings["TASK_QUEUE_ENABLE"] == "1"


def test_experts_are_spread_with_buffers_to_match() -> None:
    settings = values(A3, QWEN_MOE, "-tp", "4")

    assert settings["--enable-expert-parallel"] is True
    assert (settings["HCCL_BUFFSIZE"], settings["HCCL_OP_EXPANSION_MODE"]) == ("1024", "AIV")


def test_310p_gets_a_short_context_few_sequences_and_graphs_of_decoding() -> None:
    profile, facts = expect.profile_of(DUO), host(DUO)
    plan = make_serve_plan(profile, facts, LLAMA, parse_user_flags((LLAMA.name, "-tp", "1"), {}))
    argv = dict(zip(plan.argv, plan.argv[1:], strict=False))

    assert (argv["--max-model-len"], argv["--max-num-seqs"], argv["--dtype"]) == ("16384", "32", "float16")
    assert json.loads(argv["--compilation-config"]) == {
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32],
    }
    assert "--no-enable-prefix-caching" in plan.argv
    assert "HCCL_OP_EXPANSION_MODE" not in plan.env


def test_two_chips_of_310p_capture_two_graphs() -> None:
    graphs = json.loads(str(values(DUO, LLAMA, "-tp", "2")["--compilation-config"]))

    assert graphs["cudagraph_capture_sizes"] == [1, 32]


def test_fewer_sequences_on_310p_capture_no_more() -> None:
    graphs = json.loads(str(values(DUO, LLAMA, "-tp", "1", "--max-num-seqs", "16")["--compilation-config"]))

    assert graphs["cudagraph_capture_sizes"] == [1, 2, 4, 8, 16]


# --- chips ----------------------------------------------------------------------------------------------------------


def test_the_runtime_sees_the_chosen_chips_alone() -> None:
    visible_devices = decided(A3, LLAMA, "-tp", "2").values["ASCEND_RT_VISIBLE_DEVICES"]

    first, second = map(int, str(visible_devices.value).split(","))
    assert (second - first, first % 2) == (1, 0)
    assert "dies of card" in visible_devices.because


def test_chips_that_the_user_hides_are_not_counted() -> None:
    assert values(A2, QWEN_32B, ASCEND_RT_VISIBLE_DEVICES="6,7")["--tensor-parallel-size"] == "2"
    assert "ASCEND_RT_VISIBLE_DEVICES" not in values(A2, QWEN_32B, ASCEND_RT_VISIBLE_DEVICES="6,7")
    with pytest.raises(EntrypointError):
        values(A2, QWEN_32B, ASCEND_RT_VISIBLE_DEVICES="4")


def test_chips_that_are_not_here_are_refused() -> None:
    with pytest.raises(EntrypointError, match="names 9: no such chip") as error:
        values(A2, QWEN_32B, ASCEND_RT_VISIBLE_DEVICES="6,9")
    assert error.value.code == USAGE


def test_without_a_chip_nothing_is_planned() -> None:
    with pytest.raises(EntrypointError) as refusal:
        values(A2, LLAMA, facts=host(A2)._replace(devices=()))

    assert refusal.value.code == HOST


def test_a_sick_chip_is_left_out() -> None:
    facts = host(A2)
    sick = facts._replace(devices=(facts.devices[0]._replace(health="Alarm"), *facts.devices[1:]))

    assert "0" not in str(values(A2, LLAMA, facts=sick)["ASCEND_RT_VISIBLE_DEVICES"]).split(",")


# --- host, graphs, network ------------------------------------------------------------------------------------------


def test_who_binds_workers_depends_on_processor_and_version() -> None:
    facts = host(A2)
    intel = facts._replace(processor=facts.processor._replace(architecture="x86_64"))
    old = expect.profile_of(A2) | {"vllm": "0.11.0"}

    assert "CPU_AFFINITY_CONF" not in values(A2, LLAMA)
    assert values(A2, LLAMA, facts=intel)["CPU_AFFINITY_CONF"] == "1"
    assert decide(old, facts, LLAMA, parse_user_flags((), {})).values["CPU_AFFINITY_CONF"].value == "1"


def test_without_graphs_two_queues_hand_operators_over() -> None:
    assert values(A2, LLAMA, "--enforce-eager")["TASK_QUEUE_ENABLE"] == "2"


def test_an_old_driver_gets_one_kind_of_graphs_and_a_new_one_vllms_default() -> None:
    facts = host(A2)
    new = facts._replace(versions={**facts.versions, "driver": "25.5.1"})

    assert "FULL_DECODE_ONLY" in str(values(A2, LLAMA)["--compilation-config"])
    assert "--compilation-config" not in values(A2, LLAMA, facts=new)
    assert "--compilation-config" not in values(A2, LLAMA, "--enforce-eager")
    assert "--compilation-config" not in values(A2, LLAMA, "-O0")


def test_several_hosts_meet_over_an_interface_and_need_the_chips_addresses() -> None:
    facts = host(A2)._replace(kernel={"interfaces": "eth0 eth1"}, grants={})
    decision = decided(A2, QWEN_32B, "--nnodes", "2", facts=facts)

    assert decision.values["GLOO_SOCKET_IFNAME"].value == "eth0"
    assert decision.values["HCCL_SOCKET_IFNAME"].value == "eth0"
    assert "NPU-043" in advices(decision)
    assert "NPU-043" not in advices(decided(A2, QWEN_32B, facts=facts))


def test_jemalloc_is_preloaded_where_the_image_has_it() -> None:
    facts = host(A2)._replace(files={"jemalloc": True})

    assert str(values(A2, LLAMA, facts=facts)["LD_PRELOAD"]).endswith("aarch64-linux-gnu/libjemalloc.so.2")
    assert "LD_PRELOAD" not in values(A2, LLAMA, facts=facts._replace(files={"jemalloc": False}))


# --- what is said ---------------------------------------------------------------------------------------------------


def test_a_quantization_without_kernels_is_said() -> None:
    assert "NPU-044" in advices(decided(A2, LLAMA._replace(quantization="awq")))
    assert "NPU-044" not in advices(decided(A2, LLAMA._replace(quantization="compressed-tensors")))


def test_what_w8a8_conversion_writes_is_what_omni_infer_takes_and_the_page_that_both_name_exists() -> None:
    profile = expect.profile_of(CLOUD)
    page, _, anchor = profile["thresholds"]["conversion_page"]["value"].partition("#")

    assert "NPU-044" not in advices(decided(CLOUD, LLAMA._replace(quantization="compressed-tensors")))
    assert "docs/ascend.md#w8a8" in profile["findings"]["NPU-044"]["remediation"]
    assert f"## {anchor.upper()}" in (ROOT / page).read_text()


def test_too_few_cpus_for_binding_are_said() -> None:
    facts = host(A2)

    assert "NPU-045" in advices(decided(A2, LLAMA, facts=facts._replace(cpus=facts.cpus[:4])))


def test_a_length_that_310p_shall_find_itself_is_said() -> None:
    assert "NPU-046" in advices(decided(DUO, LLAMA, "--max-model-len", "auto"))


DEEPSEEK = QWEN_MOE._replace(
    architecture="DeepseekV3ForCausalLM",
    weights=Weights(700 << 30, 0, 700 << 30),
    geometry=Geometry(61, 0, 0, 128, 128, 56, 576, 163_840, 7168, 129_280, 18_432, 256, 2048),
    expert_share=0.97,
)


@pytest.mark.parametrize("flags", [(), ("--max-model-len", "16384")])
def test_latent_attention_gets_as_many_heads_a_rank_as_the_vendor_documents(flags: tuple[str, ...]) -> None:
    sizes = {
        size
        for size in range(1, 17)
        if not find_tensor_obstacle(DEEPSEEK, make_ascend_rules(ascend_case(A3, DEEPSEEK, *flags)), size)
    }

    assert sizes == {1, 2, 4}


def test_sixteen_heads_of_latent_attention_are_enough_since_cann_8_5() -> None:
    assert DEEPSEEK.geometry
    kimi = DEEPSEEK._replace(geometry=DEEPSEEK.geometry._replace(heads=64, kv_heads=64))
    profiles = [expect.profile_in(f"ascend{name}") for name in A3_IMAGES]
    version_rules = [make_ascend_rules(ascend_case(A3, kimi)._replace(profile=profile)) for profile in profiles]

    assert [
        max(size for size in range(1, 17) if not find_tensor_obstacle(kimi, rule_set, size))
        for rule_set in version_rules
    ] == [2, 4, 4]


def test_latent_attention_gets_fewer_heads_where_the_model_fits_only_then() -> None:
    dense = DEEPSEEK._replace(expert_share=0.0)
    decision = decided(A3, dense, "--max-model-len", "16384", "-dp", "1", "-pp", "1")
    finding = next(finding for finding in told(decision.findings) if finding.id == "PLAN-047")

    assert decision.values["--tensor-parallel-size"].value == "16"
    assert finding.remediation.startswith("set -tp 4 -dp 4 --enable-expert-parallel")


def test_the_users_size_is_kept_for_latent_attention_with_a_warning() -> None:
    assert "PLAN-047" in advices(decided(A3, DEEPSEEK, "-tp", "16", "--max-model-len", "16384"))
    assert "PLAN-047" not in advices(decided(A3, DEEPSEEK, "-tp", "16", "--max-model-len", "16384", "--enforce-eager"))


def test_sparse_attention_has_other_kernels_than_latent_attention() -> None:
    assert DEEPSEEK.geometry
    sparse = DEEPSEEK._replace(geometry=DEEPSEEK.geometry._replace(sparse=True))

    assert not find_tensor_obstacle(sparse, make_ascend_rules(ascend_case(A3, sparse)), 16)
    assert "PLAN-047" not in advices(decided(A3, sparse, "-tp", "16", "--max-model-len", "16384"))


def test_310p_refuses_latent_attention_and_expert_parallelism_before_the_weights_are_loaded() -> None:
    with pytest.raises(EntrypointError, match="does not support latent attention on 310P"):
        decided(DUO, DEEPSEEK)
    with pytest.raises(EntrypointError, match="--enable-expert-parallel: vllm-ascend does not support it on 310P"):
        decided(DUO, QWEN_MOE, "--enable-expert-parallel")


NEXT = QWEN_MOE._replace(
    architecture="Qwen3NextForCausalLM",
    geometry=Geometry(48, 0, 0, 16, 2, 256, 0, 262_144, 2048, 151_936, 5120, 512, 512, 36, state_heads=16)._replace(
        state_matrix=32 * 128 * 128
    ),
)


def test_wide_heads_need_several_query_heads_for_each_kv_head() -> None:
    refusal = find_tensor_obstacle(NEXT, make_ascend_rules(ascend_case(A3, NEXT)), 16)

    assert refusal == "heads of size 256 need several of 16 heads per KV head on each of 16 ranks"
    assert not find_tensor_obstacle(NEXT, make_ascend_rules(ascend_case(A3, NEXT)), 8)
    with pytest.raises(EntrypointError, match="-tp 16: heads of size 256"):
        decided(A3, NEXT, "-tp", "16")


def test_a_recurrent_state_fills_whole_blocks_of_keys() -> None:
    assert NEXT.geometry
    odd = NEXT._replace(geometry=NEXT.geometry._replace(state_matrix=24 * 128 * 100))

    assert "does not fill whole blocks of 128 tokens" in find_tensor_obstacle(
        odd, make_ascend_rules(ascend_case(A3, odd)), 8
    )


def test_omni_infer_says_what_its_mixed_deployment_does_not_serve() -> None:
    assert advices(decided(CLOUD, LLAMA))[-1] == "NPU-041"
    assert "NPU-042" in advices(decided(CLOUD, QWEN, "--data-parallel-size", "2"))


def test_omni_infers_split_deployment_has_one_engine_for_prompts_and_one_on_each_npu_for_answers() -> None:
    prefill = {name: value.value for name, value in decided(CLOUD, DEEPSEEK, role="prefill").values.items()}
    assert (prefill["--tensor-parallel-size"], prefill["--data-parallel-size"]) == ("16", "1")
    hosts = ("--nnodes", "2", "--node-rank", "0", "--master-addr", "10.0.0.1")
    decision = decided(CLOUD, DEEPSEEK, *hosts, role="decode")
    decode = {name: value.value for name, value in decision.values.items()}
    assert (decode["--tensor-parallel-size"], decode["--data-parallel-size"]) == ("1", "32")
    for settings in (prefill, decode):
        assert settings["--enable-expert-parallel"] is True
        assert settings["ASCEND_RT_VISIBLE_DEVICES"] == ",".join(map(str, range(16)))
        assert settings["--gpu-memory-utilization"] == "0.92"
    assert not {"NPU-041", "NPU-042"} & {*advices(decision)}


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_omni_infers_split_deployment_serves_deepseek_only(role: str) -> None:
    assert "NPU-041" in advices(decided(CLOUD, QWEN, role=role))
    assert ("NPU-042" in advices(decided(CLOUD, QWEN, "-dp", "2", role=role))) == (role == "prefill")


@pytest.mark.parametrize(
    ("folder", "writable"),
    [("./profiling", False), ("/data/profiles", False), ("/cache/profiles", True), ("/cachet", False)],
)
def test_a_folder_of_profiles_that_cannot_be_written_is_told(folder: str, *, writable: bool) -> None:
    """The guide's ./profiling is in the working directory, which is the root of the image."""
    plan = decided(CLOUD, QWEN, VLLM_TORCH_PROFILER_DIR=folder)

    assert ("NPU-047" in advices(plan)) is not writable


def test_a_folder_of_profiles_is_judged_by_the_probe_where_it_looked() -> None:
    facts = host(CLOUD)
    mounts = {**facts.mounts, "profiles": facts.mounts["cache"]._replace(path="/data/profiles")}
    plan = decided(CLOUD, QWEN, facts=facts._replace(mounts=mounts), VLLM_TORCH_PROFILER_DIR="/data/profiles")

    assert "NPU-047" not in advices(plan)
    assert "NPU-047" not in advices(decided(CLOUD, QWEN))


def test_what_the_user_set_is_not_decided() -> None:
    settings = values(
        DUO, LLAMA, "--max-model-len", "2048", "--max-num-seqs", "4", "-tp", "2", "--compilation-config", "{}"
    )

    assert not {"--max-model-len", "--max-num-seqs", "--tensor-parallel-size", "--compilation-config"} & set(settings)
