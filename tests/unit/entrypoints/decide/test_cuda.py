from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from drydock.build.render import profile
from drydock.config.matrix import find, read_matrix
from drydock.core.paths import ROOT
from drydock.model.record import dump
from entrypoints.core.records import Cpu, Device, Facts, Link, Memory, Mount, Node
from entrypoints.decide.cuda import decide
from entrypoints.decide.records import Decision
from entrypoints.request.intents import Intents
from entrypoints.request.vllm_flags import parse_given
from tests.support.hosts.models import LLAMA, SMOLLM2
from tests.support.records import facts

GIB = 1 << 30
CACHE = Mount("/cache", exists=True, writable=True, free=1 << 40, total=1 << 40, filesystem="ext4")


@cache
def profile_of(target: str = "cuda") -> dict[str, Any]:
    found: dict[str, Any] = dump(profile(find(read_matrix(ROOT), target)))
    return found


def gpus(
    count: int, name: str = "NVIDIA H100 80GB HBM3", memory: float = 79.6, capability: str = "9.0"
) -> tuple[Device, ...]:
    half = max(1, count // 2)
    return tuple(
        Device(number, name, int(memory * GIB), 0, number // half % 2, architecture=capability, health="ok")
        for number in range(count)
    )


def host(devices: tuple[Device, ...], kind: str = "NV18", **changed: Any) -> Facts:
    pairs = [(one, other) for one in range(len(devices)) for other in range(one + 1, len(devices))]
    links = tuple(Link(one, other, kind) for one, other in pairs)
    found = facts({"cache": CACHE})._replace(accelerator="cuda", devices=devices, links=links)
    return found._replace(memory=Memory(512 * GIB, 500 * GIB, 0, 0))._replace(**changed)


def made(
    found: Facts, *flags: str, env: dict[str, str] | None = None, known: tuple[str, ...] = (), **more: Any
) -> Decision:
    model = more.pop("model", LLAMA)
    given = parse_given(flags, env or {}, known, Intents(**more.pop("intents", {})))
    return decide(more.pop("profile", profile_of()), found, model, given)


@pytest.mark.parametrize(
    ("capability", "dtype"), [("9.0", "auto"), ("8.0", "auto"), ("7.5", "float16"), ("7.0", "float16"), ("", "auto")]
)
def test_the_type_goes_with_the_capability(capability: str, dtype: str) -> None:
    value = made(host(gpus(1, capability=capability))).values["--dtype"]
    assert (value.value, bool(value.because)) == (dtype, True)


def test_a_mixed_machine_goes_by_its_oldest_gpu() -> None:
    first, second = gpus(2)
    assert made(host((first, second._replace(architecture="7.5")))).values["--dtype"].value == "float16"


def test_bfloat16_on_turing_is_kept_and_doubted() -> None:
    decision = made(host(gpus(1, capability="7.5")), "--dtype", "bfloat16")
    assert [finding.id for finding in decision.findings] == ["CUDA-031"]


@pytest.mark.parametrize(
    ("name", "memory", "aim", "tokens"),
    [
        ("NVIDIA H100 80GB HBM3", 79.6, None, "8192"),
        ("NVIDIA A100-SXM4-80GB", 80.0, None, "2048"),
        ("NVIDIA GeForce RTX 4090", 24.0, None, "2048"),
        ("NVIDIA H100 80GB HBM3", 79.6, "latency", "2048"),
        ("NVIDIA GeForce RTX 4090", 24.0, "throughput", "16384"),
    ],
)
def test_batches_go_by_memory_and_aim(name: str, memory: float, aim: str | None, tokens: str) -> None:
    decision = made(host(gpus(1, name, memory)), model=SMOLLM2, intents={"optimize": aim})
    assert decision.values["--max-num-batched-tokens"].value == tokens


def test_an_old_vllm_chooses_its_batches_itself() -> None:
    old = profile_of("cuda12.1-vllm0.6")
    assert "--max-num-batched-tokens" not in made(host(gpus(1)), profile=old).values


def test_what_the_user_sets_stays() -> None:
    decision = made(host(gpus(8)), "--max-num-batched-tokens", "4096", "-tp", "4")
    assert not {"--max-num-batched-tokens", "--tensor-parallel-size"} & set(decision.values)


def test_pcie_turns_the_own_all_reduce_off_beyond_two() -> None:
    wide = made(host(gpus(4), "PHB"), "-tp", "4").values
    assert "PHB" in wide["--disable-custom-all-reduce"].because
    assert "--disable-custom-all-reduce" not in made(host(gpus(2), "PHB"), "-tp", "2").values
    assert "--disable-custom-all-reduce" not in made(host(gpus(4)), "-tp", "4").values


def test_workers_are_bound_where_vllm_can_and_may() -> None:
    cpus = tuple(Cpu(number, number, number // 4, number // 4, (number,)) for number in range(8))
    nodes = (Node(0, (0, 1, 2, 3), GIB, GIB), Node(1, (4, 5, 6, 7), GIB, GIB))
    allowed = {"seccomp": "disabled", "sys_nice": "no"}
    numa = host(gpus(2), cpus=cpus, nodes=nodes, kernel=allowed)
    assert made(numa, "-tp", "2", known=("--numa-bind", "--tensor-parallel-size")).values["--numa-bind"].value is True
    assert "--numa-bind" not in made(numa, "-tp", "2").values
    blocked = numa._replace(kernel={"seccomp": "filter", "sys_nice": "no"})
    assert "--numa-bind" not in made(blocked, known=("--numa-bind",)).values
    assert "--numa-bind" not in made(numa._replace(cpus=cpus[:4]), known=("--numa-bind",)).values


def test_chosen_gpus_are_named_unless_the_user_did() -> None:
    busy = tuple(device._replace(busy=device.number == 0) for device in gpus(4))
    assert made(host(busy)).values["CUDA_VISIBLE_DEVICES"].value == "1,2,3"
    assert "CUDA_VISIBLE_DEVICES" not in made(host(busy), env={"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}).values
    assert "CUDA_VISIBLE_DEVICES" not in made(host(gpus(8))).values


def test_one_mig_instance_serves() -> None:
    parts = tuple(
        Device(number, "A100 MIG", size * GIB, 0, 0, health="ok", architecture="8.0", card=0, uuid=f"MIG-{number}")
        for number, size in enumerate((10, 40, 20))
    )
    decision = made(host(parts), model=SMOLLM2)
    assert decision.values["CUDA_VISIBLE_DEVICES"].value == "MIG-1"
    assert decision.values["--tensor-parallel-size"].value == "1"


def test_shared_memory_is_the_hosts() -> None:
    shared = tuple(device._replace(memory_total=None, memory_used=None) for device in gpus(1, "NVIDIA GB10", 1, "12.1"))
    assert made(host(shared)).values["--gpu-memory-utilization"].value == "0.8"


def test_types_that_are_only_unpacked_are_told() -> None:
    quantised = LLAMA._replace(quantization="fp8")
    assert [finding.id for finding in made(host(gpus(1, "A100", 80, "8.0")), model=quantised).findings] == ["CUDA-033"]
    assert not made(host(gpus(1)), model=quantised).findings


def test_sleep_mode_and_expandable_segments_are_doubted() -> None:
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert [finding.id for finding in made(host(gpus(1)), "--enable-sleep-mode", env=env).findings] == ["CUDA-032"]
    assert not made(host(gpus(1)), env=env).findings


def test_awq_on_gpus_without_kernels_for_it_is_told() -> None:
    awq = LLAMA._replace(quantization="awq")

    assert [finding.id for finding in made(host(gpus(1, "Tesla V100", 32, "7.0")), model=awq).findings] == ["CUDA-034"]
    assert made(host(gpus(1, "Tesla T4", 32, "7.5")), model=awq).findings == ()
