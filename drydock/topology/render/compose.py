"""A plan → Compose files: one for all nodes on one engine, and one for each machine. Pure.

On one engine a node is a network namespace with the node's address. Where several containers share a node, a service
of its own holds the namespace, so that none of them loses its network when another restarts.

A service that keeps nothing has a tmpfs at CACHE, which each image declares as a volume. Otherwise the engine would
make a volume without a name for it, and `docker compose down` leaves those behind.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from drydock.core.dollars import double_dollars_of_texts
from drydock.core.errors import InputError
from drydock.model.variant import Variant
from drydock.run.access import LOOPBACK
from drydock.run.container import name_of
from drydock.run.docker_command import (
    ASK_EVERY,
    CACHE,
    ENTRYPOINT_WORDS,
    PYTHON,
    START_SECONDS,
    STOP_SECONDS,
    TMP,
    compose_project,
)
from drydock.topology import topology_keys
from drydock.topology.plan_model import RouterPlan, TopologyPlan
from drydock.topology.render.parts import (
    RANKTABLES,
    Placed,
    choose_router_host,
    group_by_node,
    is_unpublished,
    list_node_addresses,
    list_router_words,
    make_placed_ranks,
    make_router_check,
    wants_ranktables,
)
from drydock.topology.render.quoted_text import format_yaml
from drydock.topology.topology_arguments import is_ip

NETWORK = "nodes"
INTERFACE = "GLOO_SOCKET_IFNAME"
"""Variable that every multi-node rank has; its value is the name of the node's interface (facts of vLLM 0.32: gloo is
used for the CPU groups of every accelerator)."""
USUAL_INTERFACE = "eth0"
"""What the engine calls a container's only interface."""
WIDEST = 16
"""Bits of the shortest prefix that one engine's network gets."""
HOLD = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {15}); signal.sigwait({15})"
"""Waits for SIGTERM, which the kernel does not deliver to a process 1 without a handler."""


def render_compose_files(plan: TopologyPlan, variant: Variant, ranktables: Mapping[str, str]) -> dict[str, str]:
    """Return path → content: compose.yaml if one engine can have all nodes, and nodes/NODE/compose.yaml.

    `ranktables`: name → content, for ranks that read them. Raises InputError for an invalid plan.
    """
    ranks = make_placed_ranks(plan, variant)
    read = any(wants_ranktables(item.env) for item in ranks)
    folders = ["", *(f"nodes/{node}/" for node in list_node_addresses(plan))] if read else []
    tables = {f"{folder}ranktables/{name}": text for folder in folders for name, text in ranktables.items()}
    single = {
        f"nodes/{node}/compose.yaml": format_yaml(make_machine_project(plan, ranks, node))
        for node in list_node_addresses(plan)
    }
    engine_files = {"compose.yaml": format_yaml(make_engine_project(plan, ranks))} if shares_network(plan) else {}
    return dict(sorted({**engine_files, **single, **tables}.items()))


def shares_network(plan: TopologyPlan) -> bool:
    """Tell whether one network can have every node's address. Names fit in any."""
    numbers = [address for address in list_node_addresses(plan).values() if is_ip(address)]
    return not numbers or _find_subnet(numbers) is not None


def make_engine_project(plan: TopologyPlan, ranks: Sequence[Placed], *, hold: bool = False) -> dict[str, Any]:
    """Return one project with a container for each rank of each node. Raises InputError if no network has them all.

    `hold`: every node has a service that holds its namespace, also those with one rank.
    """
    services: dict[str, Any] = {}
    volumes: dict[str, Any] = {}
    nodes = group_by_node(ranks)
    for node, address in list_node_addresses(plan).items():
        node_ranks = nodes.get(node, ())
        router = plan.router if plan.router and plan.router.node == node else None
        shared = hold or len(node_ranks) + bool(router) > 1
        place = _make_node_network(node, address, node_ranks)
        services |= {f"node.{name_of(node)}": _make_holder_service(plan.image, router, place)} if shared else {}
        joined = {"network_mode": f"service:node.{name_of(node)}"} if shared else place
        for item in node_ranks:
            services[item.name] = (
                _make_rank_service(item, f"cache.{name_of(node)}") | _list_secret_files(item.secrets) | joined
            )
            volumes[f"cache.{name_of(node)}"] = {}
        if router:
            published = {} if shared else _make_port_entry(router.port)
            service = _make_router_service(router, compute_start_period(ranks)) | _list_secret_files(
                topology_keys.list_router_secrets(plan)
            )
            services[router.name] = service | joined | published
    if not plan.router:
        _publish_ports(services, ranks)
    return {"services": services, "networks": {NETWORK: make_engine_network(plan)}, "volumes": volumes}


def make_machine_project(plan: TopologyPlan, ranks: Sequence[Placed], node: str) -> dict[str, Any]:
    """Return the project of one machine, with the machine's network: ranks also use ports that the kernel chooses."""
    host = {"network_mode": "host"}
    node_ranks = group_by_node(ranks).get(node, ())
    services = {
        item.name: _make_rank_service(item, "cache") | _list_secret_files(item.secrets, "../../") | host
        for item in node_ranks
    }
    if plan.router and plan.router.node == node:
        service = _make_router_service(plan.router, compute_start_period(ranks)) | _list_secret_files(
            topology_keys.list_router_secrets(plan), "../../"
        )
        services[plan.router.name] = service | host
    volumes = {"volumes": {"cache": {"name": node_ranks[0].container.cache}}} if node_ranks else {}
    return {"services": services, **volumes}


# --- services -------------------------------------------------------------------------------------------------------


def _make_rank_service(item: Placed, cache: str) -> dict[str, Any]:
    """Return a rank's service, without a network: what `run --format compose` gives it, and what a topology adds."""
    service: dict[str, Any] = next(iter(compose_project(item.container)["services"].values()))
    for key in ("container_name", "network_mode", "ports"):
        service.pop(key, None)
    for volume in service["volumes"]:
        if volume["type"] == "volume":
            volume["source"] = cache
    tables = [_make_ranktable_mount()] if wants_ranktables(item.env) else []
    return {
        **service,
        **_choose_pull_policy(item.container.image),
        "init": False,
        "healthcheck": make_healthcheck(item),
        "environment": double_dollars_of_texts(item.env) | dict.fromkeys(_list_shell_variables(item)),
        "volumes": [*service["volumes"], *tables],
    }


def _list_shell_variables(item: Placed) -> tuple[str, ...]:
    """Return the variables that Compose passes on by name."""
    return tuple(name for name in item.container.downloads if name not in item.env)


def _list_secret_files(names: Sequence[str], folder: str = "./") -> dict[str, Any]:
    """Return the files that have the secrets of a service: drydock/topology/topology_keys.py."""
    return {"env_file": [f"{folder}{topology_keys.make_secret_file_name(name)}" for name in names]} if names else {}


def make_healthcheck(item: Placed) -> dict[str, Any]:
    """Return the check of a rank's status port, for headless ranks too."""
    words = [*ENTRYPOINT_WORDS, "health", "--status-port", str(item.rank.ports["status"])]
    return {
        "test": ["CMD", *words],
        "interval": f"{ASK_EVERY}s",
        "timeout": "5s",
        "retries": 3,
        "start_period": f"{compute_start_period([item])}s",
    }


def _make_ranktable_mount() -> dict[str, Any]:
    return {
        "type": "bind",
        "source": "./ranktables",
        "target": RANKTABLES,
        "read_only": True,
        "bind": {"create_host_path": False},
    }


def compute_start_period(ranks: Sequence[Placed]) -> int:
    """Return the seconds that the first start of the slowest server may take."""
    return max([START_SECONDS, *(60 * item.container.start_minutes for item in ranks)])


def _make_router_service(router: RouterPlan, seconds: int) -> dict[str, Any]:
    """Return the router's service; `seconds`: how long its servers may take to start."""
    return {
        "image": router.image,
        **_choose_pull_policy(router.image),
        "entrypoint": [*ENTRYPOINT_WORDS],
        "command": double_dollars_of_texts(list_router_words(router)),
        "init": False,
        "restart": "unless-stopped",
        "stop_grace_period": f"{STOP_SECONDS}s",
        "read_only": True,
        "tmpfs": [TMP, CACHE],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "healthcheck": {
            "test": ["CMD", *make_router_check(router, choose_router_host(router))],
            "interval": f"{ASK_EVERY}s",
            "timeout": "5s",
            "retries": 3,
            "start_period": f"{seconds}s",  # it opens its port when every server has answered
        },
    }


def _choose_pull_policy(image: str) -> dict[str, str]:
    """Return that Compose does not pull an image which no registry has."""
    return {"pull_policy": "never"} if is_unpublished(image) else {}


def _make_holder_service(image: str, router: RouterPlan | None, place: Mapping[str, Any]) -> dict[str, Any]:
    """Return the service that holds a node's network namespace."""
    return {
        "image": image,
        **_choose_pull_policy(image),
        "entrypoint": [PYTHON, "-I", "-S", "-c", HOLD],
        "init": False,
        "restart": "unless-stopped",
        "read_only": True,
        "tmpfs": [CACHE],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        # the image's own would fail, and `up --wait` waits for one
        "healthcheck": {"test": ["CMD", PYTHON, "-I", "-S", "-c", ""], "interval": f"{ASK_EVERY}s"},
        **place,
        **(_make_port_entry(router.port) if router else {}),
    }


def _publish_ports(services: dict[str, Any], ranks: Sequence[Placed]) -> None:
    """Publish the servers' ports, on loopback. A port of two nodes is published for the first."""
    published_ports: set[int] = set()
    for item in ranks:
        port = item.rank.ports.get("api")
        if item.rank.rank == 0 and port and port not in published_ports:
            published_ports.add(port)
            service = services.get(f"node.{name_of(item.rank.node)}", services[item.name])
            service["ports"] = [*service.get("ports", ()), *_make_port_entry(port)["ports"]]


def _make_port_entry(port: int) -> dict[str, Any]:
    return {"ports": [f"{LOOPBACK}:{port}:{port}"]}


# --- the network of one engine --------------------------------------------------------------------------------------


def _make_node_network(node: str, address: str, node_ranks: Sequence[Placed]) -> dict[str, Any]:
    """Return a node's place in the network: its address or name, and its interface's name."""
    version = f"ipv{ipaddress.ip_address(address).version}_address" if is_ip(address) else ""
    where: dict[str, Any] = {version: address} if version else {"aliases": [address]}
    names = sorted(
        {item.env[INTERFACE] for item in node_ranks if item.env.get(INTERFACE, USUAL_INTERFACE) != USUAL_INTERFACE}
    )
    if len(names) > 1:
        raise InputError(f"node {node}: its ranks use the interfaces {', '.join(names)}, expected one")
    interface = {"interface_name": double_dollars_of_texts(names[0])} if names else {}
    return {"hostname": name_of(node), "networks": {NETWORK: where | interface}}


def make_engine_network(plan: TopologyPlan) -> dict[str, Any]:
    """Return the network of one engine. Raises InputError if none can have every node's address."""
    numbers = [address for address in list_node_addresses(plan).values() if is_ip(address)]
    if not numbers:
        return {"driver": "bridge"}
    subnet = _find_subnet(numbers)
    if subnet is None:
        raise InputError(
            f"nodes: found the addresses {', '.join(numbers)}, expected one network of at most /{WIDEST}",
            hint="`topology render --format compose` writes nodes/NODE/compose.yaml for each machine",
        )
    node_addresses = {ipaddress.ip_address(number) for number in numbers}
    gateway = next(
        host for host in (subnet[-2 - place] for place in range(len(node_addresses) + 1)) if host not in node_addresses
    )
    version6 = {"enable_ipv6": True} if subnet.version == 6 else {}  # noqa: PLR2004 - IPv6
    return {"driver": "bridge", **version6, "ipam": {"config": [{"subnet": str(subnet), "gateway": str(gateway)}]}}


def _find_subnet(numbers: Sequence[str]) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return the smallest network, /24 at most (IPv6: /120), with every address and one for the gateway."""
    node_addresses = [ipaddress.ip_address(number) for number in numbers]
    bits = node_addresses[0].max_prefixlen
    for length in range(bits - 8, bits - 32 + WIDEST - 1, -1):
        network = ipaddress.ip_network(f"{node_addresses[0]}/{length}", strict=False)
        edges = {network[0], network[-1]}
        if all(address in network and address not in edges for address in node_addresses) and _has_room(
            network, len(node_addresses)
        ):
            return network
    return None


def _has_room(network: ipaddress.IPv4Network | ipaddress.IPv6Network, address_count: int) -> bool:
    return network.num_addresses - 2 > address_count
