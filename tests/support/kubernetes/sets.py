"""The pods that a LeaderWorkerSet's controller would make, for a cluster that cannot run it. Pure.

LeaderWorkerSet 0.9 makes workers by a StatefulSet whose numbers begin at 1, which Kubernetes has since 1.26; the tests'
cluster is older. Names, labels, variables and their order are those of kubernetes-sigs/lws, pkg/controllers
(leaderworkerset_controller.go, pod_controller.go) and pkg/utils/pod (AddLWSVariables).

What the controller does later is not here: it makes a whole group anew after one of its containers started again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

GROUP = "leaderworkerset.sigs.k8s.io"


def service(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the service that gives the pods of a set their names, also before they are ready."""
    name = item["metadata"]["name"]
    spec = {"clusterIP": "None", "selector": {f"{GROUP}/name": name}, "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def pods(item: Mapping[str, Any], namespace: str, number: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the claims and pods of a set's group, the leader first."""
    name, parts = item["metadata"]["name"], item["spec"]["leaderWorkerTemplate"]
    leader = f"{name}-{number}"
    for index in range(parts["size"]):
        pod_name = f"{leader}-{index}" if index else leader
        template = parts["workerTemplate"] if index else parts.get("leaderTemplate", parts["workerTemplate"])
        variables = {
            "LWS_LEADER_ADDRESS": f"{leader}.{name}.{namespace}",
            "LWS_GROUP_SIZE": str(parts["size"]),
            "LWS_WORKER_INDEX": str(index),
        }
        claims = [
            {
                **claim,
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": claim_name(claim, pod_name)},
            }
            for claim in parts.get("volumeClaimTemplates", ())
        ]
        yield from claims
        volumes = [
            {"name": claim["metadata"]["name"], "persistentVolumeClaim": {"claimName": claim_name(claim, pod_name)}}
            for claim in parts.get("volumeClaimTemplates", ())
        ]
        labels = {f"{GROUP}/name": name, f"{GROUP}/group-index": str(number), f"{GROUP}/worker-index": str(index)}
        spec = template["spec"]
        yield {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": pod_name, "labels": {**template["metadata"]["labels"], **labels}},
            "spec": {
                **spec,
                "hostname": pod_name,
                "subdomain": name,
                "containers": [_with(container, variables) for container in spec["containers"]],
                "volumes": [*spec["volumes"], *volumes],
            },
        }


def claim_name(claim: Mapping[str, Any], pod: str) -> str:
    return f"{claim['metadata']['name']}-{pod}"


def _with(container: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """Put variables before a container's own, which may refer to them."""
    first = [{"name": name, "value": value} for name, value in variables.items()]
    return {
        **container,
        "env": [*first, *(variable for variable in container["env"] if variable["name"] not in variables)],
    }
