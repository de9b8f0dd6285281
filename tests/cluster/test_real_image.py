"""The real CPU image and a real model on a node: a manifest of `run`, and the right answer through its service."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from drydock.build import build
from drydock.build.job import prepare
from drydock.prove import smollm2
from drydock.prove.demo import EXPECTED, QUESTION
from tests.cluster.conftest import World
from tests.support.kubernetes import images, rendered
from tests.support.kubernetes.space import Space

KEY = "a-secret-of-the-test"
SERVER = "real"
PATIENCE = 500.0
"""Seconds. On two idle cores it takes half a minute."""


def test_it_gets_ready_and_answers_through_its_service(
    world: World, space: Space, disk: Callable[[str], Path], tmp_path: Path
) -> None:
    built = build.build(prepare("cpu"))
    layout, archive = Path(built.layout), tmp_path / "image.tar"
    image = images.own(layout)
    images.write_archive(archive, layout, image)
    world.cluster.load("node2", archive)
    archive.unlink()
    space.volume(SERVER, disk("real"), "node2")
    space.kubectl("create", "secret", "generic", "vllm-api-key", f"--from-literal=VLLM_API_KEY={KEY}")
    space.apply(rendered.of_run("cpu", smollm2.make(built.image), image.reference, "--name", SERVER))
    space.until(lambda: space.addresses(SERVER), "the real server", PATIENCE)

    (pod,) = space.ready()
    assert pod["status"]["containerStatuses"][0]["imageID"].endswith(built.digest)
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    spec = space.get("service", SERVER)["spec"]
    url = f"http://{spec['clusterIP']}:{spec['ports'][0]['port']}"
    space.until(lambda: world.cluster.ask("node1", f"{url}/v1/models", key=KEY).status == 200, "an answer")
    listed = world.cluster.ask("node1", f"{url}/v1/models", key=KEY)
    name = json.loads(listed.text)["data"][0]["id"]
    question = {"model": name, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 8}
    answer = world.cluster.ask("node1", f"{url}/v1/chat/completions", key=KEY, data=question)
    assert answer.status == 200
    assert EXPECTED in json.loads(answer.text)["choices"][0]["message"]["content"]
