"""The real CPU image, router and model on the nodes: the right answer, also by prefill and decode on two nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drydock.prove.demo import EXPECTED, QUESTION
from drydock.prove.demo_topology import SHAPES, SMALL
from entrypoints.serve.topology_answer import read_tokens_received
from tests.cluster.conftest import Real, World
from tests.support.kubernetes import rendered
from tests.support.kubernetes.cluster_answers import START_WITHIN, asking, base_of, chat
from tests.support.kubernetes.space import Space

KEY = "a-secret-of-the-test"
SERVER = "alone"
BLOCKS = 256
"""Tokens of two blocks: less may have been computed by the decode server itself."""
LONG = f"Continue: {', '.join(map(str, range(1000, 1080)))}"
"""A prompt of more than two blocks."""


@pytest.fixture(scope="module", autouse=True)
def _key(space: Space) -> None:
    space.kubectl("create", "secret", "generic", "vllm-api-key", f"--from-literal=VLLM_API_KEY={KEY}")


def test_a_server_gets_ready_and_answers_through_its_service(
    real: Real, space: Space, disk: Callable[[str], Path]
) -> None:
    space.volume(SERVER, disk("alone"), "node2")
    objects = rendered.of_run("cpu", real.model, real.server, "--name", SERVER)
    space.apply(objects)
    space.until(lambda: space.addresses(SERVER), "a real server", START_WITHIN)

    (pod,) = space.ready()
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    assert EXPECTED in chat(space, base_of(space, SERVER), asking(real.model.name, QUESTION), KEY)
    space.kubectl("delete", "deployment", SERVER)


def test_prefill_on_a_node_and_decode_on_the_other_answer_through_the_router(
    world: World, real: Real, space: Space, disk: Callable[[str], Path], tmp_path: Path
) -> None:
    for name, node in (("prefill", "node1"), ("decode", "node2")):
        space.volume(name, disk(name), node)
    space.apply(one_prefill_one_decode(world, real, tmp_path / "rendered"))
    for service in ("prefill-api", "decode-api", "router"):
        space.until(lambda service=service: space.addresses(service), service, START_WITHIN)  # type: ignore[misc]

    router = base_of(space, "router")
    assert EXPECTED in chat(space, router, asking(real.model.name, QUESTION), KEY)
    assert world.cluster.ask("node1", f"{router}/v1/models").status == 401
    before = received(world, space)
    chat(space, router, asking(real.model.name, LONG), KEY)
    space.until(lambda: received(world, space) - before > BLOCKS, "tokens from the prefill server")


def one_prefill_one_decode(world: World, real: Real, folder: Path) -> list[dict[str, Any]]:
    """Return the objects of a prefill server on one node, a decode server on the other, and a router."""
    places = {"prefill": ["node1"], "decode": ["node2"]}
    groups = [{**group, "flags": [*SMALL], "among": places[str(group["name"])]} for group in SHAPES["1p1d"].groups]
    router = {"node": "node1", "policy": "round_robin"}
    topology = {
        "model": str(real.model),
        "image": real.server,
        "nodes": rendered.nodes(world.cluster),
        "groups": groups,
        "router": router,
    }
    topology["api_key"] = "required"
    return rendered.earlier(rendered.of_topology(folder, topology, router=real.router))


def received(world: World, space: Space) -> float:
    """Return how many tokens of prompts the decode server got from the other."""
    (address,) = space.addresses("decode-api")
    port = next(item["port"] for item in space.get("service", "decode-api")["spec"]["ports"] if item["name"] == "api")
    return read_tokens_received(world.cluster.ask("node1", f"http://{address}:{port}/metrics").text)
