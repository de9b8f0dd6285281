"""What was seen of the other hosts and of this host's network → findings. It reads /sys through a host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from entrypoints.checks.findings import notice, tell
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
    seen: tuple[ObservedPeer, ...],
    busy: Mapping[int, str],
    named: Mapping[str, str],
    links: Mapping[str, bool],
    host: Host,
) -> Iterator[Judged]:
    """Judge everything.

    `busy` are ports of this host in use, `named` the variables that name an interface, `links` the interfaces and
    whether each is up.
    """
    yield from _own_ports(check, busy)
    yield from _own_interfaces(named, links)
    yield from rdma(host)
    for each in seen:
        yield from _peer(each, check, named)


def as_findings(judged: Iterator[Judged], known: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Return the findings, with the profile's texts."""
    return tuple(tell(known, each.notice, good=each.good) for each in judged)


def _own_ports(check: PeerCheck, busy: Mapping[int, str]) -> Iterator[Judged]:
    for port in (check.status_port, *check.ports):
        found = busy.get(port, "")
        yield Judged(notice("NET-005", f"port {port}: {found or 'free'}", "free", port=str(port)), not found)


def _own_interfaces(named: Mapping[str, str], links: Mapping[str, bool]) -> Iterator[Judged]:
    """Judge each interface that a variable names: NCCL's may be several, with ^ or = before them."""
    for variable, text in sorted(named.items()):
        if text.startswith("^"):
            continue
        for name in text.lstrip("=").split(","):
            state = ("up" if links[name] else "down") if name in links else "not there"
            told = notice(
                "NET-006", f"{variable}={text}: {name} is {state}", "an interface that is up", variable=variable
            )
            yield Judged(told, links.get(name, False))


def rdma(host: Host) -> Iterator[Judged]:
    """Judge each port of an RDMA device: active, and with an address (GID)."""
    for path in sorted(host.glob(f"{_RDMA}/*/ports/*")):
        device, port = path.split("/")[4], path.rpartition("/")[2]
        state = (host.text(f"{path}/state") or "").strip()
        gids = [(host.text(gid) or "").strip() for gid in sorted(host.glob(f"{path}/gids/*"))]
        valid = [gid for gid in gids if gid not in ("", _NO_GID, _ONLY_PREFIX)]
        found = f"{device} port {port}: state {state or 'unknown'}, {len(valid)} addresses (GID)"
        known = bool(state)
        judged = notice("NET-010", found, "state 4: ACTIVE, and an address", device=device)
        yield Judged(judged, (state.endswith("ACTIVE") and bool(valid)) if known else None)


def _peer(seen: ObservedPeer, check: PeerCheck, named: Mapping[str, str]) -> Iterator[Judged]:
    """Judge one peer; what depends on an answer is left out without one."""
    name = seen.name
    found = ", ".join(seen.addresses) or seen.failure
    yield Judged(notice("NET-001", f"{name}: {found}", "an address", peer=name), bool(seen.addresses))
    if not seen.addresses:
        return
    found = seen.failure or "answers"
    expected = "an answer of drydock's check or server"
    told = notice("NET-002", f"{name} port {check.status_port}: {found}", expected, peer=name)
    yield Judged(told, not seen.failure)
    for port, reason in seen.ports.items():
        told = notice("NET-004", f"{name} port {port}: {reason or 'reached'}", "reached", peer=name, port=str(port))
        yield Judged(told, not reason)
    yield from _route(seen, named)
    if seen.failure:
        return
    back = ("reached this host" if seen.heard else "did not reach this host") if seen.checks else "does not check now"
    good = seen.heard if seen.checks else None
    yield Judged(notice("NET-003", f"{name} {back}", "reached this host", peer=name), good)
    clock = None if seen.clock is None else abs(seen.clock) <= CLOCKS_AT_MOST
    ahead = "tells no time" if seen.clock is None else f"is at least {abs(seen.clock):.1f} s apart"
    yield Judged(notice("NET-009", f"{name}'s clock {ahead}", f"at most {CLOCKS_AT_MOST:g} s", peer=name), clock)


def _route(seen: ObservedPeer, named: Mapping[str, str]) -> Iterator[Judged]:
    route, name = seen.route, seen.name
    for variable, text in sorted(named.items()):
        if not text.startswith("^"):
            found = f"{route.interface or 'no interface'} leads to {name}, {variable}={text}"
            good = route.interface in text.lstrip("=").split(",") if route.interface else None
            yield Judged(notice("NET-007", found, f"{variable} names it", peer=name, variable=variable), good)
    yield mtu(seen)


def mtu(seen: ObservedPeer) -> Judged:
    """Judge whether packets of the interface's size arrive; if no host tells, whether the other end's size is equal."""
    route, name = seen.route, seen.name
    found = f"{route.interface} has an MTU of {route.mtu}" if route.mtu else "the interface's MTU is not known"
    if route.arrives is not None:
        largest = f"; {route.path_mtu} bytes are the most" if route.path_mtu else ""
        found += f", and such packets {'arrive' if route.arrives else f'do not arrive{largest}'} at {name}"
        return Judged(notice("NET-008", found, "packets of that size arrive whole", peer=name), route.arrives)
    other = seen.mtus.get(route.interface)
    found += f", {route.interface} of {name} {other}" if other else f"; that of {name} is not known"
    good = None if not (other and route.mtu) else other == route.mtu
    return Judged(notice("NET-008", found, "the same MTU on both ends", peer=name), good)
