"""One server of three pods, as `topology render` writes it: it answers, and starts again as a whole.

The pods are made as a LeaderWorkerSet's controller makes them (tests/support/kubernetes/sets.py). They find each other
by the leader's name, which the cluster's name service learns after the pods have started.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drydock.prove.demo import EXPECTED, QUESTION
from drydock.prove.demo_topology import SMALL
from tests.cluster.conftest import Real, World
from tests.support.kubernetes import cluster_names, rendered, sets
from tests.support.kubernetes.cluster_answers import START_WITHIN, asking, base_of, chat
from tests.support.kubernetes.space import Space

GROUP, LEADER, WORKER, OTHER = "whole", "whole-0", "whole-0-1", "whole-0-2"
PLACES = {LEADER: "node1", WORKER: "node2", OTHER: "node2"}
SPARE = {"name": "spare", "address": "10.250.0.3"}
"""A node of the plan that the cluster lacks: the model's nine heads need three pods, two of which share a node."""
SHM = 4 << 30
KILL = "import os, signal; os.kill({pid}, signal.SIGKILL)"
FIND = """
import pathlib
for command in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    if command.read_bytes().startswith(b"VLLM::Worker"):
        print(command.parent.name)
"""


def objects(world: World, real: Real, folder: Path) -> list[dict[str, Any]]:
    """Return the objects of a server on three nodes."""
    host = json.loads(rendered.HERE.read_text())
    host["mounts"]["shm"] |= {"free": SHM, "total": SHM}  # as the pods have it
    file = folder / "host.json"
    file.write_text(json.dumps(host))
    nodes = [*rendered.nodes(world.cluster, file), {**SPARE, "host": str(file)}]
    group = {"name": GROUP, "nodes": len(nodes), "flags": [*SMALL]}
    topology = {"model": str(real.model), "image": real.server, "nodes": nodes, "groups": [group]}
    return rendered.earlier(rendered.of_topology(folder / "rendered", topology))


def sharing(pod: dict[str, Any]) -> dict[str, Any]:
    """Let a pod share its node with another of its group."""
    pod.get("spec", {}).get("affinity", {}).pop("podAntiAffinity", None)
    return pod


@pytest.fixture(scope="module")
def server(
    world: World, real: Real, space: Space, disk: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a ready server."""
    start_names = cluster_names.start_names(world.cluster)
    variable = "DRYDOCK_GROUP_SECRET=sixteen-bytes-at-least"
    space.kubectl("create", "secret", "generic", "vllm-api-key", f"--from-literal={variable}")
    topology_objects = objects(world, real, tmp_path_factory.mktemp("planned"))
    whole = rendered.named(topology_objects, "LeaderWorkerSet")
    space.apply([sets.service(whole), *(item for item in topology_objects if item["kind"] != "LeaderWorkerSet")])
    for pod, node in PLACES.items():
        space.volume(f"cache-{pod}", disk(pod), node)
    space.apply(sharing(item) for item in sets.pods(whole, space.name))

    def ready() -> bool:
        cluster_names.write_names(start_names, space.pods())
        return len(space.ready()) == len(PLACES)

    space.until(ready, "every pod of the server", START_WITHIN)
    yield base_of(space, f"{GROUP}-api")
    space.kubectl("delete", "pods", *PLACES)


def restarts(space: Space) -> dict[str, int]:
    return {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in space.pods()}


def test_the_pods_answer_as_one_server(real: Real, space: Space, server: str) -> None:
    assert {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in space.ready()} == PLACES
    assert {*restarts(space).values()} == {0}
    assert EXPECTED in chat(space, server, asking(real.model.name, QUESTION))
    (leader,) = (pod for pod in space.pods() if pod["metadata"]["name"] == LEADER)
    assert space.addresses(f"{GROUP}-api") == [leader["status"]["podIP"]]


def test_the_end_of_one_pods_worker_ends_the_server_which_starts_again(real: Real, space: Space, server: str) -> None:
    (pid,) = space.execute(WORKER, FIND).split()
    space.execute(WORKER, KILL.format(pid=pid))
    space.until(lambda: {*restarts(space).values()} == {1}, "the end of all", START_WITHIN)

    assert "rank 1 (" in space.kubectl("logs", LEADER, "--previous")
    space.until(lambda: len(space.ready()) == len(PLACES), "all again", START_WITHIN)
    assert EXPECTED in chat(space, server, asking(real.model.name, QUESTION))
