"""A plan → what is asked of each machine, as words for its Python (node.py). Pure, except that it reads node.py."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from drydock.core.files import format_compact_json
from drydock.model.variant import Variant
from drydock.run.access import API_KEY
from drydock.run.docker_command import docker_argv
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.render.parts import Placed, group_by_node, list_node_addresses, make_placed_ranks
from drydock.topology.topology_arguments import is_ip

PEERS = "--peers"
"""With it, the image's check opens and tries the ports of the plan, and compares clocks, interfaces and MTUs."""
PROGRAM = Path(__file__).with_name("node.py")
WAIT = 30
"""Seconds that a machine waits for the others to begin their check."""
WAIT_TO_MEASURE = 120
"""The same for an all-reduce, which each machine begins after its check."""


class NodeRequest(NamedTuple):
    """What one machine is asked."""

    node: str
    address: str
    images: tuple[str, ...]
    model: str
    """A folder; empty for a model of the hub."""
    ports: tuple[int, ...]
    """Those that the image's check does not try: the router's, and all of a machine without peers."""
    chips: tuple[int, ...]
    others: tuple[str, ...]
    """Recorded addresses of chips of other machines."""
    container: tuple[str, ...]
    """What runs the image's verbs: `docker run` up to the image's name. Empty for a machine without ranks."""
    groups: tuple[str, ...]
    check: tuple[str, ...]
    """The image's check, with the other machines as peers."""
    ranks: tuple[Placed, ...]
    fabric: tuple[str, ...] = ()
    """The image's all-reduce with the other machines; empty if none is measured."""

    @property
    def words(self) -> tuple[str, ...]:
        """The arguments of the machine's Python."""
        return ("-I", "-c", PROGRAM.read_text(), self.question)

    @property
    def question(self) -> str:
        """The only argument of node.py."""
        left_out = ("ranks", "node")
        fields = {name: value for name, value in self._asdict().items() if name not in left_out}
        return base64.b64encode(format_compact_json(fields).encode()).decode()


def make_node_requests(
    plan: TopologyPlan, variant: Variant, chips: Mapping[str, Mapping[int, str]]
) -> tuple[NodeRequest, ...]:
    """Return what each node is asked, sorted by node. `chips`: node → device → recorded address. Raises InputError."""
    nodes = group_by_node(make_placed_ranks(plan, variant))
    return tuple(_make_node_request(plan, node, nodes.get(node, ()), chips) for node in list_node_addresses(plan))


def _make_node_request(
    plan: TopologyPlan, node: str, ranks: Sequence[Placed], chips: Mapping[str, Mapping[int, str]]
) -> NodeRequest:
    router = plan.router if plan.router and plan.router.node == node else None
    images = {*(item.container.image for item in ranks), *([router.image] if router else [])}
    first = ranks[0] if ranks else None
    check = _make_check_words(plan, node, first) if first else ()
    rank_ports = {port for item in ranks for port in item.rank.ports.values()} if PEERS not in check else set()
    ports = rank_ports | ({router.port} if router else set())
    address = list_node_addresses(plan)[node]
    return NodeRequest(
        node=node,
        address=address if is_ip(address) else "",
        images=tuple(sorted(images)),
        model=plan.model if plan.model.startswith("/") else "",
        ports=tuple(sorted(ports)),
        chips=tuple(sorted(chips.get(node, {}))),
        others=tuple(
            next(iter(chip_addresses.values()))
            for peer, chip_addresses in sorted(chips.items())
            if peer != node and chip_addresses
        ),
        container=_make_container_words(first) if first else (),
        groups=tuple(name for name in first.container.groups if not name.isdigit()) if first else (),
        check=check,
        ranks=tuple(ranks),
    )


def _make_container_words(item: Placed) -> tuple[str, ...]:
    """Return how the image is run on the machine: as its server, with the machine's network."""
    numbers = tuple(name for name in item.container.groups if name.isdigit())
    overrides = {"network": "host", "groups": numbers, "name": f"check-{item.name}", "env": item.env, "visible": {}}
    options = item.container.model_copy(update={**overrides, "downloads": ()})
    docker, run, *words = docker_argv(options, command=("",))[:-1]
    key = words.index(API_KEY)  # only servers need it
    pull = () if "--pull" in words else ("--pull", "never")
    return (docker, run, *pull, *words[: key - 1], *words[key + 1 :])


def _make_check_words(plan: TopologyPlan, node: str, item: Placed) -> tuple[str, ...]:
    """Return the image's check. Every machine of the plan with ranks opens and tries the same ports."""
    ranks = [rank for replica in plan.replicas for rank in replica.ranks]
    peers = {rank.address for rank in ranks if rank.node != node}
    ports = {port for rank in ranks for purpose, port in rank.ports.items() if purpose != "status"}
    return format_check_words(peers, ports, item.rank.ports["status"])


def add_all_reduce(requests: Sequence[NodeRequest]) -> tuple[NodeRequest, ...]:
    """Return the questions with an all-reduce over all machines of one kind: the same cards, as many on each.

    A machine of its kind alone measures over its own devices, if it has several.
    """
    kinds: dict[tuple[str, int], list[NodeRequest]] = {}
    for request in requests:
        if request.container:
            first = request.ranks[0].rank
            kinds.setdefault((first.architecture, len(first.devices)), []).append(request)
    words = {
        request.node: _make_fabric_words(alike, number)
        for alike in kinds.values()
        for number, request in enumerate(alike)
    }
    return tuple(request._replace(fabric=words.get(request.node, ())) for request in requests)


def _make_fabric_words(alike: Sequence[NodeRequest], number: int) -> tuple[str, ...]:
    """Return the all-reduce of one machine. The machines meet at a port of the plan, which firewalls let through."""
    first = alike[0].ranks[0].rank
    if len(alike) == 1:
        return ("fabric", "--json") if len(first.devices) > 1 else ()
    peers = ",".join(request.address or request.ranks[0].rank.address for request in alike)
    words = ("fabric", "--json", "--peers", peers, "--node-rank", str(number))
    return (*words, "--master-port", str(first.ports["api"]), "--peers-wait", str(WAIT_TO_MEASURE))


def format_check_words(peers: Collection[str], ports: Collection[int], status: int) -> tuple[str, ...]:
    """Return the image's check with the addresses of its peers, and the ports that each opens and tries."""
    if not peers:
        return ("check", "--json")
    numbers = ",".join(map(str, sorted({*ports} - {status})))
    words = ("check", "--json", PEERS, ",".join(sorted(peers)), "--peer-ports", numbers)
    return (*words, "--peers-wait", str(WAIT), "--status-port", str(status))
