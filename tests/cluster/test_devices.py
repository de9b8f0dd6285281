"""Devices that run out: a second server waits until a node has as many as it asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cluster.conftest import World
from tests.support.kubernetes import rendered
from tests.support.kubernetes.space import Space, condition, give_devices

RESOURCE = "nvidia.com/gpu"
SERVER = "gpus"


def test_a_server_without_devices_waits_and_says_why(world: World, space: Space, disk: Callable[[str], Path]) -> None:
    objects = rendered.of_run("cuda", world.model, world.image, "--name", SERVER, "--devices", "0-3")
    deployment = rendered.named(objects, "Deployment")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["resources"] == {"limits": {RESOURCE: 4}}
    deployment["spec"]["replicas"] = 2
    give_devices(world.cluster, "node1", RESOURCE, 4)
    space.volume(SERVER, disk("gpus"))
    claim = rendered.named(objects, "PersistentVolumeClaim")
    claim["spec"]["accessModes"] = ["ReadWriteMany"]  # for a second server, which `run` does not have
    space.apply([deployment, claim])

    def placed() -> list[str]:
        return [pod["spec"]["nodeName"] for pod in space.pods() if "nodeName" in pod["spec"]]

    def reasons() -> list[str]:
        conditions = [condition(pod, "PodScheduled") for pod in space.pods() if "nodeName" not in pod["spec"]]
        return [f"{item.get('reason')}: {item.get('message')}" for item in conditions]

    space.until(lambda: placed() == ["node1"], "a server on the node with devices")
    space.until(lambda: any(text.startswith("Unschedulable") for text in reasons()), "the scheduler's reason")
    assert reasons() == [f"Unschedulable: 0/2 nodes are available: 2 Insufficient {RESOURCE}."]

    give_devices(world.cluster, "node2", RESOURCE, 4)
    space.until(lambda: sorted(placed()) == ["node1", "node2"], "the second server on the other node")
