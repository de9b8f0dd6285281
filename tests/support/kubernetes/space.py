"""A namespace of the test cluster, with what its pods need: volumes, devices, and waiting for them. IO."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.kubernetes.cluster import Cluster
from tests.support.waiting import wait_until

CLASS = "local"
CLAIMED = "200Gi"
"""The size of drydock's claims. A static volume only says that it has so much."""
PATIENCE = 240.0
"""Seconds for what takes several periods of the probes."""
LINES = 60
"""Last lines of a pod's log that are shown if a test fails."""


class Space:
    """A namespace."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        """Create the namespace."""
        self.cluster, self.name = cluster, name
        cluster.kubectl("create", "namespace", name)

    def kubectl(self, *arguments: str, given: str = "") -> str:
        return self.cluster.kubectl("--namespace", self.name, *arguments, given=given)

    def get(self, *what: str) -> dict[str, Any]:
        resource: dict[str, Any] = json.loads(self.kubectl("get", *what, "--output=json"))
        return resource

    def apply(self, objects: Iterable[Mapping[str, Any]], *options: str) -> list[dict[str, Any]]:
        """Apply objects; return them as the API server has them."""
        manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*objects]})
        answer = json.loads(self.kubectl("apply", "--filename=-", "--output=json", *options, given=manifest))
        items: list[dict[str, Any]] = answer["items"] if answer["kind"] == "List" else [answer]
        return items

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods that are not being deleted."""
        items = self.get("pods")["items"]
        return [item for item in items if "deletionTimestamp" not in item["metadata"]]

    def ready(self) -> list[dict[str, Any]]:
        return [pod for pod in self.pods() if condition(pod, "Ready").get("status") == "True"]

    def until(self, holds: Callable[[], object], what: str, within: float = PATIENCE) -> None:
        """Wait for something; show the pods, their events and the ends of their logs if it does not come."""
        try:
            wait_until(holds, what, within)
        except AssertionError as error:
            events = self.kubectl("get", "events", "--sort-by=.lastTimestamp")
            pods = self.kubectl("get", "pods", "--output=wide")
            logs = "\n".join(f"{pod['metadata']['name']}:\n{self._log(pod)}" for pod in self.pods())
            raise AssertionError(f"{error}\n{pods}{events}{logs}") from None

    def _log(self, pod: Mapping[str, Any]) -> str:
        """Return the end of a pod's log, of the container before if it started again."""
        again = any(status["restartCount"] for status in pod["status"].get("containerStatuses", ()))
        before = ("--previous",) if again else ()
        result = self.cluster.try_kubectl(
            "--namespace", self.name, "logs", pod["metadata"]["name"], f"--tail={LINES}", *before
        )
        return result.stdout or result.stderr

    def addresses(self, service: str) -> list[str]:
        """Return the pods to which a service leads: those that are ready."""
        endpoints = [item for item in self.get("endpoints")["items"] if item["metadata"]["name"] == service]
        subsets = [subset for item in endpoints for subset in item.get("subsets", [])]
        return [address["ip"] for subset in subsets for address in subset.get("addresses", [])]

    def execute(self, pod: str, code: str) -> str:
        """Run Python in a pod's container and return what it prints."""
        return self.kubectl("exec", pod, "--", "/usr/bin/python3", "-I", "-S", "-c", code)

    def volume(self, claim: str, folder: Path, node: str = "") -> None:
        """Offer a folder as the volume of a claim: a disk of one node, or of all, as a file server does."""
        spec = {
            "storageClassName": CLASS,
            "capacity": {"storage": CLAIMED},
            "claimRef": {"namespace": self.name, "name": claim},
            **(_disk(folder, node) if node else {"accessModes": ["ReadWriteMany"], "hostPath": {"path": str(folder)}}),
        }
        metadata = {"name": f"{self.name}-{claim}"}
        self.apply([{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}])


def _disk(folder: Path, node: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    affinity = {"required": {"nodeSelectorTerms": [term]}}
    return {"accessModes": ["ReadWriteOnce"], "local": {"path": str(folder)}, "nodeAffinity": affinity}


def default_class() -> dict[str, Any]:
    """Return the class of volumes that somebody made in advance."""
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": CLASS, "annotations": annotations},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def give_devices(cluster: Cluster, node: str, resource: str, count: int) -> None:
    """Let a node say that it has devices, as a device plugin does."""
    node_object = cluster.get("node", node)
    for field in ("capacity", "allocatable"):
        node_object["status"][field][resource] = str(count)
    del node_object["metadata"]["resourceVersion"]  # the kubelet changes the node too
    cluster.kubectl("replace", "--raw", f"/api/v1/nodes/{node}/status", "--filename=-", given=json.dumps(node_object))


def condition(item: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return an object's condition; an empty one if it has none of this type."""
    conditions: list[dict[str, Any]] = item["status"].get("conditions", [])
    return next((item for item in conditions if item["type"] == kind), {})


def lost(sent_value: Any, stored_value: Any, path: str = "") -> list[str]:
    """Return the fields of an object that the API server lacks, or has otherwise. It writes quantities as text."""
    if isinstance(sent_value, Mapping) and isinstance(stored_value, Mapping):
        return [
            line for key, value in sent_value.items() for line in lost(value, stored_value.get(key), f"{path}.{key}")
        ]
    if isinstance(sent_value, list) and isinstance(stored_value, list) and len(sent_value) == len(stored_value):
        return [line for n, value in enumerate(sent_value) for line in lost(value, stored_value[n], f"{path}[{n}]")]
    return (
        []
        if stored_value in (sent_value, str(sent_value))
        else [f"{path}: sent {sent_value!r}, found {stored_value!r}"]
    )
