"""What is decided on Ascend hosts, against what the vendor's guides start by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from drydock.core.paths import ROOT
from entrypoints.core.errors import DOES_NOT_FIT, HOST, USAGE
from entrypoints.core.records import Facts
from entrypoints.decide.ascend import AscendCase, make_ascend_rules
from entrypoints.decide.parallelism.constraints import find_tensor_obstacle
from entrypoints.model.geometry import Geometry
from entrypoints.model.read import ModelFacts
from entrypoints.model.weights import Weights
from entrypoints.request.roles import DECODE, PREFILL
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.decision_rows import Row, check, decided, with_devices
from tests.support.hosts import expect
from tests.support.hosts.host_models import LLAMA
from tests.support.sample import told

A2, A3, CLOUD, DUO = (f"ascend-{name}" for name in ("910b3-8x", "a3-8x2", "cloudmatrix384", "310p3"))
TENSOR, DATA, EXPERTS, LENGTH = (
    "--tensor-parallel-size",
    "--data-parallel-size",
    "--enable-expert-parallel",
    "--max-model-len",
)
GRAPHS, SEQUENCES, QUEUE = "--compilation-config", "--max-num-seqs", "TASK_QUEUE_ENABLE"
VISIBLE, BINDING, PROFILES = "ASCEND_RT_VISIBLE_DEVICES", "CPU_AFFINITY_CONF", "VLLM_TORCH_PROFILER_DIR"
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
DEEPSEEK = QWEN_MOE._replace(
    architecture="DeepseekV3ForCausalLM",
    weights=Weights(700 << 30, 0, 700 << 30),
    geometry=Geometry(61, 0, 0, 128, 128, 56, 576, 163_840, 7168, 129_280, 18_432, 256, 2048),
    expert_share=0.97,
)
SPARSE = DEEPSEEK._replace(geometry=DEEPSEEK.geometry and DEEPSEEK.geometry._replace(sparse=True))
NEXT = QWEN_MOE._replace(
    architecture="Qwen3NextForCausalLM",
    geometry=Geometry(48, 0, 0, 16, 2, 256, 0, 262_144, 2048, 151_936, 5120, 512, 512, 36, state_heads=16)._replace(
        state_matrix=32 * 128 * 128
    ),
)

LARGE_MOE = QWEN_MOE._replace(
    weights=Weights(220 << 30, 0, 220 << 30),
    geometry=Geometry(94, 0, 0, 64, 4, 128, 0, 262_144, 4096, 151_936, 12_288, 128, 1536),
    expert_share=0.96,
    quantization="ascend",
)


def a_sick_chip(facts: Facts) -> Facts:
    return facts._replace(devices=(facts.devices[0]._replace(health="Alarm"), *facts.devices[1:]))


def on_intel(facts: Facts) -> Facts:
    return facts._replace(processor=facts.processor._replace(architecture="x86_64"))


def with_driver(version: str) -> Callable[[Facts], Facts]:
    return lambda facts: facts._replace(versions={**facts.versions, "driver": version})


def with_interfaces(facts: Facts) -> Facts:
    return facts._replace(kernel={"interfaces": "eth0 eth1"}, grants={})


def with_jemalloc(*, there: bool) -> Callable[[Facts], Facts]:
    return lambda facts: facts._replace(files={"jemalloc": there})


def with_writable_profiles(facts: Facts) -> Facts:
    """The probe has looked at the folder."""
    return facts._replace(mounts={**facts.mounts, "profiles": facts.mounts["cache"]._replace(path="/data/profiles")})


SPLIT = {EXPERTS: True, VISIBLE: ",".join(map(str, range(16))), "--gpu-memory-utilization": "0.92"}
"""What both servers of Omni Infer's split deployment have."""
ROWS = {
    "Qwen3-32B in bfloat16 takes all eight chips": Row(
        A2, model=QWEN_32B, values={TENSOR: "8", "HCCL_OP_EXPANSION_MODE": "AIV", QUEUE: "1"}
    ),
    "experts are spread, with buffers to match": Row(
        A3, "-tp 4", model=QWEN_MOE, values={EXPERTS: True, "HCCL_BUFFSIZE": "1024", "HCCL_OP_EXPANSION_MODE": "AIV"}
    ),
    "fewer sequences on 310P capture no more": Row(
        DUO,
        "-tp 1 --max-num-seqs 16",
        values={GRAPHS: '{"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, 8, 16]}'},
    ),
    "the runtime sees the chosen chips alone, both dies of a card": Row(
        A3, "-tp 2", values={VISIBLE: "14,15"}, because={VISIBLE: "dies of card"}
    ),
    "chips that the user hides are not counted": Row(
        A2, env={VISIBLE: "6,7"}, model=QWEN_32B, values={TENSOR: "2", VISIBLE: None}
    ),
    "one chip is too few": Row(A2, env={VISIBLE: "4"}, model=QWEN_32B, code=DOES_NOT_FIT),
    "chips that are not here are refused": Row(A2, env={VISIBLE: "6,9"}, refused="names 9: no such chip", code=USAGE),
    "without a chip nothing is planned": Row(A2, changed=with_devices(0), code=HOST),
    "a sick chip is left out": Row(A2, changed=a_sick_chip, values={VISIBLE: "1,2,3,4,5,6,7"}),
    "vLLM binds workers on Arm": Row(A2, values={BINDING: None}),
    "the runtime does on Intel": Row(A2, changed=on_intel, values={BINDING: "1"}),
    "and for an old vLLM": Row(A2, target="ascend8.3-910b-vllm0.11", values={BINDING: "1"}),
    "without graphs two queues hand operators over": Row(A2, "--enforce-eager", values={QUEUE: "2", GRAPHS: None}),
    "a new driver gets vLLM's own graphs": Row(A2, changed=with_driver("25.5.1"), values={GRAPHS: None}),
    "without compilation there are none": Row(A2, "-O0", values={GRAPHS: None}),
    "several hosts meet over an interface and need the chips' addresses": Row(
        A2,
        "--nnodes 2",
        model=QWEN_32B,
        changed=with_interfaces,
        values={"GLOO_SOCKET_IFNAME": "eth0", "HCCL_SOCKET_IFNAME": "eth0"},
        finds={"NPU-043": ""},
    ),
    "one host needs none": Row(A2, model=QWEN_32B, changed=with_interfaces, quiet=("NPU-043",)),
    "jemalloc is preloaded where the image has it": Row(
        A2,
        changed=with_jemalloc(there=True),
        values={"LD_PRELOAD": "/usr/lib/aarch64-linux-gnu/libjemalloc.so.2"},
    ),
    "and not elsewhere": Row(A2, changed=with_jemalloc(there=False), values={"LD_PRELOAD": None}),
    "a quantisation without kernels is said": Row(A2, model=LLAMA._replace(quantization="awq"), finds={"NPU-044": ""}),
    "one with kernels is not": Row(A2, model=LLAMA._replace(quantization="compressed-tensors"), quiet=("NPU-044",)),
    "too few CPUs for binding are said": Row(
        A2, changed=lambda facts: facts._replace(cpus=facts.cpus[:4]), finds={"NPU-045": ""}
    ),
    "a length that 310P shall find itself is said": Row(DUO, "--max-model-len auto", finds={"NPU-046": ""}),
    "the user's size is kept for latent attention, with a warning": Row(
        A3, "-tp 16 --max-model-len 16384", model=DEEPSEEK, finds={"PLAN-047": ""}
    ),
    "not without graphs": Row(A3, "-tp 16 --max-model-len 16384 --enforce-eager", model=DEEPSEEK, quiet=("PLAN-047",)),
    "nor for sparse attention, which has other kernels": Row(
        A3, "-tp 16 --max-model-len 16384", model=SPARSE, quiet=("PLAN-047",)
    ),
    "310P has no latent attention": Row(DUO, model=DEEPSEEK, refused="does not support latent attention on 310P"),
    "nor expert parallelism": Row(
        DUO,
        "--enable-expert-parallel",
        model=QWEN_MOE,
        refused="--enable-expert-parallel: vllm-ascend does not support it on 310P",
    ),
    "wide heads need several query heads for each KV head": Row(
        A3, "-tp 16", model=NEXT, refused="-tp 16: heads of size 256 need several of 16 heads per KV head on each of 16"
    ),
    "quantised experts on a whole A3 have engines of 4 ranks": Row(
        A3, "--max-model-len 32768", model=LARGE_MOE, values={TENSOR: "4", DATA: "4", EXPERTS: True}
    ),
    "also for throughput": Row(
        A3,
        "--max-model-len 32768 --max-num-seqs 128",
        goals={"optimize": "throughput"},
        model=LARGE_MOE,
        values={TENSOR: "4", DATA: "4"},
    ),
    "of 8 ranks for long requests": Row(
        A3, "--max-model-len 135000", model=LARGE_MOE, values={TENSOR: "8", DATA: "2"}, because={TENSOR: "guides"}
    ),
    "and where goals say so": Row(
        A3, goals={"input": (1, 130_000), "output": (1, 2_000)}, model=LARGE_MOE, values={TENSOR: "8", DATA: "2"}
    ),
    "one group answers soonest": Row(
        A3, "--max-model-len 32768", goals={"optimize": "latency"}, model=LARGE_MOE, values={TENSOR: "16", DATA: None}
    ),
    "as on half an A3, for which the guides have one group": Row(
        A3, "--max-model-len 32768", model=LARGE_MOE, changed=with_devices(8), values={TENSOR: "8", DATA: None}
    ),
    "and for bfloat16": Row(
        A3,
        "--max-model-len 32768",
        model=LARGE_MOE._replace(quantization=""),
        values={TENSOR: "16", DATA: None},
    ),
    "and where engines leave less than a third of the memory": Row(
        A3,
        "--max-model-len 32768",
        model=SPARSE._replace(quantization="ascend"),
        values={TENSOR: "16", DATA: None},
    ),
    "sparse latent attention has engines of 8": Row(
        A3,
        "--max-model-len 8192",
        model=SPARSE._replace(quantization="ascend", weights=Weights(627 << 30, 0, 627 << 30)),
        values={TENSOR: "8", DATA: "2"},
    ),
    "small experts have an engine on each die": Row(
        A3, model=QWEN_MOE._replace(quantization="ascend", weights=Weights(9 << 30, 0, 9 << 30)), values={DATA: "16"}
    ),
    "Omni Infer's mixed deployment serves DeepSeek only": Row(CLOUD, finds={"NPU-041": ""}),
    "and one engine": Row(CLOUD, "--data-parallel-size 2", model=QWEN, finds={"NPU-042": ""}),
    "its split deployment has one engine for prompts": Row(
        CLOUD, model=DEEPSEEK, role=PREFILL, values={TENSOR: "16", DATA: "1", **SPLIT}
    ),
    "and one on each NPU for answers": Row(
        CLOUD,
        "--nnodes 2 --node-rank 0 --master-addr 10.0.0.1",
        model=DEEPSEEK,
        role=DECODE,
        values={TENSOR: "1", DATA: "32", **SPLIT},
        quiet=("NPU-041", "NPU-042"),
    ),
    "prompts of DeepSeek only, in one engine": Row(
        CLOUD, "-dp 2", model=QWEN, role=PREFILL, finds={"NPU-041": "", "NPU-042": ""}
    ),
    "answers of DeepSeek only, in many": Row(
        CLOUD, "-dp 2", model=QWEN, role=DECODE, finds={"NPU-041": ""}, quiet=("NPU-042",)
    ),
    "a folder of profiles in the root of the image cannot be written": Row(
        CLOUD, env={PROFILES: "./profiling"}, model=QWEN, finds={"NPU-047": ""}
    ),
    "nor can one that is not mounted": Row(CLOUD, env={PROFILES: "/data/profiles"}, model=QWEN, finds={"NPU-047": ""}),
    "nor one whose name begins as the cache's": Row(
        CLOUD, env={PROFILES: "/cachet"}, model=QWEN, finds={"NPU-047": ""}
    ),
    "one in the cache can": Row(CLOUD, env={PROFILES: "/cache/profiles"}, model=QWEN, quiet=("NPU-047",)),
    "one where the probe looked can": Row(
        CLOUD,
        env={PROFILES: "/data/profiles"},
        model=QWEN,
        changed=with_writable_profiles,
        quiet=("NPU-047",),
    ),
    "no folder is asked for": Row(CLOUD, model=QWEN, quiet=("NPU-047",)),
    "what the user set is not decided": Row(
        DUO,
        "--max-model-len 2048 --max-num-seqs 4 -tp 2 --compilation-config {}",
        values={LENGTH: None, SEQUENCES: None, TENSOR: None, GRAPHS: None},
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_decisions(row: Row) -> None:
    check(row)


def ascend_case(name: str, model: ModelFacts, *flags: str) -> AscendCase:
    facts = expect.read(name, expect.profile_of(name))
    return AscendCase(expect.profile_of(name), facts, model, parse_user_flags(flags, {}))


def test_what_w8a8_conversion_writes_is_what_omni_infer_takes_and_the_page_that_both_name_exists() -> None:
    profile = expect.profile_of(CLOUD)
    page, _, anchor = profile["thresholds"]["conversion_page"]["value"].partition("#")

    check(Row(CLOUD, model=LLAMA._replace(quantization="compressed-tensors"), quiet=("NPU-044",)))
    assert "docs/ascend.md#w8a8" in profile["findings"]["NPU-044"]["remediation"]
    assert f"## {anchor.upper()}" in (ROOT / page).read_text()


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
    decision = decided(Row(A3, "--max-model-len 16384 -dp 1 -pp 1", model=dense))
    finding = next(finding for finding in told(decision.findings) if finding.id == "PLAN-047")

    assert decision.values[TENSOR].value == "16"
    assert finding.remediation.startswith("set -tp 4 -dp 4 --enable-expert-parallel")


@pytest.mark.parametrize(("model", "size"), [(SPARSE, 16), (NEXT, 8)])
def test_sizes_that_have_kernels(model: ModelFacts, size: int) -> None:
    assert not find_tensor_obstacle(model, make_ascend_rules(ascend_case(A3, model)), size)


def test_a_recurrent_state_fills_whole_blocks_of_keys() -> None:
    assert NEXT.geometry
    odd = NEXT._replace(geometry=NEXT.geometry._replace(state_matrix=24 * 128 * 100))

    assert "does not fill whole blocks of 128 tokens" in find_tensor_obstacle(
        odd, make_ascend_rules(ascend_case(A3, odd)), 8
    )
