"""What `topology render --format kubernetes` writes, on a real cluster: spread, budget, and a new digest under load.

Kubernetes 1.20 has no policy/v1: the PodDisruptionBudget is applied as policy/v1beta1, with the same fields.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from tests.cluster.conftest import World
from tests.support.kubernetes import rendered
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.space import Space

GROUP = "chat"


class Client:
    """Somebody who asks a service from a node, again and again."""

    def __init__(self, cluster: Cluster, node: str, url: str) -> None:
        self.statuses: Counter[int] = Counter()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._ask, args=(cluster, node, url))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _ask(self, cluster: Cluster, node: str, url: str) -> None:
        while not self._done.is_set():
            self.statuses[cluster.ask(node, url).status] += 1
            time.sleep(0.2)


def objects(world: World, folder: Path, image: str) -> list[dict[str, Any]]:
    """Return two servers, each on a node of its own."""
    group = {"name": GROUP, "replicas": 2}
    topology = {"model": str(world.model), "image": image, "nodes": rendered.nodes(world.cluster), "groups": [group]}
    return rendered.earlier(rendered.of_topology(folder, topology))


@pytest.fixture(scope="module")
def shared(disk: Callable[[str], Path]) -> Path:
    """A folder that both nodes have, such as a file server's. Kubernetes leaves its owner and mode as they are."""
    folder = disk("shared")
    folder.chmod(0o2770)  # the servers run in group 0
    return folder


@pytest.fixture(scope="module")
def url(world: World, space: Space, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where two ready servers answer."""
    space.volume(GROUP, shared)
    space.apply(objects(world, tmp_path_factory.mktemp("rendered") / "first", world.image))
    space.until(lambda: len(space.ready()) == 2, "two ready servers")
    spec = space.get("service", f"{GROUP}-api")["spec"]
    port = next(port["port"] for port in spec["ports"] if port["name"] == "api")
    models_url = f"http://{spec['clusterIP']}:{port}/v1/models"
    for node in world.cluster.nodes:
        space.until(lambda node=node: world.cluster.ask(node, models_url).status == 200, f"an answer on {node}")  # type: ignore[misc]
    return models_url


def evict(space: Space, pod: str) -> None:
    """Ask for the end of a pod, as `kubectl drain` does. Raises AssertionError if its budget does not allow it."""
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": pod, "namespace": space.name}}
    path = f"/api/v1/namespaces/{space.name}/pods/{pod}/eviction"
    space.kubectl("create", "--raw", path, "--filename=-", given=json.dumps(eviction))


def test_each_server_has_a_node_and_both_answer_from_both_nodes(world: World, space: Space, url: str) -> None:
    pods = space.ready()
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == [*world.cluster.nodes]
    assert sorted(space.addresses(f"{GROUP}-api")) == sorted(pod["status"]["podIP"] for pod in pods)
    service, _, path = url.removeprefix("http://").partition("/")
    for node in world.cluster.nodes:
        assert world.cluster.ask(node, url).status == 200
        for pod in pods:
            pod_address = f"{pod['status']['podIP']}:{service.partition(':')[2]}"
            assert world.cluster.ask(node, f"http://{pod_address}/{path}").status == 200


@pytest.mark.usefixtures("url")
def test_servers_of_a_group_share_a_volume_and_run_the_image_of_the_plan(world: World, space: Space) -> None:
    digests = {pod["status"]["containerStatuses"][0]["imageID"].rpartition("@")[2] for pod in space.ready()}
    assert digests == {world.image.rpartition("@")[2]}
    first, second = (pod["metadata"]["name"] for pod in space.ready())
    space.execute(first, "open('/cache/from-the-first', 'w').close()")
    assert space.execute(second, "import os; print(os.path.exists('/cache/from-the-first'))").strip() == "True"


@pytest.mark.usefixtures("url")
def test_a_drained_node_ends_one_server_at_a_time(space: Space) -> None:
    first, second = (pod["metadata"]["name"] for pod in space.ready())
    space.until(lambda: space.get("poddisruptionbudget", GROUP)["status"]["disruptionsAllowed"] == 1, "the budget")
    evict(space, first)
    with pytest.raises(AssertionError, match="violate the pod's disruption budget"):
        evict(space, second)
    space.until(lambda: len(space.ready()) == 2, "another server in the first one's place")


def test_a_new_digest_replaces_one_server_after_the_other_and_no_request_is_lost(
    world: World, space: Space, url: str, tmp_path: Path
) -> None:
    newer = objects(world, tmp_path / "second", world.newer)
    with Client(world.cluster, "node1", url) as client:
        space.apply(newer)
        space.kubectl("rollout", "status", f"deployment/{GROUP}", "--timeout=300s")

    assert {*client.statuses} == {200}, client.statuses
    assert client.statuses[200] > 20
    digests = {pod["status"]["containerStatuses"][0]["imageID"].rpartition("@")[2] for pod in space.ready()}
    assert digests == {world.newer.rpartition("@")[2]}
    assert sorted(pod["spec"]["nodeName"] for pod in space.ready()) == [*world.cluster.nodes]
