"""A prefill and a decode server of the CPU image behind the router's, as `demo --topology 1p1d` starts them."""

from __future__ import annotations

from pathlib import Path

import docker
import pytest

from drydock.build import build
from drydock.build.build_job import prepare_job
from drydock.config.project_choice import DRYDOCK
from drydock.prove import demo_topology
from drydock.prove.demo import EXPECTED
from drydock.topology import verify
from drydock.topology.plan_model import TopologyPlan
from entrypoints.serve import topology_answer
from entrypoints.serve.topology_answer import KnownTopology

pytestmark = [pytest.mark.proves("cpu-vllm0.32", "packages"), pytest.mark.timeout(900)]


def test_the_decode_server_answers_with_the_cache_that_the_prefill_server_computed_and_only_with_the_key(
    built: build.Built, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = build.build_image(prepare_job(DRYDOCK, "router")).image
    before = held()
    refused: dict[str, set[int]] = {}
    ask = demo_topology.ask_question

    def asked(plan: TopologyPlan, key: str) -> str:
        refused.update(without_the_key(plan))
        return ask(plan, key)

    monkeypatch.setattr(demo_topology, "ask_question", asked)
    demo_answers, answer = demo_topology.serve_topology(DRYDOCK, "1p1d", model, built.image, router)

    assert refused == {"router": {401}, "prefill-0-0": {401}, "decode-0-0": {401}}

    assert EXPECTED in answer
    assert [(pair.prefill, pair.decode) for pair in demo_answers.pairs] == [("prefill-0-0", "decode-0-0")]
    assert all(pair.transferred == pair.tokens > 2 * demo_answers.block for pair in demo_answers.pairs)
    assert demo_answers.router
    assert demo_answers.router.transferred == demo_answers.router.tokens
    assert held() == before


def without_the_key(plan: TopologyPlan) -> dict[str, set[int]]:
    """Return what the router and each server answer without the key, and with a wrong one."""
    topology = KnownTopology.of(verify.make_servers_question(plan), topology_answer.ask_server)
    bases = {server.name: server.url for server in topology.servers} | {"router": topology.router}
    body = {"model": "smollm2", "prompt": "1, 2,", "max_tokens": 1}
    return {
        name: {topology_answer.ask_server(f"{base}/v1/completions", body, key=key).status for key in ("", "wrong")}
        for name, base in bases.items()
    }


def held() -> set[str]:
    """Return the engine's networks and volumes of topologies: other tests run on the same engine."""
    client = docker.from_env()
    return {
        str(resource.name)
        for resource in (*client.networks.list(), *client.volumes.list())
        if "demo" in str(resource.name)
    }
