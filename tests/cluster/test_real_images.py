"""The real CPU image, router and model on the nodes: the right answer, also by prefill and decode on two nodes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from drydock.build import build
from drydock.build.job import prepare
from drydock.prove import smollm2
from drydock.prove.demo import EXPECTED, QUESTION
from drydock.prove.demo_topology import SHAPES, SMALL
from drydock.topology.rollout import metrics
from tests.cluster.conftest import World
from tests.support.kubernetes import images, rendered
from tests.support.kubernetes.cluster import Answer
from tests.support.kubernetes.space import Space

KEY = "a-secret-of-the-test"
SERVER = "alone"
PATIENCE = 400.0
"""Seconds. On two idle cores it takes half a minute."""
BLOCKS = 256
"""Tokens of two blocks: less may have been computed by the decode server itself."""
LONG = f"Continue: {', '.join(map(str, range(1000, 1080)))}"
"""A prompt of more than two blocks."""


class Real(NamedTuple):
    """What the nodes have."""

    server: str
    router: str
    model: Path


@pytest.fixture(scope="module")
def real(world: World, tmp_path_factory: pytest.TempPathFactory) -> Real:
    """The images of this checkout, built if they are not, on both nodes."""
    builds = {name: build.build(prepare(name)) for name in ("cpu", "router")}
    archive = tmp_path_factory.mktemp("images") / "image.tar"
    references = {}
    for name, built in builds.items():
        layout = Path(built.layout)
        image = images.own(layout)
        images.write_archive(archive, layout, image)
        for node in world.cluster.nodes:
            world.cluster.load(node, archive)
        references[name] = image.reference
    archive.unlink()
    model = tmp_path_factory.mktemp("models") / "smollm2"
    shutil.copytree(smollm2.make(builds["cpu"].image), model)  # a container's user cannot enter /root
    return Real(references["cpu"], references["router"], model)


def chat(world: World, space: Space, base: str, question: Mapping[str, Any], key: str = "") -> str:
    """Ask a server or a router from the first node, until kube-proxy and the router know the servers."""
    answers: list[Answer] = []

    def answered() -> bool:
        answers.append(world.cluster.ask("node1", f"{base}/v1/chat/completions", key=key, data=question))
        return answers[-1].status == 200

    try:
        space.until(answered, "an answer")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{answers[-1]}") from None
    return str(json.loads(answers[-1].text)["choices"][0]["message"]["content"])


def asking(real: Real, text: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": real.model.name, "messages": messages, "temperature": 0, "max_tokens": 8}


def base_of(space: Space, service: str) -> str:
    spec = space.get("service", service)["spec"]
    return f"http://{spec['clusterIP']}:{spec['ports'][0]['port']}"


def test_a_server_gets_ready_and_answers_through_its_service(
    world: World, real: Real, space: Space, disk: Callable[[str], Path]
) -> None:
    space.volume(SERVER, disk("alone"), "node2")
    space.kubectl("create", "secret", "generic", "vllm-api-key", f"--from-literal=VLLM_API_KEY={KEY}")
    objects = rendered.of_run("cpu", real.model, real.server, "--name", SERVER)
    space.apply(objects)
    space.until(lambda: space.addresses(SERVER), "a real server", PATIENCE)

    (pod,) = space.ready()
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    assert EXPECTED in chat(world, space, base_of(space, SERVER), asking(real, QUESTION), KEY)
    space.kubectl("delete", "deployment", SERVER)


def test_prefill_on_a_node_and_decode_on_the_other_answer_through_the_router(
    world: World, real: Real, space: Space, disk: Callable[[str], Path], tmp_path: Path
) -> None:
    for name, node in (("prefill", "node1"), ("decode", "node2")):
        space.volume(name, disk(name), node)
    space.apply(one_prefill_one_decode(world, real, tmp_path / "rendered"))
    for service in ("prefill-api", "decode-api", "router"):
        space.until(lambda service=service: space.addresses(service), service, PATIENCE)  # type: ignore[misc]

    router = base_of(space, "router")
    assert EXPECTED in chat(world, space, router, asking(real, QUESTION))
    before = received(world, space)
    chat(world, space, router, asking(real, LONG))
    space.until(lambda: received(world, space) - before > BLOCKS, "tokens from the prefill server")


def one_prefill_one_decode(world: World, real: Real, folder: Path) -> list[dict[str, Any]]:
    """Return the objects of a prefill server on one node, a decode server on the other, and a router."""
    nodes = [
        {"name": f"node{network.number}", "address": network.address, "host": str(rendered.HERE)}
        for network in world.cluster.networks
    ]
    places = {"prefill": ["node1"], "decode": ["node2"]}
    groups = [{**group, "flags": [*SMALL], "among": places[str(group["name"])]} for group in SHAPES["1p1d"].groups]
    router = {"node": "node1", "policy": "round_robin"}
    topology = {"model": str(real.model), "image": real.server, "nodes": nodes, "groups": groups, "router": router}
    return rendered.earlier(rendered.of_topology(folder, topology, router=real.router))


def received(world: World, space: Space) -> float:
    """Return how many tokens of prompts the decode server got from the other."""
    (address,) = space.addresses("decode-api")
    port = next(each["port"] for each in space.get("service", "decode-api")["spec"]["ports"] if each["name"] == "api")
    return metrics.transferred(world.cluster.ask("node1", f"http://{address}:{port}/metrics").text) or 0.0
