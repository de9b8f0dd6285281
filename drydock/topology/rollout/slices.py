"""Plans that run at the same time: names, ports, and which one clients use. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from drydock.config.validation import failure
from drydock.core.errors import InputError
from drydock.topology.planned import Rank, Replica, RouterPlan, TopologyPlan
from drydock.topology.ports import API, HIGHEST, UsedPort, collisions
from drydock.topology.render.parts import addresses, container_name

PORT, METRICS = "--port", "--prometheus-port"
"""Ports on which a router listens. The second is always 29000 if it is not given, and a router whose port is taken ends
(vllm-router 0.1.17)."""
_OWN = re.compile(r"-s\d+$")


def server_name(replica: Replica) -> str:
    """Return the name of a server, which is its first rank's."""
    return container_name(replica, replica.ranks[0])


def ranks_of(plan: TopologyPlan) -> Iterator[tuple[Replica, Rank]]:
    """Yield every rank with its replica."""
    yield from ((replica, rank) for replica in plan.replicas for rank in replica.ranks)


def numbered(plan: TopologyPlan, number: int) -> TopologyPlan:
    """Return a plan whose containers have names of their own: the first keeps those of the file, others get -s2 …."""
    suffix = f"-s{number}" if number > 1 else ""
    replicas = tuple(
        replica.model_copy(update={"group": _OWN.sub("", replica.group) + suffix}) for replica in plan.replicas
    )
    return plan.model_copy(update={"replicas": replicas})


def on_trial(plan: TopologyPlan, number: int, running: TopologyPlan) -> TopologyPlan:
    """Return a plan whose router has a name and a port of its own. Raises InputError without a free port."""
    router = plan.router
    if router is None:
        return plan
    taken = {port for each in (plan, running) for _, rank in ranks_of(each) for port in rank.ports.values()}
    taken |= {each.router.port for each in (plan, running) if each.router}
    port = max(taken) + 1
    if port + 1 > HIGHEST:
        raise InputError("router: no port is free above those of the plan", hint="choose a lower network.port_base")
    argv = (*_listening(router, port), METRICS, str(port + 1))
    moved = {"name": f"{router.name}-s{number}", "port": port, "argv": argv}
    return plan.model_copy(update={"router": router.model_copy(update=moved)})


def _listening(router: RouterPlan, port: int) -> tuple[str, ...]:
    argv = [*router.argv]
    place = argv.index(PORT) + 1 if PORT in argv[:-1] else 0
    if not place:
        raise InputError(f"router.argv: found no {PORT}, expected the router's port")
    argv[place] = str(port)
    return tuple(argv)


def port_base(running: TopologyPlan, base: int) -> int:
    """Return where a plan next to a running one begins with its ports: at `base`, or above the running ones.

    Two bases alternate, so that vLLM's compile cache, which has ports in its key, is used again every second time.
    """
    used = [port for _, rank in ranks_of(running) for port in rank.ports.values()]
    highest, length = max(used), max(used) - min(used) + 1
    return highest + 1 if any(base <= port < base + length for port in used) else base


def check_beside(running: TopologyPlan, new: TopologyPlan) -> None:
    """Raise InputError if a plan cannot run next to another one, on the same nodes and behind the same address."""
    problems = []
    if running.router is None or new.router is None:
        problems.append("router: found none, expected one: clients are switched from one plan to the other at a router")
    elif (running.router.node, running.router.port) != (new.router.node, new.router.port):
        old, other = (f"{each.node}:{each.port}" for each in (running.router, new.router))
        problems.append(f"router: found {other}, expected {old}, where clients connect now")
    before, after = addresses(running), addresses(new)
    changed = sorted(node for node in after if before.get(node) != after[node])
    problems += [f"node {node}: found {after[node]}, expected {before.get(node, 'no such node')}" for node in changed]
    if problems:
        raise InputError(*problems, hint="`topology down` and `topology up` change nodes and the router's place")
    held = [
        UsedPort(rank.node, port, f"{purpose} of {container_name(replica, rank)}")
        for plan in (running, new)
        for replica, rank in ranks_of(plan)
        for purpose, port in rank.ports.items()
    ]
    if found := collisions(held):
        raise failure(found)


def without(plan: TopologyPlan, wanted: Sequence[TopologyPlan]) -> TopologyPlan | None:
    """Return what of a plan no wanted plan has; None if nothing is left."""
    kept = {container_name(*each) for other in wanted for each in ranks_of(other)}
    routers = {other.router.name for other in wanted if other.router}
    replicas = tuple(
        replica for replica in plan.replicas if not any(container_name(replica, rank) in kept for rank in replica.ranks)
    )
    router = plan.router if plan.router and plan.router.name not in routers else None
    if not replicas and router is None:
        return None
    return plan.model_copy(update={"replicas": replicas, "router": router})


def servers(plan: TopologyPlan, role: str) -> tuple[Replica, ...]:
    """Return the servers of a role that answer requests."""
    return tuple(replica for replica in plan.replicas if replica.role == role and API in replica.ranks[0].ports)
