"""A prefill and a decode server of the CPU image behind the router's, as `demo --topology 1p1d` starts them."""

from __future__ import annotations

from pathlib import Path

import docker
import pytest

from drydock.build import build
from drydock.build.job import prepare
from drydock.prove import demo_topology
from drydock.prove.demo import EXPECTED

pytestmark = [pytest.mark.proves("cpu-vllm0.32", "packages"), pytest.mark.timeout(900)]


def test_the_decode_server_answers_with_the_cache_that_the_prefill_server_computed(
    built: build.Built, model: Path
) -> None:
    router = build.build(prepare("router")).image
    before = held()

    shown, answer = demo_topology.serve("1p1d", model, built.image, router)

    assert EXPECTED in answer
    assert [(pair.prefill, pair.decode) for pair in shown.pairs] == [("prefill-0-0", "decode-0-0")]
    assert all(pair.transferred == pair.tokens > 2 * shown.block for pair in shown.pairs)
    assert shown.router
    assert shown.router.transferred == shown.router.tokens
    assert held() == before


def held() -> set[str]:
    """Return the engine's networks and volumes."""
    client = docker.from_env()
    return {str(each.id) for each in (*client.networks.list(), *client.volumes.list())}
