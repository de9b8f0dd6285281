"""A plan → the pods in which the nodes of a cluster are asked, one on each node that runs a server. Pure.

A pod has the image, the model, the devices and the network of the node's first server, but it only waits until it is
deleted, or for LONGEST. So a node that cannot give a server what it needs is found before anything starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from drydock.model.variant import Variant
from drydock.run.docker_command import ENTRYPOINT, PYTHON
from drydock.run.kubernetes_manifest import PAUSE
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.preflight.node_request import NodeRequest, format_check_words
from drydock.topology.render import pods
from drydock.topology.render.kubernetes import HOSTNAME
from drydock.topology.render.parts import Placed, group_by_node, list_node_addresses, make_placed_ranks

LONGEST = 1800
"""Seconds after which the cluster ends a pod whose deletion was never asked for."""
OF_SERVERS = ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle", "args", "ports")
"""Fields of a server's container that a waiting one has not. With ports, a node that uses one would get no pod."""
OF_SETS = "$(LWS_"
"""Begins what only a LeaderWorkerSet's pods can fill in."""
CHECK = "app.kubernetes.io/name"
_Object = dict[str, Any]


class CheckPod(NamedTuple):
    """A node's pod."""

    name: str
    node: str
    image: str
    manifest: _Object
    ports: Mapping[str, int]
    """Purpose → port, of every server."""
    model: str
    """The model's folder in the pod; empty for a model of the hub."""

    @property
    def container(self) -> str:
        """The name of its container. A service mesh adds others to the pod."""
        return str(self.manifest["spec"]["containers"][0]["name"])

    @property
    def on_host(self) -> bool:
        """Whether it has the node's own network."""
        return bool(self.manifest["spec"].get("hostNetwork"))


def make_check_pods(plan: TopologyPlan, variant: Variant, run: str) -> tuple[CheckPod, ...]:
    """Return the pods, sorted by node. `run` makes their names unique. Raises InputError for what pods cannot be."""
    ranks = make_placed_ranks(plan, variant)
    ports, node_addresses = pods.choose_common_ports(ranks), sorted(list_node_addresses(plan).values())
    return tuple(
        _make_check_pod(f"drydock-check-{run}-{number}", node_ranks[0], ports, node_addresses)
        for number, node_ranks in enumerate(group_by_node(ranks).values())
    )


def _make_check_pod(name: str, item: Placed, ports: Mapping[str, int], node_addresses: Sequence[str]) -> CheckPod:
    spec = pods.make_pod_template(item.model_copy(update={"secrets": ()}), ports, node_addresses)[
        "spec"
    ]  # none is there yet
    server = {key: value for key, value in spec["containers"][0].items() if key not in OF_SERVERS}
    server["env"] = [variable for variable in server["env"] if OF_SETS not in variable.get("value", "")]
    waiting = {**server, "command": [*PAUSE, f"import time; time.sleep({LONGEST})"]}
    term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [item.rank.node]}]}
    overrides = {
        "containers": [waiting],
        "volumes": [*spec["volumes"], {"name": pods.CACHE_VOLUME, "emptyDir": {}}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}},
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LONGEST,
        "terminationGracePeriodSeconds": 1,
    }
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {CHECK: "drydock-check"}},
        "spec": {**spec, **overrides},
    }
    model = item.container.model.target if item.container.model else ""
    return CheckPod(name, item.rank.node, item.container.image, manifest, ports, model)


def format_pod_list(node_pods: Sequence[CheckPod]) -> str:
    """Return all pods as one document."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod.manifest for pod in node_pods]})


def adapt_to_pod(request: NodeRequest, pod: CheckPod, pod_addresses: Mapping[str, str]) -> NodeRequest:
    """Return what is asked in a node's pod. `pod_addresses`: node → its pod's address, of the pods that run."""
    peers = {address for node, address in pod_addresses.items() if node != pod.node}
    ports = {port for purpose, port in pod.ports.items() if purpose != "status"}
    return request._replace(
        address=pod_addresses.get(pod.node, ""),
        images=(pod.image,),
        model=pod.model,
        ports=tuple(sorted(pod.ports.values())) if pod.on_host and not peers else (),
        container=(PYTHON, "-I", "-S", ENTRYPOINT) if pod.node in pod_addresses else (),
        groups=(),
        check=format_check_words(peers, ports, pod.ports["status"]),
    )
