"""What the plan of a topology, and `topology check`, warn of: one table of ids, with texts and what to do. Pure data.

An id is never used again for something else. docs/reference/topology.md lists them; images have them for `explain`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Known(NamedTuple):
    """A finding of topologies."""

    text: str
    """{} is what was found."""
    remediation: str
    source: str
    passed: str = ""
    """What to say where `topology check` finds that nothing is the matter; {} is the node."""


FINDINGS: Mapping[str, Known] = {
    "TOPO-001": Known(
        "{} runs nothing",
        "add it to a group, or remove it",
        "what was handed over is used, or named",
    ),
    "TOPO-002": Known(
        "{}; the first is used",
        "set network.interface to the one that reaches the other nodes",
        "PyTorch, distributed communication, GLOO_SOCKET_IFNAME",
    ),
    "TOPO-003": Known(
        "{}",
        "change replicas or nodes, or measure with your own requests first",
        "drydock/topology/pd_ratio.py",
    ),
    "TOPO-004": Known(
        "the image has no {}, which its connector needs",
        "add it to the stack's requirements, and build again",
        "kv_transfer in templates/",
    ),
    "TOPO-005": Known(
        "{}",
        "compare answers through the router with those of one server before you rely on it",
        "kv_transfer in templates/",
    ),
    "TOPO-006": Known(
        "the compile cache of {} has another key, so each compiles for itself",
        "give both the same flags and environment",
        "vLLM 0.32 envs.py, compile_factors",
    ),
    "TOPO-007": Known(
        "the replicas of {}; the router sends each the same share",
        "write a group for each kind of node",
        "vllm-router --help, --policy",
    ),
    "TOPO-008": Known(
        "{} is a name: its servers listen on every address",
        "write the IP address",
        "vLLM docs, features, nixl_connector_usage (VLLM_NIXL_SIDE_CHANNEL_HOST); ZeroMQ, zmq_tcp(7)",
    ),
    "TOPO-009": Known(
        "{} exchange tensors and KV caches, which vLLM neither encrypts nor authenticates",
        "give them an isolated network, such as a VLAN or a firewall that lets only these nodes connect to each other",
        "vLLM docs, security, inter-node communication",
    ),
    "TOPO-020": Known(
        "{} cannot be asked, or does not answer as drydock asks",
        "read what it said; over ssh it needs Python 3 with requests, docker, and its key in known_hosts",
        "community.docker, docker_container, requirements",
        passed="{} can be asked, and answers as drydock asks",
    ),
    "TOPO-021": Known(
        "{} lacks the plan's images, or has others than the other nodes",
        "pull them there by digest; servers of different images do not exchange their KV cache",
        "vLLM 0.32, kv_connector/v1/nixl/metadata.py, compatibility hash",
        passed="{} has the plan's images, of the digests that the other nodes have",
    ),
    "TOPO-022": Known(
        "{} lacks the model, or has other files of it than the other nodes",
        "copy the folder again from one node, such as by rsync --checksum",
        "llm-d/llm-d#499; servers of different weights answer differently, and nothing says so",
        passed="{} has the model, of the same files as the other nodes",
    ),
    "TOPO-023": Known(
        "{} has no room for the model's files",
        "free space on that file system, or put the model on another one",
        "the sizes of the files on the other nodes",
        passed="{} has room for the model's files",
    ),
    "TOPO-024": Known(
        "{} has another driver or firmware than the other nodes",
        "install the same versions on every node",
        "vllm-ascend docs, pd_disaggregation_mooncake_multi_node; NCCL, HCCL and RCCL users' guides",
        passed="{} has the driver and firmware of the other nodes",
    ),
    "TOPO-026": Known(
        "ports of {} are in use",
        "stop what listens there (ss -tlnp shows it), or set another network.port_base",
        "drydock/topology/ports.py",
        passed="the ports of {} are free",
    ),
    "TOPO-027": Known(
        "{} is not the machine that was recorded",
        "record the node again (facts --record host.json), and plan again",
        "drydock/topology/topology_plan.py decides by the recorded host",
        passed="{} is the machine that was recorded",
    ),
    "TOPO-028": Known(
        "the chips of {} have other addresses than the recorded ones",
        "record the node again, and render the ranktables again; or set the addresses with hccn_tool -i N -ip -s",
        "vllm-ascend docs, pd_disaggregation_mooncake_multi_node; omni-infer, tools/scripts/pd_ranktable_tools.py",
        passed="the chips of {} have the recorded addresses",
    ),
    "TOPO-029": Known(
        "the links of some chips of {} are down",
        "check cable and switch port; hccn_tool -i N -link -g must say UP",
        "vllm-ascend docs, pd_disaggregation_mooncake_multi_node",
        passed="the links of the chips of {} are up",
    ),
    "TOPO-030": Known(
        "some chips of {} have another TLS switch than the other chips",
        "set it alike on every node: hccn_tool -i N -tls -s enable 0",
        "vllm-ascend docs, pd_disaggregation_mooncake_multi_node",
        passed="the chips of {} have the TLS switch of all chips",
    ),
    "TOPO-031": Known(
        "some chips of {} do not reach those of the other nodes",
        "check VLAN, gateway and netmask: hccn_tool -i N -netdetect -g, -gateway -g",
        "vllm-ascend docs, pd_disaggregation_mooncake_multi_node",
        passed="the chips of {} reach those of the other nodes",
    ),
    "TOPO-034": Known(
        "the image's own check did not run on {}",
        "read what it said; ./inv run prints what the container needs",
        "drydock/topology/preflight/node.py",
        passed="the image's own check ran on {}",
    ),
    "TOPO-035": Known(
        "NVLink does not join all nodes of {}",
        "name nodes of one rack in the group's `on`, or use fewer nodes for a replica",
        "nvidia-smi -q, Fabric: ClusterUUID and CliqueId; NVIDIA, IMEX service guide",
    ),
}
