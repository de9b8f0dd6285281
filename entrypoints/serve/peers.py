"""`check --peers`: whether this host and others reach each other, before a model is loaded. IO.

Each host runs it at about the same time. While it runs, it listens on its ports, so that the others find them open. It
says on their status ports who it is (`POST /group?check=RUN`): a host that this one reached, and that was not heard
here, is not able to reach this one. Against a host that serves already, only one direction is known.

Everything is bounded: an attempt by TRY seconds, all of them by the wait, the peers asked at the same time by THREADS.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.parse import parse_untrusted_json
from entrypoints.request.flags import MOST_HOSTS
from entrypoints.request.network import parse_port
from entrypoints.serve.client import Endpoint, Unreachable, send_request
from entrypoints.serve.network_path import Route, list_mtus, read_route
from entrypoints.serve.ports import bound_at, listen_on_status_port
from entrypoints.serve.rank_coordination import new_run
from entrypoints.serve.status import GROUP, Response, StatusServer, format_answer_body

TRY = 2.0
"""Seconds for one attempt to connect."""
AGAIN = 0.3
"""Seconds between two attempts."""
THREADS = 64
"""Peers that are asked at the same time."""
ANSWER_AT_MOST = 1 << 20
"""Bytes of a peer's answer."""
_RUN_AT_MOST = 64
_NAME_AT_MOST = 15
"""Characters of an interface's name: IFNAMSIZ of linux/if.h, with a zero at the end."""
_MTU_AT_MOST = 1 << 20
"""Above any MTU: Linux lets the loopback interface have 64 KiB."""


class PeerCheck(NamedTuple):
    """What to check."""

    peers: tuple[str, ...]
    status_port: int = 8001
    ports: tuple[int, ...] = (8000, 29501)
    """Ports that every host must be reached on: vLLM's own server, and where its ranks meet."""
    wait: float = 20.0
    """Seconds for the other hosts to begin."""
    bind: str = ""
    """The address to listen on; empty for all."""


class ObservedPeer(NamedTuple):
    """What was found out about a peer."""

    name: str
    addresses: tuple[str, ...] = ()
    failure: str = ""
    """Why its name has no address, or its status port no answer."""
    checks: bool = False
    """Whether it checks too, so that it must be heard here."""
    itself: bool = False
    """Whether it is this host."""
    heard: bool = False
    ports: Mapping[int, str] = {}
    """Port → why it cannot be reached; empty if it can."""
    clock: float | None = None
    """Seconds by which its clock is ahead."""
    route: Route = Route()
    mtus: Mapping[str, int] = {}
    """Its network interfaces."""


def parse_peers(peers: tuple[str, ...], ports: str, status_port: int, wait: float) -> PeerCheck:
    """Parse the options of the check. Raises USAGE."""
    parse_port(str(status_port), "--status-port", least=1)  # any free port is not one that the others know
    numbers = (parse_port(text, "--peer-ports", least=1) for text in ports.split(",")) if ports else PeerCheck(()).ports
    return PeerCheck(peers, status_port, tuple(port for port in dict.fromkeys(numbers) if port != status_port), wait)


def look_at_peers(check: PeerCheck) -> tuple[tuple[ObservedPeer, ...], Mapping[int, str]]:
    """Look at every peer; return what was seen, and the ports of this host that are in use, with the reason.

    Raises USAGE if names that should be other hosts' lead to this one.
    """
    meeting = Meeting()
    with ExitStack() as stack:
        busy = _open_ports(check, meeting, stack)
        peers = _meet_peers(check, meeting)
    own_names = [name for name, peer in peers.items() if peer.itself]
    if len(own_names) > 1 or len(own_names) == len(peers):
        message = (
            f"--peers: {', '.join(own_names)} lead{'s' * (len(own_names) == 1)} to this host, expected another host"
        )
        raise EntrypointError(USAGE, message, "check their addresses in the name service and /etc/hosts")
    other_peers = {name: peer for name, peer in peers.items() if not peer.itself}
    _in_parallel([partial(_finish_peer, name, other_peers, meeting, check) for name in other_peers])
    return tuple(other_peers.values()), busy


class Meeting:
    """Who this host is, and whom it heard."""

    def __init__(self) -> None:
        self.run = new_run()
        self.heard: set[str] = set()
        self.left: set[str] = set()
        """Those that need nothing more of this host."""
        self.runs: dict[str, str] = {}
        """Peer → its run."""

    def take(self, query: str, address: str) -> Response:
        """Answer another host's check."""
        from urllib.parse import parse_qs

        del address
        try:
            words = parse_qs(query, max_num_fields=2)
        except ValueError:  # more fields: the report of another host's server
            words = {}
        run = words.get("check", [""])[0]
        if not run.isalnum() or len(run) > _RUN_AT_MOST or len(self.heard) > MOST_HOSTS:
            return Response(400, format_answer_body({"error": f"{GROUP}: expected check=RUN"}))
        self.heard.add(run)
        if "done" in words:
            self.left.add(run)
        return Response(200, format_answer_body({"check": True, "run": self.run, "interfaces": list_mtus()}))

    def answer(self, path: str) -> Response:
        """Answer a request that is not of another check."""
        is_group = path == GROUP
        reply = {"check": True, "interfaces": list_mtus()} if is_group else {"error": "a check runs here, no server"}
        return Response(200 if is_group else 503, format_answer_body(reply))


def _open_ports(check: PeerCheck, meeting: Meeting, stack: ExitStack) -> dict[int, str]:
    """Listen on all ports of this host; return those that are in use, unless a server of drydock uses them."""
    busy: dict[int, str] = {}
    for port in (check.status_port, *check.ports):
        try:
            listener = bound_at(check.bind, port) if check.bind else listen_on_status_port(port)
        except (OSError, EntrypointError) as error:
            busy[port] = str(getattr(error, "strerror", "") or error).partition("\n")[0]
            continue
        stack.callback(listener.close)
        if port == check.status_port:
            _serve_until_closed(StatusServer(listener, meeting.answer, take=meeting.take), stack)
        else:
            threading.Thread(target=_accept_connections, args=(listener,), daemon=True).start()
    endpoint = Endpoint(check.bind or "127.0.0.1", check.status_port)
    serves = check.status_port in busy and _ask_status_port(endpoint, GROUP, "GET")[0]
    return {} if serves else busy


def _serve_until_closed(server: StatusServer, stack: ExitStack) -> None:
    """Answer on the status port until the stack ends; those who asked before that get their answers."""
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(server.stop)


def _accept_connections(listener: socket.socket) -> None:
    """Accept and close connections until the listener is closed."""
    while True:
        try:
            listener.accept()[0].close()
        except OSError:
            return


def _meet_peers(check: PeerCheck, meeting: Meeting) -> dict[str, ObservedPeer]:
    """Ask every peer until each was reached and heard, or the wait is over."""
    peers = {name: ObservedPeer(name, failure="not tried") for name in dict.fromkeys(check.peers)}
    due = time.monotonic() + check.wait
    while True:
        _in_parallel([partial(_visit_peer, name, peers, check, meeting) for name in peers])
        if time.monotonic() >= due or all(_is_settled(peer, meeting) for peer in peers.values()):
            return peers
        time.sleep(AGAIN)


def _is_reached(peer: ObservedPeer) -> bool:
    """Return whether a peer answered, and all its ports are open to this host."""
    return not peer.failure and not any(peer.ports.values())


def _is_settled(peer: ObservedPeer, meeting: Meeting) -> bool:
    """Return whether nothing more is to be found out about a peer."""
    has_left = not peer.checks or meeting.runs.get(peer.name) in meeting.left
    return peer.itself or (_is_reached(peer) and has_left)


def _visit_peer(name: str, peers: dict[str, ObservedPeer], check: PeerCheck, meeting: Meeting) -> None:
    """Try once to reach a peer; tell it when this host needs nothing more of it.

    A peer that knows this may end, so it is told only after its answer came, and is not looked at again.
    """
    if _is_settled(peers[name], meeting):
        return
    if not _is_reached(peers[name]):
        peers[name] = _try_peer(name, check, meeting)
    if _is_reached(peers[name]) and peers[name].checks and not peers[name].itself:
        _greet_peer(name, Endpoint(peers[name].addresses[0], check.status_port), meeting, "&done=1")


def _try_peer(name: str, check: PeerCheck, meeting: Meeting) -> ObservedPeer:
    """Try once to reach a peer, on all its ports."""
    try:
        address_infos = socket.getaddrinfo(name, check.status_port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return ObservedPeer(name, failure=f"no address: {getattr(error, 'strerror', None) or error}")
    addresses = tuple(dict.fromkeys(str(info[4][0]) for info in address_infos))
    ports = {port: _try_port(addresses[0], port, check.bind) for port in check.ports}
    endpoint = Endpoint(addresses[0], check.status_port)
    fields, clock, failure = _greet_peer(name, endpoint, meeting)
    checks = bool(fields)
    if not checks:
        answer = _ask_status_port(endpoint, GROUP, "GET")
        if not answer[0].get("check"):  # a check that was too busy to answer the first question is asked again
            fields, clock, failure = answer
    itself = checks and meeting.runs[name] == meeting.run
    mtus = _read_mtus(fields.get("interfaces"))
    return ObservedPeer(name, addresses, failure, checks, itself=itself, ports=ports, clock=clock, mtus=mtus)


def _greet_peer(
    name: str, endpoint: Endpoint, meeting: Meeting, suffix: str = ""
) -> tuple[dict[str, Any], float | None, str]:
    """Say to a peer who this host is, and note who the peer is; return what `_ask_status_port` does."""
    fields, clock, failure = _ask_status_port(endpoint, f"{GROUP}?check={meeting.run}{suffix}", "POST")
    if fields:
        meeting.runs[name] = str(fields.get("run", ""))
    return fields, clock, failure


def _read_mtus(peer_interfaces: Any) -> dict[str, int]:
    """Return the interfaces that a peer told, without what is none."""
    pairs = peer_interfaces.items() if isinstance(peer_interfaces, dict) else ()
    return {
        name: mtu for name, mtu in pairs if len(name) <= _NAME_AT_MOST and type(mtu) is int and 0 < mtu <= _MTU_AT_MOST
    }


def _try_port(address: str, port: int, bind: str) -> str:
    """Return why a port cannot be connected to; empty if it can."""
    try:
        source = (bind, 0) if bind else None
        socket.create_connection((address, port), TRY, source).close()
    except OSError as error:
        return str(error.strerror or error)
    return ""


def _ask_status_port(endpoint: Endpoint, path: str, method: str) -> tuple[dict[str, Any], float | None, str]:
    """Ask a status port; return the fields of its answer, by how much its clock is ahead, and why there is none."""
    before = time.time()
    try:
        reply = send_request(endpoint, path, timeout=TRY, method=method, most=ANSWER_AT_MOST)
        value = parse_untrusted_json(reply.body)
    except (Unreachable, ValueError) as error:
        return {}, None, str(error).rpartition(": ")[2]
    fields = value if isinstance(value, dict) else {}
    if reply.status != 200 or "interfaces" not in fields:  # noqa: PLR2004
        return {}, None, f"answers {reply.status}, and not as drydock does"
    return fields, _compute_clock_lead(reply.date, before, time.time()), ""


def _compute_clock_lead(date: str, before: float, after: float) -> float | None:
    """Return by how many seconds the clock of an answer is ahead at least: its date has whole seconds."""
    from calendar import timegm

    try:
        peer_time = timegm(time.strptime(date, "%a, %d %b %Y %H:%M:%S GMT"))
    except ValueError:
        return None
    if peer_time > after:
        return peer_time - after
    return min(0.0, peer_time + 1 - before)


def _finish_peer(name: str, peers: dict[str, ObservedPeer], meeting: Meeting, check: PeerCheck) -> None:
    """Add what is found out once: the route, and whether the peer was heard."""
    addresses = peers[name].addresses
    if addresses:
        route = read_route(addresses[0], check.status_port)
        peers[name] = peers[name]._replace(route=route, heard=meeting.runs.get(name) in meeting.heard)


def _in_parallel(jobs: list[Callable[[], None]]) -> None:
    """Run jobs in at most THREADS threads, each of which takes the next job until none is left."""
    waiting = iter(jobs)

    def work() -> None:
        for job in waiting:
            job()

    threads = [threading.Thread(target=work, daemon=True) for _ in jobs[:THREADS]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
