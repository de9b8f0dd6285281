"""Small profiles, facts and models that tests change a little."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from drydock.build.render import profile_text
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.run.standin_run import CONFIG
from entrypoints.checks.findings import make_finding
from entrypoints.core.records import Cgroup, Cpu, Facts, Finding, Limits, Memory, Mount, Node, Notice, Processor

GIB = 1 << 30
TCMALLOC = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"
IOMP = "/opt/venv/lib/libiomp5.so"

THRESHOLDS = {
    "server_memory_gib": 1.5,
    "rank_memory_gib": 1.5,
    "kv_memory_share": 0.9,
    "kv_share_of_unknown_model": 0.4,
    "kv_tokens_per_core": 65536,
    "shortest_context": 1024,
    "one_node_weights_gib": 4,
    "reserve_one_core_from": 16,
    "transfer_cores": 1,
    "reserve_two_cores_from": 32,
    "power_threads_per_core": 4,
    "quantization_methods": ["awq", "gptq", "compressed-tensors"],
}


def cache(folder: str, scope: str, **changes: Any) -> dict[str, Any]:
    """Make a cache as profile.json holds it."""
    plain = {"value": "{path}", "limit": "", "carry": [], "because": f"{folder} is kept", "source": "test"}
    return {"folder": folder, "scope": scope, **plain, **changes}


CACHES = {
    "HOME": cache("home", "device"),
    "VLLM_CACHE_ROOT": cache("vllm", "plan", carry=["modelinfos"]),
    "TRITON_CACHE_DIR": cache("triton", "device"),
    "HF_HOME": cache("hub", "shared"),
}

KNOWN: dict[str, Any] = {}
"""Every finding that code makes, by id, as the images' profiles have them."""
for _variant in read_matrix(DRYDOCK):
    KNOWN |= json.loads(profile_text(_variant))["findings"]

PROFILE: dict[str, Any] = {
    "schema": 1,
    "variant": "cpu-test",
    "accelerator": "cpu",
    "stack": "cpu-test",
    "vllm": "0.32.0",
    "python": "/opt/venv/bin/python3",
    "module": "vllm.entrypoints.openai.api_server",
    "settings": [
        {
            "setting": "--enforce-eager",
            "value": True,
            "origin": "stack",
            "because": "known to be right",
            "source": "test",
        }
    ],
    "libraries": {"tcmalloc": {"x86_64": TCMALLOC}, "iomp": {"x86_64": IOMP}},
    "thresholds": {name: {"value": value, "because": "test", "source": "test"} for name, value in THRESHOLDS.items()},
    "caches": CACHES,
    "variables": {"shown": ["VLLM_"], "compiling": ["VLLM_"], "not_compiling": [], "devices": [], "files": {}},
    "converted_name": "",
    "checks": [],
    "findings": KNOWN,
    "known_answers": [],
}


def told(notices: Iterable[Notice]) -> list[Finding]:
    """Return notices as the findings that a plan shows."""
    return [make_finding(KNOWN, notice) for notice in notices]


def check(**changes: Any) -> dict[str, Any]:
    """Make a check as profile.json holds it."""
    plain = {"id": "CPU-001", "fact": "kernel.governor", "operator": "eq", "expected": "performance", "when": []}
    words = {
        "severity": "WARN",
        "scope": "host",
        "text": "is {found}",
        "passed": "is right",
        "remediation": "mend it",
        "source": "manual",
    }
    return {**plain, **words, **changes}


def facts(cores: int = 8, nodes: int = 1, memory: int = 64 * GIB, **changes: Any) -> Facts:
    """Make an unlimited x86-64 host: cores with one thread, split evenly over equal nodes."""
    cores_per_node = cores // nodes
    plain = Facts(
        accelerator="cpu",
        processor=Processor("x86_64", "GenuineIntel", "Xeon", ("avx2", "avx512f", "avx512_bf16")),
        cpus=tuple(Cpu(cpu, cpu, 0, cpu // cores_per_node, (cpu,)) for cpu in range(cores)),
        nodes=tuple(
            Node(
                node,
                tuple(range(node * cores_per_node, node * cores_per_node + cores_per_node)),
                memory // nodes,
                memory // nodes,
            )
            for node in range(nodes)
        ),
        memory=Memory(memory, memory, 0, 0),
        cgroup=Cgroup(2, None, 0, None, None),
        limits=Limits(1048576, None, None),
        mounts={
            role: Mount(path, exists=True, writable=True, free=GIB, total=GIB, filesystem="tmpfs")
            for role, path in {"cache": "/cache", "shm": "/dev/shm", "tmp": "/tmp"}.items()
        },
        kernel={"governor": "performance", "seccomp": "filter", "sys_nice": "no"},
        devices=(),
        user=(10001, 0),
        failures=(),
        files={"tcmalloc": True, "iomp": True},
    )
    return plain._replace(**changes)


def with_threads(plain: Facts, count: int) -> Facts:
    """Give each core of a host made by `facts` that many threads, numbered core by core."""
    cpus = tuple(
        cpu._replace(id=cpu.id * count + thread, siblings=tuple(range(cpu.id * count, cpu.id * count + count)))
        for cpu in plain.cpus
        for thread in range(count)
    )
    nodes = tuple(
        node._replace(cpus=tuple(cpu * count + thread for cpu in node.cpus for thread in range(count)))
        for node in plain.nodes
    )
    return plain._replace(cpus=cpus, nodes=nodes)


def write_model(folder: Path, config: Mapping[str, Any] = CONFIG, elements: int = 1024) -> Path:
    """Write a model folder with one safetensors file of so many bfloat16 numbers, which are holes on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", {"w": ("BF16", elements * 2)})
    return folder


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, int]]) -> None:
    """Write a safetensors file whose tensors (type and bytes by name) are holes on disk."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [size], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
