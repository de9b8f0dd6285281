"""`check --peers`: two hosts as two loopback addresses, and what is judged of what was seen."""

from __future__ import annotations

import errno
import json
import socket
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.records import Finding
from entrypoints.host.host import Host
from entrypoints.request.arguments import parse_arguments
from entrypoints.serve import network_path, peers
from entrypoints.serve.network_path import Route, interface_of, list_link_states, list_mtus, read_route
from entrypoints.serve.peer_findings import as_findings, judge_mtu, judge_peers, judge_rdma_ports
from entrypoints.serve.peers import Meeting, ObservedPeer, PeerCheck, look_at_peers, parse_peers
from entrypoints.serve.ports import bound_at
from entrypoints.serve.status import Response, StatusServer
from entrypoints.verbs.dispatch import main
from tests.support.hosts import expect
from tests.support.ports import free_port
from tests.support.running_server import Run

HERE, THERE = "127.0.0.2", "127.0.0.3"
KNOWN = expect.profile_of("cpu-xeon8380-2s")["findings"]
Found = tuple[tuple[ObservedPeer, ...], Mapping[int, str]]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than TRY for an answer of its own."""
    monkeypatch.setattr(peers, "TRY", 30.0)


@pytest.fixture
def peer_check() -> PeerCheck:
    return PeerCheck((THERE,), free_port(), (free_port(),), wait=1.0, bind=HERE)


def both(first: PeerCheck, second: PeerCheck) -> list[Found]:
    """Check on two hosts at the same time."""
    observations: list[Found] = [((), {}), ((), {})]

    def run(number: int, peer_check: PeerCheck) -> None:
        observations[number] = look_at_peers(peer_check)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate((first, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return observations


def judged(peer_check: PeerCheck, observation: Found, variables: Mapping[str, str] | None = None) -> list[Finding]:
    links = {"ib0": True, "eth1": False}
    findings = list(as_findings(judge_peers(peer_check, *observation, variables or {}, links, Host()), KNOWN))
    assert [finding.id for finding in findings if finding.severity == "PASS" and not finding.text] == []
    return findings


def by_id(findings: list[Finding]) -> dict[str, str]:
    return {finding.id: finding.severity for finding in findings}


def test_hosts_that_reach_each_other_pass(peer_check: PeerCheck) -> None:
    here, there = both(peer_check._replace(wait=10.0), peer_check._replace(peers=(HERE,), bind=THERE, wait=10.0))
    for observation in (here, there):
        severities = by_id(judged(peer_check, observation))
        assert {severities[f"NET-00{number}"] for number in (1, 2, 3, 4, 5, 8, 9)} == {"PASS"}


def test_a_check_ends_as_soon_as_both_hosts_know_all(peer_check: PeerCheck) -> None:
    began = time.monotonic()
    both(peer_check._replace(wait=30.0), peer_check._replace(peers=(HERE,), bind=THERE, wait=30.0))
    assert time.monotonic() - began < 25


def test_the_host_itself_may_be_among_the_peers(peer_check: PeerCheck) -> None:
    observed_peers, busy = look_at_peers(peer_check._replace(peers=(HERE, THERE), wait=0.0))
    assert ([peer.name for peer in observed_peers], busy) == ([THERE], {})


def test_a_peer_is_told_to_end_only_after_its_answer_came(
    peer_check: PeerCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy peer answers late, and ends as soon as this host needs nothing more of it."""
    monkeypatch.setattr(peers, "TRY", 0.5)
    queries: list[str] = []
    meeting = Meeting()

    def take(query: str, address: str) -> Response:
        queries.append(query)
        if len(queries) == 1:
            time.sleep(1.0)
        if "done" in query:
            server.stop()
        return meeting.take(query, address)

    server = StatusServer(bound_at(THERE, peer_check.status_port), meeting.answer, take=take)
    threading.Thread(target=server.run, daemon=True).start()
    with bound_at(THERE, peer_check.ports[0]):
        peer = look_at_peers(peer_check._replace(wait=5.0))[0][0]

    assert [number for number, query in enumerate(queries) if "done" in query] == [len(queries) - 1]
    assert len(queries) > 1
    assert (peer.checks, peer.failure, dict(peer.ports)) == (True, "", {peer_check.ports[0]: ""})


@pytest.mark.parametrize(
    ("bind", "names", "message"),
    [
        (HERE, (HERE,), f"--peers: {HERE} leads to this host"),
        ("", (HERE, "127.0.0.1", "no-such-host.invalid"), f"--peers: {HERE}, 127.0.0.1 lead to this host"),
    ],
)
def test_names_that_lead_to_this_host_are_no_other_hosts(
    peer_check: PeerCheck, bind: str, names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(EntrypointError, match=f"{message}, expected another host") as raised:
        look_at_peers(peer_check._replace(peers=names, bind=bind, wait=0.0))
    assert raised.value.code == USAGE


def test_a_host_where_nothing_listens_fails_in_time(peer_check: PeerCheck) -> None:
    began = time.monotonic()
    observation = look_at_peers(peer_check)
    severities = by_id(judged(peer_check, observation))

    assert time.monotonic() - began < 10
    assert (severities["NET-001"], severities["NET-002"], severities["NET-004"]) == ("PASS", "FAIL", "FAIL")
    assert "NET-003" not in severities
    assert "Connection refused" in str(judged(peer_check, observation))


def test_a_name_without_an_address_is_named(peer_check: PeerCheck) -> None:
    findings = judged(peer_check, look_at_peers(peer_check._replace(peers=("no-such-host.invalid",), wait=0.0)))
    failed = [finding for finding in findings if finding.severity == "FAIL"]

    assert [finding.id for finding in failed] == ["NET-001"]
    assert "no-such-host.invalid" in failed[0].text


def test_a_port_in_use_is_a_finding(peer_check: PeerCheck) -> None:
    with bound_at(HERE, peer_check.ports[0]):
        findings = judged(peer_check, look_at_peers(peer_check._replace(wait=0.0)))

    assert [finding.found for finding in findings if finding.id == "NET-005" and finding.severity == "FAIL"] == [
        f"port {peer_check.ports[0]}: Address already in use"
    ]


def test_a_host_that_is_reached_but_does_not_reach_back_fails(peer_check: PeerCheck) -> None:
    """The other host checks, but its own requests never arrive."""
    meeting = Meeting()
    listener = bound_at(THERE, peer_check.status_port)
    server = StatusServer(listener, meeting.answer, take=meeting.take)
    threading.Thread(target=server.run, daemon=True).start()
    severities = by_id(judged(peer_check, look_at_peers(peer_check)))

    assert (severities["NET-002"], severities["NET-003"]) == ("PASS", "FAIL")


def test_of_a_host_that_serves_already_one_direction_is_unknown(peer_check: PeerCheck, run: Run) -> None:
    server = run(stub={})
    server.until_ready()
    observed_peers = look_at_peers(
        peer_check._replace(peers=("127.0.0.1",), status_port=server.status_port(), ports=(server.start.port,))
    )[0]

    assert (observed_peers[0].checks, observed_peers[0].failure, observed_peers[0].ports[server.start.port]) == (
        False,
        "",
        "",
    )
    assert by_id(judged(peer_check, (observed_peers, {})))["NET-003"] == "UNKNOWN"


def test_another_programs_port_is_no_host_of_ours(peer_check: PeerCheck) -> None:
    listener = bound_at(THERE, peer_check.status_port)
    server = StatusServer(listener, lambda _: Response(404, "{}"))
    threading.Thread(target=server.run, daemon=True).start()

    assert look_at_peers(peer_check)[0][0].failure == "answers 404, and not as drydock does"


def test_a_server_of_several_hosts_that_reports_to_a_check_is_refused() -> None:
    answer = Meeting().take("rank=1&run=abc&phase=join&since=1.5", THERE)
    assert (answer.status, json.loads(answer.body)) == (400, {"error": "/group: expected check=RUN"})


def test_of_a_peers_interfaces_only_possible_ones_are_kept() -> None:
    mtus = {"eth0": 9000, "lo": 1 << 16, "n" * 16: 1500, "a": 0, "b": -1, "c": 1 << 21, "d": 1.5, "e": True, "f": "1"}
    assert peers._read_mtus(mtus) == {"eth0": 9000, "lo": 1 << 16}
    assert peers._read_mtus(["eth0"]) == {}


def test_peers_are_asked_by_a_limited_number_of_threads() -> None:
    running: list[int] = []
    numbers: list[int] = []

    def job(number: int) -> None:
        running.append(threading.active_count())
        time.sleep(0.001)
        numbers.append(number)

    before = threading.active_count()
    peers._in_parallel([partial(job, number) for number in range(3 * peers.THREADS)])

    assert sorted(numbers) == list(range(3 * peers.THREADS))
    assert before < max(running) <= before + peers.THREADS


def test_the_ways_to_peers_are_measured_at_the_same_time(
    peer_check: PeerCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_begun = threading.Barrier(2, timeout=5)
    monkeypatch.setattr(peers, "read_route", lambda *_: Route(str(both_begun.wait() >= 0)))
    observed_peers = look_at_peers(peer_check._replace(peers=(THERE, "127.0.0.4"), wait=0.0))[0]

    assert [peer.route.address for peer in observed_peers] == ["True", "True"]


def test_a_clock_is_compared_by_whole_seconds() -> None:
    assert peers._compute_clock_lead("Sun, 06 Nov 1994 08:49:37 GMT", 784111777.2, 784111777.4) == 0
    assert peers._compute_clock_lead("Sun, 06 Nov 1994 08:49:37 GMT", 784111767.0, 784111767.5) == 9.5
    assert peers._compute_clock_lead("Sun, 06 Nov 1994 08:49:37 GMT", 784111787.0, 784111787.5) == -9
    assert peers._compute_clock_lead("yesterday", 0, 1) is None
    for clock, severity in ((9.5, "WARN"), (-9.0, "WARN"), (1.0, "PASS"), (None, "UNKNOWN")):
        observed_peers = (ObservedPeer("n1", ("10.0.0.1",), checks=True, clock=clock),)
        assert by_id(judged(PeerCheck(("n1",)), (observed_peers, {})))["NET-009"] == severity


def test_the_named_interface_must_be_there_and_carry_the_route() -> None:
    observation = ((ObservedPeer("n1", ("10.0.0.1",), route=Route("10.0.0.9", "ib0", 9000, True)),), {})

    def outcome(names: str) -> tuple[str, str]:
        severities = by_id(judged(PeerCheck(("n1",)), observation, {"GLOO_SOCKET_IFNAME": names}))
        return severities["NET-006"], severities["NET-007"]

    assert outcome("ib0") == ("PASS", "PASS")
    assert outcome("eth1") == ("FAIL", "WARN")
    assert outcome("eth9") == ("FAIL", "WARN")
    assert outcome("=ib0") == ("PASS", "PASS")
    assert "NET-006" not in by_id(judged(PeerCheck(("n1",)), observation, {"NCCL_SOCKET_IFNAME": "^docker0"}))


@pytest.mark.parametrize(
    ("way", "other", "good"),
    [
        (Route("10.0.0.9", "eth0", 9000, True), {}, True),
        (Route("10.0.0.9", "eth0", 9000, False, 1500), {"eth0": 9000}, False),
        (Route("10.0.0.9", "eth0", 9000), {"eth0": 9000}, True),
        (Route("10.0.0.9", "eth0", 9000), {"eth0": 1500}, False),
        (Route("10.0.0.9", "eth0", 9000), {}, None),
        (Route(), {"eth0": 1500}, None),
    ],
)
def test_the_mtu_is_the_ways_or_else_that_of_both_ends(way: Route, other: Mapping[str, int], good: bool | None) -> None:
    assert judge_mtu(ObservedPeer("n1", ("10.0.0.1",), route=way, mtus=other)).good is good


def test_a_datagram_of_the_interfaces_size_arrives_on_loopback() -> None:
    route = read_route("127.0.0.1", free_port())
    assert (route.address, route.interface, route.arrives) == ("127.0.0.1", "lo", True)
    assert route.mtu == list_mtus()["lo"]


def test_a_router_that_lets_less_through_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        network_path, "_send_datagram", lambda _, size: errno.ECONNREFUSED if size < 1000 else errno.EMSGSIZE
    )
    assert read_route("127.0.0.1", 9).arrives is False
    monkeypatch.setattr(network_path, "_send_datagram", lambda _, size: errno.ECONNREFUSED if size < 1000 else 0)
    assert read_route("127.0.0.1", 9).arrives is False  # a black hole: the small one arrives, the large one does not
    monkeypatch.setattr(network_path, "_send_datagram", lambda *_: 0)
    assert read_route("127.0.0.1", 9).arrives is None  # nobody answers: nothing is known


def test_interfaces_are_found_by_their_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert list_link_states()["lo"] is True
    assert interface_of("192.0.2.1") == ""
    if socket.has_ipv6 and Path("/proc/net/if_inet6").exists() and "lo" in Path("/proc/net/if_inet6").read_text():
        assert interface_of("::1") == "lo"


@pytest.mark.parametrize(
    ("state", "gid", "good"),
    [
        ("4: ACTIVE\n", "0000:0000:0000:0000:0000:ffff:0a00:0001\n", True),
        ("1: DOWN\n", "0000:0000:0000:0000:0000:ffff:0a00:0001\n", False),
        ("4: ACTIVE\n", "0000:0000:0000:0000:0000:0000:0000:0000\n", False),
        ("4: ACTIVE\n", "fe80:0000:0000:0000:0000:0000:0000:0000\n", False),
    ],
)
def test_an_rdma_port_is_active_and_has_an_address(tmp_path: Path, state: str, gid: str, good: bool) -> None:
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    (port / "gids").mkdir(parents=True)
    (port / "state").write_text(state)
    (port / "gids" / "0").write_text(gid)
    rdma_ports = list(judge_rdma_ports(Host(str(tmp_path))))

    assert [port.good for port in rdma_ports] == [good]
    assert rdma_ports[0].notice.values == {"device": "mlx5_0"}


def test_options_are_parsed() -> None:
    ports = ("--peer-ports", "8000,29501,8000,9001", "--status-port", "9001")
    words = ("check", "--peers", "n1,,[::1]", *ports, "--peers-wait", "3")
    parsed = parse_arguments(words)
    peer_check = parse_peers(parsed.peers, parsed.peer_ports, parsed.options.status_port, parsed.peers_wait)
    assert peer_check == PeerCheck(("n1", "::1"), 9001, (8000, 29501), 3.0)
    for names in (",", "[]", "n 1", "http://n1", ",".join(["n"] * 1025)):
        with pytest.raises(EntrypointError, match="expected at most 1024 names"):
            parse_arguments(("check", "--peers", names))
    for ports, status_port in (("0", 8001), ("65536", 8001), ("8000,x", 8001), ("", 0)):
        with pytest.raises(EntrypointError, match=f"--{'peer-ports' if ports else 'status-port'} .*: expected a port"):
            parse_peers(("n1",), ports, status_port, 1.0)
    for option in (("--root", "x"), ("--fix-script",)):
        with pytest.raises(EntrypointError, match="--peers cannot be used with"):
            parse_arguments(("check", "--peers", "n1", *option))


def test_the_verb_prints_the_findings_and_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(expect.profile_of("cpu-xeon8380-2s")))
    env = {"DRYDOCK_PROFILE": str(profile), "GLOO_SOCKET_IFNAME": "no9"}
    ports = ("--peer-ports", str(free_port()), "--status-port", str(free_port()))
    code = main(("check", "--json", "--peers", "no-such-host.invalid", "--peers-wait", "0", *ports), env)
    severities = {finding["id"]: finding["severity"] for finding in json.loads(capsys.readouterr().out)}

    assert code == 3
    assert (severities["NET-001"], severities["NET-005"], severities["NET-006"]) == ("FAIL", "PASS", "FAIL")
