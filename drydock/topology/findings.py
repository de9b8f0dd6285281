"""What the plan of a topology warns of: one table of ids, with texts and what to do. Pure.

An id is never used again for something else. docs/topology.md lists them.
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
        "drydock/topology/ratio.py",
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
        "{} is a name, but servers listen on an IP address",
        "write the IP address, or render for Kubernetes, where a pod takes its own",
        "vLLM docs, features, nixl_connector_usage (VLLM_NIXL_SIDE_CHANNEL_HOST); ZeroMQ, zmq_tcp(7)",
    ),
}


def finding(number: str, found: str) -> str:
    """Return a finding as one line: its id, what was found, what to do."""
    known = FINDINGS[number]
    return f"{number}: {known.text.format(found)}; {known.remediation}"
