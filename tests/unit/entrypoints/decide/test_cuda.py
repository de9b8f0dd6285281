"""What is decided on NVIDIA GPUs beyond the recorded plans."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from entrypoints.core.errors import DOES_NOT_FIT
from entrypoints.core.records import Facts
from entrypoints.model.read import ModelFacts
from entrypoints.model.weights import Weights
from tests.support.decision_rows import Row, check, with_devices
from tests.support.hosts.host_models import LLAMA, SMOLLM2

H100, PCIE, V100, MIG = "cuda-h100-8x", "cuda-rtx4090-8x", "cuda-v100-8x", "cuda-a100-mig"
OLD, GB10, GB200, H200 = "cuda-h100-1x-r535", "cuda-gb10", "cuda-gb200-4x", "cuda-h200-1x"
BATCH, REDUCE, VISIBLE, NUMA, SHARE, OFFLOAD = (
    "--max-num-batched-tokens",
    "--disable-custom-all-reduce",
    "CUDA_VISIBLE_DEVICES",
    "--numa-bind",
    "--gpu-memory-utilization",
    "--kv-offloading-size",
)
EAGER = "--enforce-eager"
LIBRARIES, SEQUENCES = "LD_LIBRARY_PATH", "--max-num-seqs"
KNOWN = (NUMA, "--tensor-parallel-size")
SEGMENTS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
A100 = with_devices(1, name="NVIDIA A100-SXM4-80GB", architecture="8.0")
TURING = with_devices(1, architecture="7.5")


def one_older(facts: Facts) -> Facts:
    return facts._replace(devices=(*facts.devices[:7], facts.devices[7]._replace(architecture="7.5")))


def first_busy(facts: Facts) -> Facts:
    return facts._replace(devices=(facts.devices[0]._replace(busy=True), *facts.devices[1:4]))


def larger_instance_later(facts: Facts) -> Facts:
    first = facts.devices[0]._replace(uuid="MIG-0", number=0, card=0, memory_total=10 << 30)
    return facts._replace(devices=(first, first._replace(uuid="MIG-1", number=1, memory_total=40 << 30)))


def may_bind(facts: Facts) -> Facts:
    return facts._replace(kernel={**facts.kernel, "seccomp": "disabled", "sys_nice": "no"})


def may_not_bind(facts: Facts) -> Facts:
    return facts._replace(kernel={**facts.kernel, "seccomp": "filter", "sys_nice": "no"})


def large_shm(facts: Facts) -> Facts:
    return facts._replace(mounts={"shm": facts.mounts["shm"]._replace(free=1 << 40)})


def with_available(gib: int) -> Callable[[Facts], Facts]:
    return lambda facts: facts._replace(memory=facts.memory._replace(available=gib << 30))


def with_compat(version: str, **kernel: str) -> Callable[[Facts], Facts]:
    compat_settings = {"cuda_compat": version, "cuda_compat_folder": "/c", **kernel}
    return lambda facts: facts._replace(kernel={**facts.kernel, **compat_settings})


def with_kernel(**kernel: str) -> Callable[[Facts], Facts]:
    return lambda facts: facts._replace(kernel={**facts.kernel, **kernel})


def few_cpus(facts: Facts) -> Facts:
    return may_bind(facts)._replace(cpus=facts.cpus[:4])


def latent(*, sparse: bool) -> ModelFacts:
    """Return a model of latent attention, of which an indexer selects the tokens or not."""
    assert LLAMA.geometry
    return LLAMA._replace(geometry=LLAMA.geometry._replace(kv_heads=32, latent=576, sparse=sparse))


def of_weights(gib: float) -> ModelFacts:
    """Return a model whose weights take so much."""
    return LLAMA._replace(weights=Weights(int(gib * (1 << 30)), int(gib * (1 << 29)), 0))


def newest(architecture: str) -> Callable[[Facts], Facts]:
    return with_devices(architecture=architecture)


ROWS = {
    "Ada has no kernel of sparse latent attention": Row(
        PCIE, model=latent(sparse=True), refused="sparse latent attention for compute capability 8.9"
    ),
    "nor has Thor": Row(H100, model=latent(sparse=True), changed=newest("11.0"), refused="compute capability 11.0"),
    "RTX PRO 6000 has one": Row(H100, model=latent(sparse=True), changed=newest("12.0"), values={"--dtype": "auto"}),
    "not in 0.18": Row(
        H100,
        model=latent(sparse=True),
        changed=newest("12.0"),
        target="cuda12.9-vllm0.18",
        refused="vLLM since 0.24 takes 12.x",
    ),
    "Hopper had one in 0.18": Row(
        H100, model=latent(sparse=True), target="cuda12.9-vllm0.18", values={"--dtype": "auto"}
    ),
    "a small GPU that weights fill captures no graphs": Row(
        PCIE, "-tp 1", model=of_weights(18.5), values={EAGER: True}, because={EAGER: "weights take 77% of 24.0 GiB"}
    ),
    "with fewer weights it does": Row(PCIE, "-tp 1", model=of_weights(12), values={EAGER: None}),
    "split over two it does": Row(PCIE, "-tp 2", model=of_weights(18.5), values={EAGER: None}),
    "a large GPU does": Row(H100, "-tp 1", model=of_weights(64), values={EAGER: None}),
    "the user's graphs stay": Row(PCIE, "-tp 1 --no-enforce-eager", model=of_weights(18.5), values={EAGER: None}),
    "dense latent attention runs on Ada": Row(PCIE, model=latent(sparse=False), values={"--dtype": "auto"}),
    "Turing has no bfloat16": Row(H100, changed=TURING, values={"--dtype": "float16"}),
    "the oldest GPU decides": Row(H100, changed=one_older, values={"--dtype": "float16"}),
    "Ampere has bfloat16": Row(H100, changed=A100, values={"--dtype": "auto"}),
    "vLLM chooses the type of unknown GPUs": Row(
        H100, changed=with_devices(architecture=""), because={"--dtype": "does not report"}
    ),
    "bfloat16 on Turing is kept": Row(H100, "--dtype bfloat16", changed=TURING, finds={"CUDA-031": "bfloat16"}),
    "an A100 gets small batches": Row(H100, changed=A100, model=SMOLLM2, values={BATCH: "2048"}),
    "latency gets small batches": Row(H100, goals={"optimize": "latency"}, values={BATCH: "2048"}),
    "throughput gets large batches": Row(
        PCIE, goals={"optimize": "throughput"}, model=SMOLLM2, values={BATCH: "16384"}
    ),
    "an old vLLM chooses its batches": Row(H100, target="cuda12.1-vllm0.6", values={BATCH: None}),
    "a model that leaves no room for the usual step gets smaller ones": Row(
        H100,
        "-tp 1",
        model=LLAMA._replace(weights=Weights(0, 36_800_000_000, 0)),
        values={BATCH: "2048", SEQUENCES: "256"},
        because={BATCH: "leaves no room for the KV cache"},
    ),
    "a step that the user sets is not made smaller": Row(
        H100,
        f"-tp 1 {BATCH} 8192 {SEQUENCES} 1024",
        model=LLAMA._replace(weights=Weights(0, 36_800_000_000, 0)),
        values={BATCH: None, SEQUENCES: None, EAGER: True},
        finds={"PLAN-028": EAGER},
    ),
    "and refused if the graphs are the user's too": Row(
        H100,
        f"-tp 1 {BATCH} 8192 {SEQUENCES} 1024 --no-enforce-eager",
        model=of_weights(68.6),
        refused="with -tp 1, of 71.3 GiB usable",
    ),
    "graphs give way before a plan is refused for 2 % of the memory": Row(
        H100,
        "-tp 1",
        model=of_weights(69.8),
        values={BATCH: "2048", SEQUENCES: "256", EAGER: True},
        because={EAGER: "fits only without them"},
        finds={"PLAN-028": EAGER},
    ),
    "then the batch": Row(
        H100, "-tp 1", model=of_weights(70.5), values={BATCH: "512", SEQUENCES: "16"}, finds={"PLAN-028": "512"}
    ),
    "a length that was asked for does not": Row(
        H100, "-tp 1 --max-model-len 65536", model=of_weights(69), code=DOES_NOT_FIT
    ),
    "nor for more memory": Row(H100, "-tp 1", model=of_weights(72), code=DOES_NOT_FIT),
    "the margin of an estimate alone refuses nothing": Row(
        H100,
        "-tp 1 --max-model-len 4096",
        model=of_weights(69)._replace(estimated=True),
        finds={"PLAN-028": "no margin for weights that are estimated"},
    ),
    "a board for clusters without visible RDMA is asked about it": Row(
        H100, "--nnodes 2", finds={"PLAN-029": "on 8 NVIDIA H100"}, quiet=("PLAN-027",)
    ),
    "so is a cloud's machine type": Row(
        H200, "--nnodes 2", changed=with_kernel(machine_type="p5e.48xlarge"), finds={"PLAN-029": "p5e.48xlarge"}
    ),
    "a type without it is not": Row(
        H200, "--nnodes 2", changed=with_kernel(machine_type="PowerEdge R760xa"), quiet=("PLAN-029",)
    ),
    "nor one whose RDMA is visible": Row(
        H100, "--nnodes 2", changed=with_kernel(rdma_devices="mlx5_0"), quiet=("PLAN-029",)
    ),
    "nor one host": Row(H100, quiet=("PLAN-029",)),
    "network cards join GB10s for tensor parallelism": Row(
        GB10,
        "--nnodes 2",
        model=of_weights(131),
        values={"--tensor-parallel-size": "2", "--pipeline-parallel-size": None},
        because={"--tensor-parallel-size": "network cards join them"},
    ),
    "eight of them too": Row(GB10, "--nnodes 8", model=of_weights(520), values={"--tensor-parallel-size": "8"}),
    "not more": Row(GB10, "--nnodes 16", model=of_weights(1040), values={"--pipeline-parallel-size": "16"}),
    "a model that one of them holds answers faster from two": Row(
        GB10, "--nnodes 2", model=of_weights(20), values={"--tensor-parallel-size": "2"}
    ),
    "unless it is read in no time": Row(
        GB10, "--nnodes 2", model=of_weights(8), values={"--tensor-parallel-size": "1", "--data-parallel-size": "2"}
    ),
    "or more requests count": Row(
        GB10,
        "--nnodes 2",
        model=of_weights(20),
        goals={"optimize": "throughput"},
        values={"--tensor-parallel-size": "1", "--data-parallel-size": "2"},
    ),
    "the user's settings stay": Row(
        H100, f"{BATCH} 4096 -tp 4", values={BATCH: None, "--tensor-parallel-size": None, REDUCE: None}
    ),
    "four GPUs over PCIe have no own all-reduce": Row(PCIE, "-tp 4", values={REDUCE: True}),
    "two GPUs over PCIe have it": Row(PCIE, "-tp 2", values={REDUCE: None}),
    "workers are bound": Row(H100, "-tp 8", known=KNOWN, changed=may_bind, values={NUMA: True}),
    "a vLLM without the flag binds nothing": Row(H100, "-tp 8", changed=may_bind, values={NUMA: None}),
    "a filter forbids binding": Row(H100, "-tp 8", known=KNOWN, changed=may_not_bind, values={NUMA: None}),
    "a part of the CPUs forbids binding": Row(H100, "-tp 8", known=KNOWN, changed=few_cpus, values={NUMA: None}),
    "memory of GPUs is no place for workers": Row(
        GB200, "-tp 4", known=KNOWN, values={NUMA: True}, because={NUMA: "NUMA node: 0, 1"}
    ),
    "nor for a cache in the host's memory": Row(
        GB200,
        "-tp 4",
        goals={"offload": True},
        changed=large_shm,
        because={OFFLOAD: "NUMA node 0-1 has 815.7 GiB free"},
    ),
    "what others use of shared memory is not free": Row(
        GB10, changed=with_available(64), values={SHARE: "0.49"}, because={SHARE: "of which vLLM finds 60.0 GiB free"}
    ),
    "shared memory may be used up": Row(GB10, changed=with_available(3), refused="of 0.0 GiB usable per device"),
    "an older driver gets newer libraries": Row(
        OLD, changed=with_compat("580.95.05"), values={LIBRARIES: "/c"}, because={LIBRARIES: "driver is 535.104.12"}
    ),
    "older libraries than the driver's are not loaded": Row(
        H100, changed=with_compat("575.57.08"), values={LIBRARIES: None}
    ),
    "a GeForce would refuse newer libraries": Row(
        OLD, changed=with_compat("580.95.05", gpu_brand="GeForce"), values={LIBRARIES: None}
    ),
    "the user's path of libraries stays": Row(
        OLD, env={LIBRARIES: "/own"}, changed=with_compat("580.95.05"), values={LIBRARIES: None}
    ),
    "the other GPUs are named": Row(H100, changed=first_busy, values={VISIBLE: "1,2,3"}),
    "the user's names stay": Row(H100, env={VISIBLE: "GPU-a,GPU-b"}, changed=first_busy, values={VISIBLE: None}),
    "all GPUs need no names": Row(H100, values={VISIBLE: None}),
    "the largest MIG instance serves": Row(
        MIG, model=SMOLLM2, changed=larger_instance_later, values={VISIBLE: "MIG-1", "--tensor-parallel-size": "1"}
    ),
    "an A100 only unpacks FP8": Row(
        H100, changed=A100, model=LLAMA._replace(quantization="fp8"), finds={"CUDA-033": "8.0"}
    ),
    "Hopper computes FP8": Row(H100, model=LLAMA._replace(quantization="fp8"), quiet=("CUDA-033",)),
    "sleep needs whole segments": Row(H100, "--enable-sleep-mode", env=SEGMENTS, finds={"CUDA-032": "expandable"}),
    "without sleep segments may grow": Row(H100, env=SEGMENTS, quiet=("CUDA-032",)),
    "Volta has no kernel of AWQ": Row(V100, model=LLAMA._replace(quantization="awq"), finds={"CUDA-034": "7.0"}),
    "Turing has one": Row(H100, changed=TURING, model=LLAMA._replace(quantization="awq"), quiet=("CUDA-034",)),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_decisions(row: Row) -> None:
    check(row)
