"""The command of vllm-router. Pure.

Its defaults check health every 60 s and take a server out after three failures, so requests fail for minutes; with one
check every 2 s a killed server is left out after 2 s. A server that hangs still answers health checks; its requests end
with an error after the timeout, by default 30 minutes.
Sources: vllm-router 0.1.17 --help; drydock, measured with it and vLLM 0.32; vllm-project/router#130.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drydock.model.kv_transfer import KvTransfer
from drydock.model.variant import Variant
from drydock.topology.plan_model import Replica, RouterPlan
from drydock.topology.ports import API
from drydock.topology.topology_arguments import is_ip, make_node_url
from drydock.topology.topology_records import Topology

PROGRAM = "vllm-router"
HEALTH = (
    *("--health-check-interval-secs", "2"),
    *("--health-failure-threshold", "1"),
    *("--health-success-threshold", "1"),
    *("--worker-startup-check-interval", "1"),
)
BODY_AT_MOST = 256 << 20
"""Bytes of a request, as entrypoints take at most. The router reads them before it looks at the key."""
START_MINUTES = 10
"""As START_SECONDS of docker_command.py: how long a first start may take, unless the accelerator says otherwise."""


def plan_router(
    topology: Topology, replicas: Sequence[Replica], transfer: KvTransfer | None, variant: Variant, image: str
) -> RouterPlan | None:
    """Return the router's command; None if the topology has none."""
    router = topology.router
    if router is None:
        return None
    node = next(node for node in topology.nodes if node.name == router.node)
    address = node.address if is_ip(node.address) else "0.0.0.0"  # noqa: S104 - a name may be loopback on its own node
    listening = ("--host", address, "--port", str(router.port), "--max-payload-size", str(BODY_AT_MOST))
    servers = _list_pair_words(replicas, transfer) if transfer else _list_worker_words(replicas)
    minutes = int(variant.run.start.value.rstrip("m")) if variant.run.start else START_MINUTES
    waiting = ("--worker-startup-timeout-secs", str(minutes * 60))
    ending = ("--request-timeout-secs", str(router.timeout))
    argv = (PROGRAM, *listening, *servers, "--policy", router.policy, *HEALTH, *waiting, *ending)
    return RouterPlan(node=node.name, address=node.address, port=router.port, argv=argv, image=image)


def _list_pair_words(replicas: Sequence[Replica], transfer: KvTransfer) -> Iterator[str]:
    yield from ("--vllm-pd-disaggregation", "--kv-connector", transfer.router)
    for role in ("prefill", "decode"):
        for address in _list_server_urls([replica for replica in replicas if replica.role == role]):
            yield from (f"--{role}", address)


def _list_worker_words(replicas: Sequence[Replica]) -> Iterator[str]:
    yield from ("--worker-urls", *_list_server_urls(replicas))


def _list_server_urls(replicas: Sequence[Replica]) -> Iterator[str]:
    """Yield the API of every rank that answers clients."""
    for replica in replicas:
        for rank in replica.ranks:
            if API in rank.ports:
                yield make_node_url(rank.address, rank.ports[API])
