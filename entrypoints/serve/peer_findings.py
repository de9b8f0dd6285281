"""What was seen of the other hosts and of this host's network → findings. It reads /sys through a host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from entrypoints.checks.findings import make_finding, make_notice
from entrypoints.core.records import Finding, Notice
from entrypoints.host.host import Host
from entrypoints.serve.peers import ObservedPeer, PeerCheck

CLOCKS_AT_MOST = 2.0
"""Seconds between two clocks: the date of an answer has whole seconds."""
_RDMA = "/sys/class/infiniband"
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_ONLY_PREFIX = "fe80:0000:0000:0000:0000:0000:0000:0000"


class Judged(NamedTuple):
    """A notice and whether it holds: true if nothing is wrong, None if that is not known."""

    notice: Notice
    good: bool | None


def judge_peers(
    check: PeerCheck,
    peers: tuple[ObservedPeer, ...],
    busy: Mapping[int, str],
    interface_variables: Mapping[str, str],
    links: Mapping[str, bool],
    host: Host,
) -> Iterator[Judged]:
    """Judge everything.

    `busy` are ports of this host in use, `interface_variables` name interfaces, `links` the interfaces and
    whether each is up.
    """
    yield from _own_ports(check, busy)
    yield from _own_interfaces(interface_variables, links)
    yield from judge_rdma_ports(host)
    for peer in peers:
        yield from _judge_peer(peer, check, interface_variables)


def as_findings(judged: Iterator[Judged], finding_texts: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Return the findings, with the profile's texts."""
    return tuple(make_finding(finding_texts, judgement.notice, good=judgement.good) for judgement in judged)


def _own_ports(check: PeerCheck, busy: Mapping[int, str]) -> Iterator[Judged]:
    for port in (check.status_port, *check.ports):
        reason = busy.get(port, "")
        yield Judged(make_notice("NET-005", f"port {port}: {reason or 'free'}", "free", port=str(port)), not reason)


def _own_interfaces(interface_variables: Mapping[str, str], links: Mapping[str, bool]) -> Iterator[Judged]:
    """Judge each interface that a variable names: NCCL's may be several, with ^ or = before them."""
    for variable, text in sorted(interface_variables.items()):
        if text.startswith("^"):
            continue
        for name in text.lstrip("=").split(","):
            state = ("up" if links[name] else "down") if name in links else "not there"
            link_notice = make_notice(
                "NET-006", f"{variable}={text}: {name} is {state}", "an interface that is up", variable=variable
            )
            yield Judged(link_notice, links.get(name, False))


def judge_rdma_ports(host: Host) -> Iterator[Judged]:
    """Judge each port of an RDMA device: active, and with an address (GID)."""
    for path in sorted(host.glob(f"{_RDMA}/*/ports/*")):
        device, port = path.split("/")[4], path.rpartition("/")[2]
        state = (host.text(f"{path}/state") or "").strip()
        gids = [(host.text(gid) or "").strip() for gid in sorted(host.glob(f"{path}/gids/*"))]
        valid = [gid for gid in gids if gid not in ("", _NO_GID, _ONLY_PREFIX)]
        port_state = f"{device} port {port}: state {state or 'unknown'}, {len(valid)} addresses (GID)"
        has_state = bool(state)
        judged = make_notice("NET-010", port_state, "state 4: ACTIVE, and an address", device=device)
        yield Judged(judged, (state.endswith("ACTIVE") and bool(valid)) if has_state else None)


def _judge_peer(peer: ObservedPeer, check: PeerCheck, interface_variables: Mapping[str, str]) -> Iterator[Judged]:
    """Judge one peer; what depends on an answer is left out without one."""
    name = peer.name
    answer = ", ".join(peer.addresses) or peer.failure
    yield Judged(make_notice("NET-001", f"{name}: {answer}", "an address", peer=name), bool(peer.addresses))
    if not peer.addresses:
        return
    answer = peer.failure or "answers"
    expected = "an answer of drydock's check or server"
    peer_notice = make_notice("NET-002", f"{name} port {check.status_port}: {answer}", expected, peer=name)
    yield Judged(peer_notice, not peer.failure)
    for port, reason in peer.ports.items():
        peer_notice = make_notice(
            "NET-004", f"{name} port {port}: {reason or 'reached'}", "reached", peer=name, port=str(port)
        )
        yield Judged(peer_notice, not reason)
    yield from _judge_route(peer, interface_variables)
    if peer.failure:
        return
    back = ("reached this host" if peer.heard else "did not reach this host") if peer.checks else "does not check now"
    good = peer.heard if peer.checks else None
    yield Judged(make_notice("NET-003", f"{name} {back}", "reached this host", peer=name), good)
    clock = None if peer.clock is None else abs(peer.clock) <= CLOCKS_AT_MOST
    ahead = "tells no time" if peer.clock is None else f"is at least {abs(peer.clock):.1f} s apart"
    yield Judged(make_notice("NET-009", f"{name}'s clock {ahead}", f"at most {CLOCKS_AT_MOST:g} s", peer=name), clock)


def _judge_route(peer: ObservedPeer, interface_variables: Mapping[str, str]) -> Iterator[Judged]:
    route, name = peer.route, peer.name
    for variable, text in sorted(interface_variables.items()):
        if not text.startswith("^"):
            route_text = f"{route.interface or 'no interface'} leads to {name}, {variable}={text}"
            good = route.interface in text.lstrip("=").split(",") if route.interface else None
            yield Judged(make_notice("NET-007", route_text, f"{variable} names it", peer=name, variable=variable), good)
    yield judge_mtu(peer)


def judge_mtu(peer: ObservedPeer) -> Judged:
    """Judge whether packets of the interface's size arrive; if no host tells, whether the other end's size is equal."""
    route, name = peer.route, peer.name
    size_text = f"{route.interface} has an MTU of {route.mtu}" if route.mtu else "the interface's MTU is not known"
    if route.arrives is not None:
        largest = f"; {route.path_mtu} bytes are the most" if route.path_mtu else ""
        size_text += f", and such packets {'arrive' if route.arrives else f'do not arrive{largest}'} at {name}"
        return Judged(make_notice("NET-008", size_text, "packets of that size arrive whole", peer=name), route.arrives)
    peer_mtu = peer.mtus.get(route.interface)
    size_text += f", {route.interface} of {name} {peer_mtu}" if peer_mtu else f"; that of {name} is not known"
    good = None if not (peer_mtu and route.mtu) else peer_mtu == route.mtu
    return Judged(make_notice("NET-008", size_text, "the same MTU on both ends", peer=name), good)
