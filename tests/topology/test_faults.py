"""Servers and their network fail: clients get an answer or an error in bounded time, and never a wrong answer."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Any

import docker

from drydock.topology import verify
from drydock.topology.render.parts import name_rank_container
from entrypoints.serve.topology_answer import REMOTE, KnownTopology
from tests.support.running_topology import (
    LEASE,
    LONGEST,
    PROMPTS,
    ROUTER_TIMEOUT,
    Clients,
    Cluster,
    Note,
    question,
)
from tests.support.waiting import wait_until

FILL = """
import os
try:
    with open("/cache/full", "wb", buffering=0) as file:
        while file.write(bytes(1 << 20)):
            pass
except OSError as error:
    print(os.strerror(error.errno))
"""
"""Writes until the disk is full."""
FAILED = "vllm:nixl_num_failed_transfers_total"
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
IDLE_LOAD = 0.1
"""Share of a core that the engine of a server without requests may take; 0.026 where this was written."""
P0, P1, D0, ROUTER = "prefill-0-0", "prefill-1-0", "decode-0-0", "router"


def test_every_pair_is_shown_before_clients_are_told(cluster: Cluster) -> None:
    assert {(pair.prefill, pair.decode) for pair in cluster.shown.pairs} == {(P0, D0), (P1, D0)}
    assert cluster.shown.router
    assert all(pair.transferred > 2 * cluster.shown.block for pair in (*cluster.shown.pairs, cluster.shown.router))


def test_servers_without_requests_leave_the_processors_alone(cluster: Cluster) -> None:
    """A share of a processor's time, which is the same on a busy machine."""
    loads = {service: cluster.measure_engine_load(service) for service in (P0, P1, D0)}

    assert max(loads.values()) < IDLE_LOAD, loads


def _after_a_kill(cluster: Cluster, clients: Clients, service: str) -> tuple[float, float]:
    """Kill a container; return the seconds until clients got answers again, and until all was ready."""
    killed = time.monotonic()
    cluster.kill(service)
    wait_until(lambda: not cluster.ready(service), "not ready", within=30)
    clients.until_good()
    answered = time.monotonic() - killed
    cluster.heal()
    whole = time.monotonic() - killed
    clients.until_good()
    clients.check()
    return answered, whole


def test_a_killed_prefill_server(cluster: Cluster, clients: Clients, note: Note) -> None:
    answered, whole = _after_a_kill(cluster, clients, P0)

    assert {request.said for request in clients.bad()} <= {"500", "502", "503"}
    note(
        "a prefill server is killed",
        clients.summary(),
        f"{answered:.0f} s, by the other prefill server; both serve after {whole:.0f} s",
    )


def test_a_killed_decode_server(cluster: Cluster, clients: Clients, note: Note) -> None:
    _, whole = _after_a_kill(cluster, clients, D0)

    assert clients.bad()
    note("the only decode server is killed", clients.summary(), f"{whole:.0f} s: its engine starts it again")


def test_a_stopped_prefill_server(cluster: Cluster, clients: Clients, note: Note) -> None:
    begun = time.monotonic()
    cluster.signal_all(P1, signal.SIGSTOP)
    try:
        wait_until(lambda: not cluster.ready(P1), "not ready", within=30)
        clients.until_good(within=60)
        without = time.monotonic() - begun
    finally:
        cluster.signal_all(P1, signal.SIGCONT)
    cluster.heal()
    clients.until_good()
    clients.check()
    note(
        "every process of a prefill server is stopped (SIGSTOP)",
        clients.summary(),
        f"{without:.0f} s, by the other prefill server; it serves again as soon as it goes on",
    )


def test_a_stopped_decode_server(cluster: Cluster, clients: Clients, note: Note) -> None:
    cluster.signal_all(D0, signal.SIGSTOP)
    try:
        wait_until(clients.bad, "a request that fails", within=LONGEST)
    finally:
        cluster.signal_all(D0, signal.SIGCONT)
    begun = time.monotonic()
    cluster.heal()
    clients.until_good()
    clients.check()
    whole = time.monotonic() - begun
    note(
        "every process of the only decode server is stopped (SIGSTOP)",
        clients.summary(),
        f"{whole:.0f} s after it goes on; a request ends after router.timeout, here {ROUTER_TIMEOUT} s",
    )


@contextlib.contextmanager
def _cut(cluster: Cluster, number: int) -> Iterator[None]:
    """Take a server's node off the network: the container that holds its namespace, or that of its only rank."""
    replica = cluster.plan.replicas[number]
    rank = replica.ranks[0]
    network = docker.from_env().networks.get(f"{cluster.project}_nodes")
    containers = (*cluster.containers(f"node.{rank.node}"), *cluster.containers(name_rank_container(replica, rank)))
    network.disconnect(containers[0])
    try:
        yield
    finally:
        network.connect(containers[0], ipv4_address=rank.address)


def test_a_prefill_server_whose_network_is_cut(cluster: Cluster, clients: Clients, note: Note) -> None:
    begun = time.monotonic()
    with _cut(cluster, 1):
        time.sleep(10)
        clients.until_good(within=90)
        without = time.monotonic() - begun
    healed = time.monotonic()
    cluster.heal()
    clients.until_good()
    clients.check()
    after = time.monotonic() - healed
    cluster.prove()
    note(
        "a prefill server's network is cut",
        clients.summary(),
        f"{without:.0f} s, by the other prefill server; {after:.0f} s after the network is back both serve",
    )


def test_the_decode_server_whose_network_is_cut(cluster: Cluster, clients: Clients, note: Note) -> None:
    with _cut(cluster, -1):
        wait_until(clients.bad, "a request that fails", within=LONGEST)
        time.sleep(10)
    healed = time.monotonic()
    clients.until_good()
    after = time.monotonic() - healed
    clients.check()
    note("the only decode server's network is cut", clients.summary(), f"{after:.0f} s after the network is back")


def test_a_prefill_server_that_is_new_to_a_decode_server_with_a_new_interface(
    cluster: Cluster, clients: Clients, note: Note
) -> None:
    with _cut(cluster, -1):
        time.sleep(1)
    cluster.kill(P0)
    cluster.heal()
    wait_until(lambda: cluster.count(D0, FAILED) > 0, "a failure to get a KV cache", within=120)
    cluster.kill(D0)
    begun = time.monotonic()
    cluster.heal()
    clients.until_good()
    clients.check()
    note(
        "a prefill server starts after the decode server's network interface was created again",
        clients.summary(),
        f"`{FAILED}` rises; {time.monotonic() - begun:.0f} s after the decode server is started again",
    )


def test_a_router_that_starts_again(cluster: Cluster, clients: Clients, note: Note) -> None:
    begun, killed = time.monotonic(), cluster.first_process(ROUTER)
    cluster.kill(ROUTER)  # it may be back before a client asks
    wait_until(lambda: cluster.first_process(ROUTER) not in (0, killed), "another process of the router", within=30)
    cluster.heal()
    whole = time.monotonic() - begun
    clients.until_good()
    clients.check()
    note("the router is killed", clients.summary(), f"{whole:.0f} s: its engine starts it again")


def test_a_decode_server_that_comes_late_is_counted(cluster: Cluster, note: Note) -> None:
    cluster.heal()
    before = cluster.count(P0, EXPIRED)
    topology = KnownTopology.of(verify.make_servers_question(cluster.plan), cluster.ask)
    prefill, decode = topology.servers[0], topology.servers[-1]
    body: dict[str, Any] = {"model": "smollm2", "prompt": PROMPTS[0], "max_tokens": 1, "cache_salt": "late"}
    where = topology.post(f"{prefill.url}/v1/completions", {**body, "kv_transfer_params": REMOTE})
    time.sleep(LEASE + 10)
    topology.post(f"{prefill.url}/v1/completions", body)  # a server that does nothing counts nothing
    # requests that an earlier test gave up may expire too
    wait_until(lambda: cluster.count(P0, EXPIRED) > before, "the counter", within=30)
    late, text = question(cluster.ask, decode.url, PROMPTS[0], kv_transfer_params=where["kv_transfer_params"])
    note(
        f"a decode server asks {LEASE + 10} s after prefill, with a lease of {LEASE} s",
        f"{late} {text.split(',')[0].strip()!r}: nothing refuses it",
        "`vllm:nixl_num_kv_expired_reqs` rises at once",
    )


def test_a_full_disk_on_one_node(cluster: Cluster, clients: Clients, note: Note) -> None:
    container = cluster.container(P1)
    code, output = container.exec_run(["/usr/bin/python3", "-I", "-S", "-c", FILL])
    assert code == 0, output
    assert b"No space left" in output
    answered, whole = _after_a_kill(cluster, clients, P1)

    note(
        "a prefill server starts again on a full disk (/cache)",
        clients.summary(),
        f"{answered:.0f} s, by the other prefill server; it serves without a cache after {whole:.0f} s",
    )
