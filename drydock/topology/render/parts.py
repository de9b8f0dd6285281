"""What every format says of a plan: for each node its ranks, and for each rank the options of its container. Pure.

A plan may come from a file that anyone wrote. Its texts are checked here as strictly as their use needs; the formats
quote the rest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from drydock.core.errors import InputError
from drydock.model.record import IDENTIFIER_AT_MOST, Record
from drydock.model.running import MODELS
from drydock.model.variant import Variant
from drydock.oci.reference import OCI, parse_reference
from drydock.run import node_selectors
from drydock.run.access import LOOPBACK
from drydock.run.container import (
    Bind,
    Container,
    RunRequest,
    image_of_model,
    is_image,
    is_local,
    list_download_variables,
    make_container,
    name_of,
)
from drydock.run.docker_command import ENTRYPOINT_WORDS
from drydock.run.machine import Machine
from drydock.topology import topology_keys
from drydock.topology.plan_model import Rank, Replica, RouterPlan, TopologyPlan
from drydock.topology.topology_arguments import explain_bad_address, is_ip, make_node_url
from entrypoints.core.text import VARIABLE_NAME

RANKTABLES = "/ranktables"
"""Folder of the ranktables in a container. A rank gets it if one of its variables names a file in it."""
SLICE_HOSTS = "TPU_WORKER_HOSTNAMES"
"""Variable that names the hosts of a TPU slice (Google Kubernetes Engine docs, TPU environment variables)."""
INFINIBAND = "/dev/infiniband"
NOWHERE = Machine(Path("/dev/null"))
"""A machine of which nothing is known: a render must not depend on the machine it runs on."""

NAME_AT_MOST = IDENTIFIER_AT_MOST - len("vllm-")
"""Characters of a container's name before `name_of` adds vllm- to one that begins with a digit, and cuts the rest."""

_FABRIC = re.compile(r"\b(ib|rc|rc_x|rc_v|rc_mlx5|ud|ud_x|ud_v|dc|dc_x|dc_mlx5)\b")
"""UCX's transports over RDMA (UCX docs, UCX_TLS)."""


class Placed(Record):
    """A rank in its place."""

    name: str
    """Of its container: group, replica and rank."""
    replica: Replica
    rank: Rank
    container: Container
    secrets: tuple[str, ...] = ()
    """Variables whose values no file that is rendered has."""

    @property
    def leader(self) -> Rank:
        """The rank that answers clients."""
        return self.replica.ranks[0]

    @property
    def env(self) -> dict[str, str]:
        """The container's whole environment; the plan wins over the accelerator's record."""
        return {**self.container.env, **self.container.visible, **self.rank.env}


def make_placed_ranks(plan: TopologyPlan, variant: Variant) -> tuple[Placed, ...]:
    """Return every rank with its container, in the plan's order. Raises InputError with every problem found."""
    problems = [*_find_plan_problems(plan)]
    if problems:
        raise InputError(*problems, hint="correct topology.yaml and plan it again")
    return tuple(
        Placed(
            name=name_rank_container(replica, rank),
            replica=replica,
            rank=rank,
            container=_make_rank_container(plan, variant, replica, rank),
            secrets=topology_keys.list_replica_secrets(plan, replica),
        )
        for replica in plan.replicas
        for rank in replica.ranks
    )


def name_rank_container(replica: Replica, rank: Rank) -> str:
    """Return the name of a rank's container, the same in every format."""
    return name_of(f"{replica.group}-{replica.number}-{rank.rank}")


def group_by_node(ranks: Iterable[Placed]) -> dict[str, tuple[Placed, ...]]:
    """Return node → its ranks, sorted by node."""
    ranks_by_node: dict[str, tuple[Placed, ...]] = {}
    for item in ranks:
        ranks_by_node[item.rank.node] = (*ranks_by_node.get(item.rank.node, ()), item)
    return dict(sorted(ranks_by_node.items()))


def list_node_addresses(plan: TopologyPlan) -> dict[str, str]:
    """Return node → its address, sorted by node, with the router's."""
    addresses = {rank.node: rank.address for replica in plan.replicas for rank in replica.ranks}
    if plan.router:
        addresses.setdefault(plan.router.node, plan.router.address)
    return dict(sorted(addresses.items()))


def list_router_words(router: RouterPlan) -> tuple[str, ...]:
    """Return the router's program and its arguments, for the image's entrypoint. Raises InputError if there is none."""
    if not router.argv:
        raise InputError("router.argv: found nothing, expected vllm-router and its arguments")
    return router.argv


def make_router_check(router: RouterPlan, host: str, path: str = "/readiness") -> tuple[str, ...]:
    """Return the command that asks the router, in its container, and sends the key, if there is one."""
    return (*ENTRYPOINT_WORDS, "health", "--url", f"{make_node_url(host, router.port)}{path}")


def choose_router_host(router: RouterPlan) -> str:
    """Return an address at which the router's own node reaches it: it listens there, or on every address."""
    return router.address if is_ip(router.address) else LOOPBACK


def is_unpublished(image: str) -> bool:
    """Tell whether no registry has an image: this checkout built it, or its name has neither registry nor digest.

    Such an image is never pulled: another one could have its name at a public registry.
    """
    host, slash, _ = image.partition("/")
    registry = bool(slash) and (host == "localhost" or "." in host or ":" in host)
    return is_local(image) or not (registry or "@" in image)


def uses_rdma(env: Mapping[str, str]) -> bool:
    """Tell whether a rank's communicators use RDMA: NCCL was given adapters, or UCX a transport of theirs."""
    nccl = bool(env.get("NCCL_IB_HCA")) and env.get("NCCL_IB_DISABLE") != "1"
    return nccl or bool(_FABRIC.search(env.get("UCX_TLS", "").lower()))


def wants_ranktables(env: Mapping[str, str]) -> bool:
    """Tell whether a rank reads a ranktable."""
    return any(value.startswith(f"{RANKTABLES}/") for value in env.values())


# --- one rank -------------------------------------------------------------------------------------------------------


def _make_rank_container(plan: TopologyPlan, variant: Variant, replica: Replica, rank: Rank) -> Container:
    """Return a rank's container. The format decides on its network."""
    numbers = ",".join(map(str, rank.devices))
    options = make_container(variant, RunRequest(model="model", devices=numbers, image=plan.image), NOWHERE)
    rdma = _make_rdma_options(options) if uses_rdma({**options.env, **rank.env}) else {}
    overrides: dict[str, object] = {"arguments": rank.words, "model": _make_model_bind(plan.model, rank)}
    overrides["nodes"] = _choose_node_labels(variant, replica, rank)
    overrides["downloads"] = () if overrides["model"] else list_download_variables(plan.model)
    return options.model_copy(update={**overrides, **rdma})


def _choose_node_labels(variant: Variant, replica: Replica, rank: Rank) -> dict[str, str]:
    """Return the labels of the rank's node in a managed Kubernetes. The hosts of a slice have those of the whole."""
    kind = node_selectors.kind_of(variant, {rank.architecture})
    hosts = len(replica.ranks) if SLICE_HOSTS in rank.env else 1
    return node_selectors.make_node_labels(kind, len(rank.devices), hosts) if kind else {}


def _make_rdma_options(options: Container) -> dict[str, object]:
    """Return the options with which a container registers memory at RDMA adapters: it pins its buffers (UCX docs)."""
    other_limits = tuple(limit for limit in options.ulimits if not limit.startswith("memlock="))
    devices = options.devices if options.privileged else (*options.devices, INFINIBAND)
    capabilities = tuple(dict.fromkeys((*options.capabilities, "IPC_LOCK")))
    return {"devices": devices, "capabilities": capabilities, "ulimits": (*other_limits, "memlock=-1:-1")}


def _make_model_bind(model: str, rank: Rank) -> Bind | None:
    """Return the mount of a model's image, or of its folder where the rank's words name it: there, or below /models."""
    if model.startswith(OCI):
        return image_of_model(model)
    if not model.startswith("/"):
        return None
    is_named = any(word == model or word.endswith(f"={model}") for word in rank.words)
    return Bind(source=model, target=model if is_named else f"{MODELS}/{PurePosixPath(model).name or 'model'}")


# --- checks ---------------------------------------------------------------------------------------------------------


def _find_plan_problems(plan: TopologyPlan) -> Iterable[str]:
    ranks = [(replica, rank) for replica in plan.replicas for rank in replica.ranks]
    if not ranks:
        yield "replicas: found no rank, expected at least one"
    yield from _find_name_problems(plan)
    for replica in plan.replicas:
        numbers = [rank.rank for rank in replica.ranks]
        if numbers != [*range(len(numbers))]:
            yield f"{replica.group}-{replica.number}: found ranks {numbers}, expected 0, 1 … in order"
    for _, rank in ranks:
        yield from _find_rank_problems(rank)
    node_addresses = list_node_addresses(plan)
    places = [*((rank.node, rank.address) for _, rank in ranks), *_list_router_place(plan)]
    for node, address in places:
        if node_addresses[node] != address:
            yield f"node {node}: found the addresses {node_addresses[node]!r} and {address!r}, expected one"
    yield from _find_image_problems(plan)
    yield from _find_port_clashes(plan)


def _find_name_problems(plan: TopologyPlan) -> Iterable[str]:
    """Yield each name that is cut off, or that two have."""
    ranks = [(replica, rank) for replica in plan.replicas for rank in replica.ranks]
    for replica, rank in ranks:
        name = f"{replica.group}-{replica.number}-{rank.rank}"
        if len(name) > NAME_AT_MOST:
            yield f"group {replica.group}: container {name}: {len(name)} characters, expected {NAME_AT_MOST} at most"
    router = [plan.router.name] if plan.router else []
    yield from (f"router.name: found {name!r}, expected letters, digits and -" for name in router if "." in name)
    names = Counter([*(name_rank_container(replica, rank) for replica, rank in ranks), *router])
    yield from (
        f"replicas: {count} containers are called {name}, expected one" for name, count in names.items() if count > 1
    )
    nodes = Counter(map(name_of, list_node_addresses(plan)))
    yield from (
        f"nodes: {count} are called {name} as a host, expected one" for name, count in nodes.items() if count > 1
    )


def _find_image_problems(plan: TopologyPlan) -> Iterable[str]:
    """Yield the images and the model that a format could read as something else."""
    images = {"image": plan.image} | ({"router.image": plan.router.image} if plan.router else {})
    for where, image in images.items():
        if not is_image(image):
            yield f"{where}: found {image!r}, expected a reference such as registry.example/vllm:1"
    if plan.model.startswith("/") and ".." in PurePosixPath(plan.model).parts:
        yield f"model: found {plan.model!r}, expected a path without .."
    if plan.model.startswith(OCI) and not parse_reference(plan.model.removeprefix(OCI)).digest:
        yield f"model: found {plan.model!r}, expected an image by digest, {OCI}registry/name@sha256:…"


def _list_router_place(plan: TopologyPlan) -> list[tuple[str, str]]:
    return [(plan.router.node, plan.router.address)] if plan.router else []


def _find_rank_problems(rank: Rank) -> Iterable[str]:
    where = f"rank {rank.rank} on {rank.node}"
    if expected := explain_bad_address(rank.address):
        yield f"{where}: address: found {rank.address!r}, expected {expected}"
    required_ports = ("api", "status") if rank.rank == 0 else ("status",)
    yield from (f"{where}: ports.{name} is missing" for name in required_ports if name not in rank.ports)
    for name, value in rank.env.items():
        if not VARIABLE_NAME.fullmatch(name):
            yield f"{where}: env: found {name!r}, expected the name of a variable"
        if "\0" in value:
            yield f"{where}: env.{name}: found a NUL character, which no variable can hold"


def _find_port_clashes(plan: TopologyPlan) -> Iterable[str]:
    """Yield each port of a node that two have."""
    ports = [
        (rank.node, port)
        for replica in plan.replicas
        for rank in replica.ranks
        for purpose, port in sorted(rank.ports.items())
        if purpose not in ("master", "rpc") or rank.rank == 0  # the others connect to the leader's
    ]
    if plan.router:
        ports.append((plan.router.node, plan.router.port))
    for (node, port), count in Counter(ports).items():
        if count > 1:
            yield f"node {node}: port {port} is given {count} times, expected once"
