"""How an image serves one model on several equal hosts, and what joins them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.records import Facts
from entrypoints.decide.parallelism.devices import SOCKET, rate_link
from entrypoints.decide.records import Thresholds
from entrypoints.request.flags import NODES
from entrypoints.request.vllm_flags import UserFlags

NATIVE, RAY, ENGINES = "native", "ray", "engines"
"""Ways to run on several hosts: vLLM's own launcher (--nnodes), Ray, or only data-parallel engines (vLLM before
0.12, which has no --nnodes)."""

FABRIC, NVLINK, RDMA, SLICE, CARDS = "fabric", "nvlink", "rdma", "slice", "network-cards"
"""Links between hosts: one domain of the devices' own links, NVLink, which is as fast between hosts as inside one,
RDMA. A slice is a fabric if the environment names its hosts.
Over network cards the devices exchange data directly, as over RDMA, and no link of their own joins the hosts."""

SLICE_HOSTS = "TPU_WORKER_HOSTNAMES"
"""The hosts of a TPU slice, separated by commas. Source: Google Kubernetes Engine docs, TPU environment variables."""

NVLINK_BETWEEN_HOSTS = "NCCL_MNNVL_ENABLE"

_TYPES_WITH_RDMA = re.compile(r"(p4de?|p5e?n?|p6e?-[a-z0-9]+|trn1n|trn2[a-z]*)\.|trn1\.32|.*\b[DH]GX", re.IGNORECASE)
"""Machine types that have RDMA, as their firmware names them: AWS instances with the Elastic Fabric Adapter for RDMA,
and NVIDIA's own. Source: AWS, EFA, supported instance types; NVIDIA, DGX SuperPOD reference architecture."""
_BOARD = 8
"""Devices of a board of machines for clusters, each joined to each by the vendor's own links: HGX, and AMD's with eight
MI300X."""


class Reach(NamedTuple):
    """How an image runs a model over several hosts: data of its accelerator and stack."""

    ways: tuple[str, ...] = ()
    """NATIVE, RAY, ENGINES; none if it serves on one host only."""
    link: str = ""
    """The link between hosts that the devices themselves have: FABRIC, RDMA, SLICE; empty if it is the machine's."""
    interfaces: tuple[str, ...] = ("GLOO_SOCKET_IFNAME",)
    """Variables that name the network interface, one for each communicator."""
    environment: tuple[str, ...] = ()
    """NAME=VALUE for each rank."""
    ray_counts: bool = False
    """Whether Ray gets the number of a host's devices, which it does not find by itself."""


def read_reach(thresholds: Thresholds) -> Reach:
    """Return how the image runs a model over several hosts: its thresholds `hosts_ways`, `hosts_link` and so on."""
    rows = {name: row["value"] for name, row in thresholds.table.items() if name.startswith("hosts_")}
    stated: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in rows.items()}
    return Reach(**{name.removeprefix("hosts_"): value for name, value in stated.items()})


def make_reach_fields(thresholds: Thresholds) -> dict[str, Any]:
    """Return the fields of Rules about several hosts."""
    reach_of_stack = read_reach(thresholds)
    return {"ways": reach_of_stack.ways, "link": reach_of_stack.link}


def link_between(facts: Facts, env: Mapping[str, str], usual: str) -> str:
    """Return the link between hosts: FABRIC, NVLINK, RDMA, or empty if nothing is known of it.

    Hosts that NVLink joins are in one cluster and clique (nvidia-smi -q, Fabric), such as the trays of a GB200 NVL72.
    NCCL uses it between hosts unless NCCL_MNNVL_ENABLE is 0 (NCCL user guide), which a topology sets for hosts of
    several clusters.
    """
    if usual == SLICE:
        return FABRIC if "," in env.get(SLICE_HOSTS, "") else ""
    if facts.kernel.get("nvlink_cluster") and env.get(NVLINK_BETWEEN_HOSTS) != "0":
        return NVLINK
    return usual or (RDMA if facts.kernel.get("rdma_devices") else "")


def find_type_with_rdma(facts: Facts) -> str:
    """Return the machine's type, or its devices, if such machines usually have RDMA; else an empty text."""
    machine_type = facts.kernel.get("machine_type", "")
    if _TYPES_WITH_RDMA.match(machine_type):
        return machine_type
    count, vendor_links = len(facts.devices), sum(rate_link(link.kind) > SOCKET for link in facts.links)
    return f"{count} {facts.devices[0].name}" if count >= _BOARD and vendor_links == count * (count - 1) // 2 else ""


def count_hosts(user_flags: UserFlags) -> int:
    """Return the number of hosts that the user gives, 1 by default. Raises USAGE."""
    return user_flags.number(NODES) or 1


def check_ways(ways: tuple[str, ...], hosts: int) -> None:
    """Raise USAGE if the image cannot serve on several hosts."""
    if not ways:
        hint = "use one host for each server, with a router or as prefill and decode servers: docs/fit.md#several-hosts"
        raise EntrypointError(USAGE, f"{NODES} {hosts}: this image serves a model on one host only", hint)


def describe_link(between: str) -> str:
    """Return what is known of the link between hosts, as a part of a reason."""
    link_names = {
        FABRIC: "the devices' own links also join the hosts",
        NVLINK: "NVLink also joins the hosts, as fast as inside one",
        RDMA: "RDMA joins the hosts",
        CARDS: "the hosts' network cards join them, because the devices' own links end at their host",
    }
    return link_names.get(between, "what joins the hosts is not known from this one")
