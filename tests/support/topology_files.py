"""Topologies of the tests, and what is expected of the examples, which `./inv generate` writes."""

from __future__ import annotations

import json
import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.files import format_json
from drydock.core.paths import ROOT
from drydock.topology.entrypoint_client import Entrypoint, model_folder
from drydock.topology.plan_diff import split_command_options
from drydock.topology.plan_model import Rank, Replica, TopologyPlan
from drydock.topology.topology_file import read_topology
from drydock.topology.topology_plan import Images, plan_topology

EXAMPLES = ROOT / "examples" / "topologies"
EXPECTED = ROOT / "tests" / "unit" / "drydock" / "topology" / "shapes.json"
HOSTS = ROOT / "tests" / "hosts"
CONFIGURATIONS = ROOT / "drydock" / "run" / "configurations.json"
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M"
SMOLLM2_NUMBERS = 134_515_008
SHAPE = (
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--data-parallel-size-local",
    "--data-parallel-start-rank",
    "--enable-expert-parallel",
    "--headless",
    "--node-rank",
    "--kv-transfer-config",
)
"""Flags of which the expected shape of an example consists."""

SHARED = """\
model: Qwen/Qwen3-8B
target: ascend9.1-a3-vllm0.23
api_key: required
nodes:
  - {name: m0, address: 10.0.0.1, host: host.json}
  - {name: m1, address: 10.0.0.2, host: host.json}
groups:
  - {name: prefill, role: prefill, devices: 4, replicas: 3, among: [m0]}
  - {name: decode, role: decode, devices: [8, 9, 10, 11]}
router: {node: m0, port: 7000}
network: {port_base: 9000}
"""
"""Four servers of which three share a machine, for the recorded host ascend-a3-8x2."""

TRIO = """\
model: /models/m
target: cpu
api_key: required
nodes:
  - {name: p0, address: 10.0.0.1, host: host.json}
  - {name: p1, address: 10.0.0.2, host: host.json}
  - {name: d0, address: 10.0.0.3, host: host.json}
groups:
  - name: prefill
    role: prefill
    replicas: 2
    among: [p0, p1]
  - name: decode
    role: decode
router: {node: p0}
goals:
  input: [16, 512]
"""
"""Two prefill servers and a decode server on processors."""


def write(folder: Path, text: str, host: str = "") -> Path:
    """Write a topology and the recorded host that its nodes have; return its path."""
    recorded = (HOSTS / host / "host.json").read_text() if host else '{"files": {}}\n'
    (folder / "host.json").write_text(recorded)
    path = folder / "topology.yaml"
    path.write_text(text)
    return path


def write_model(folder: Path, name: str) -> Path:
    """Write the published configuration of a model; of SmolLM2 also weights, which are empty."""
    folder.mkdir(exist_ok=True)
    configurations = json.loads(CONFIGURATIONS.read_text())
    config = configurations[name]["config"] if name in configurations else _SMOLLM2
    (folder / "config.json").write_text(json.dumps(config))
    if name == SMOLLM2:
        _write_weights(folder / "model.safetensors")
    return folder


_SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 49152,
}


def _write_weights(path: Path) -> None:
    size = 2 * SMOLLM2_NUMBERS
    tensor = {"dtype": "BF16", "shape": [SMOLLM2_NUMBERS], "data_offsets": [0, size]}
    header = json.dumps({"weights": tensor}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)


def planned(path: Path, folder: Path, target: str = "") -> TopologyPlan:
    """Plan a topology; its model is written into `folder` and read there."""
    read = read_topology(path)
    variant = find_variant(read_matrix(DRYDOCK), target or read.topology.target or "")
    name = SMOLLM2 if read.topology.model.startswith("/") else read.topology.model
    with model_folder(read.topology.model, str(write_model(folder / "model", name))) as (model, hub):
        return plan_topology(read, variant, Images(variant.id, "router0.1"), Entrypoint(DRYDOCK, variant, hub), model)


@cache
def plan_example(name: str) -> TopologyPlan:
    """Plan an example, once for all tests that read the plan."""
    with tempfile.TemporaryDirectory() as folder:
        return planned(EXAMPLES / f"{name}.yaml", Path(folder))


def examples() -> list[str]:
    return sorted(path.stem for path in EXAMPLES.glob("*.yaml"))


def shape(topology_plan: TopologyPlan) -> dict[str, Any]:
    """Return what of a plan is compared: nodes, ports, parallelism, the router; not every reason."""
    return {
        "replicas": [_replica(replica) for replica in topology_plan.replicas],
        "router": " ".join(topology_plan.router.argv) if topology_plan.router else "",
        "findings": sorted({line.partition(":")[0] for line in topology_plan.findings}),
    }


def _replica(replica: Replica) -> dict[str, Any]:
    return {"group": replica.group, "role": replica.role, "ranks": [_rank(rank) for rank in replica.ranks]}


def _rank(rank: Rank) -> dict[str, Any]:
    rank_options = split_command_options(rank.argv)
    flags = " ".join(f"{name} {rank_options[name]}".strip() for name in SHAPE if name in rank_options)
    ports = " ".join(f"{purpose}={port}" for purpose, port in rank.ports.items())
    env = " ".join(f"{name}={value}" for name, value in rank.env.items())
    return {"node": rank.node, "devices": len(rank.devices), "flags": flags, "ports": ports, "env": env}


def render_shapes() -> str:
    """Return what is expected of the examples."""
    return format_json({name: shape(plan_example(name)) for name in examples()})
