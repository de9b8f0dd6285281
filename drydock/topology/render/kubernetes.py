"""A plan → Kubernetes manifests and their kustomization.yaml. Pure.

A group of one-node servers is a Deployment, one of several nodes a LeaderWorkerSet (v1); with `disaggregated`, prefill
and decode are the roles of one DisaggregatedSet (LeaderWorkerSet 0.9), which rolls them out in step. The plan's node
names are the cluster's. The router finds servers by their labels: a list of addresses would be wrong after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from drydock.core.dollars import double_dollars
from drydock.core.errors import InputError
from drydock.model.variant import Variant
from drydock.run.access import EVERY_ADDRESS, LOOPBACK
from drydock.run.container import name_of
from drydock.run.docker_command import ASK_EVERY, ENTRYPOINT_WORDS, START_SECONDS, STOP_SECONDS, TMP, USER
from drydock.run.kubernetes_manifest import CACHE_SIZE, KEY_SECRET, PRESTOP_SECONDS, from_secret
from drydock.run.user_options import HOST
from drydock.topology import topology_keys
from drydock.topology.plan_model import RouterPlan, TopologyPlan
from drydock.topology.render import pods, verify_job
from drydock.topology.render.parts import (
    Placed,
    group_by_node,
    list_node_addresses,
    list_router_words,
    make_placed_ranks,
    make_router_check,
)
from drydock.topology.render.quoted_text import format_yaml

WORKLOAD = "app.kubernetes.io/instance"
HOSTNAME = "kubernetes.io/hostname"
NAMESPACE = "POD_NAMESPACE"
ROUTER = "router"
SERVER = "vllm"
"""Name of every pod that serves, by its label app.kubernetes.io/name."""
LISTS = {"--prefill": "prefill", "--decode": "decode", "--worker-urls": "serve"}
"""The router's flags that list servers, and the role that they list."""

_Object = dict[str, Any]


class Workload(NamedTuple):
    """Replicas whose pods share their templates."""

    name: str
    replicas: tuple[tuple[Placed, ...], ...]
    leader: _Object
    worker: _Object | None

    @property
    def first(self) -> Placed:
        """A rank that stands for the others."""
        return self.replicas[0][0]

    @property
    def size(self) -> int:
        """Pods of a replica."""
        return len(self.replicas[0])

    @property
    def labels(self) -> dict[str, str]:
        """What selects its pods."""
        return {"app.kubernetes.io/name": SERVER, WORKLOAD: self.name}


def render_kubernetes_files(
    plan: TopologyPlan, variant: Variant, *, disaggregated: bool = False, has_verb: bool = True
) -> dict[str, str]:
    """Return path → content; kustomization.yaml lists the others. Raises InputError for what pods cannot be.

    `has_verb`: as of verify_job.render_verify_job.
    """
    cluster_objects = make_cluster_objects(plan, variant, disaggregated=disaggregated)
    names = [f"{read_object_kind(item)}-{item['metadata']['name']}.yaml" for item in cluster_objects]
    services = {
        f"service-{item['metadata']['name']}.yaml"
        for item in cluster_objects
        if read_object_kind(item) == "leaderworkerset"
    }
    twice = sorted({name for name in names if names.count(name) + (name in services) > 1})
    if twice:
        raise InputError(
            f"groups: two would be {', '.join(twice)}",
            hint="rename a group; `router` is the router's name, and a LeaderWorkerSet has a Service of its own name",
        )
    manifests = dict(zip(names, cluster_objects, strict=True))
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": sorted(manifests),
    }
    texts = {path: format_yaml(item) for path, item in manifests.items()} | verify_job.render_verify_job(
        plan, cluster_objects, has_verb=has_verb
    )
    return {"kustomization.yaml": format_yaml(kustomization), **dict(sorted(texts.items()))}


def read_object_kind(item: Mapping[str, Any]) -> str:
    """Return an object's kind, in lower case."""
    return str(item["kind"]).lower()


def make_cluster_objects(plan: TopologyPlan, variant: Variant, *, disaggregated: bool) -> list[_Object]:
    """Return every object. Raises InputError for what pods cannot be."""
    all_workloads = group_workloads(plan, variant)
    split = [item for item in all_workloads if item.first.replica.role != "serve"] if disaggregated else []
    if disaggregated and {item.first.replica.role for item in split} != {"prefill", "decode"}:
        raise InputError("groups: a DisaggregatedSet needs groups of both roles, prefill and decode")
    objects = [_make_disaggregated_set(split)] if split else []
    for item in all_workloads:
        objects += [] if item in split else _make_workload_objects(item)
        objects.append(_make_disruption_budget(item))
    objects += [
        _make_group_service(group, all_workloads, headless=plan.router is not None)
        for group in _list_groups(all_workloads)
    ]
    objects.append(_make_network_policy(all_workloads, open_to_clients=plan.router is None))
    return [
        *objects,
        *(
            _make_router_objects(plan.router, all_workloads, topology_keys.list_router_secrets(plan))
            if plan.router
            else ()
        ),
    ]


# --- workloads ------------------------------------------------------------------------------------------------------


def group_workloads(plan: TopologyPlan, variant: Variant) -> list[Workload]:
    """Return the workloads of each group: one, unless its replicas need different templates."""
    ranks = make_placed_ranks(plan, variant)
    _check_shared_networks(ranks)
    ports = pods.choose_common_ports(ranks)
    node_addresses = sorted(list_node_addresses(plan).values())
    alike_by_group: dict[str, list[tuple[_Object, _Object | None, list[tuple[Placed, ...]]]]] = {}
    for replica in plan.replicas:
        replica_ranks = tuple(item for item in ranks if item.replica is replica)
        leader, worker = _make_templates(replica_ranks, ports, node_addresses)
        alike = alike_by_group.setdefault(replica.group, [])
        same = next((item for item in alike if item[:2] == (leader, worker)), None)
        if same:
            same[2].append(replica_ranks)
        else:
            alike.append((leader, worker, [replica_ranks]))
    return [
        _make_workload(group if place == 0 else f"{group}-{place}", *parts)
        for group, alike in alike_by_group.items()
        for place, parts in enumerate(alike)
    ]


def _check_shared_networks(ranks: Iterable[Placed]) -> None:
    """Raise InputError for servers that share a node and its network: all pods of a plan have the same ports."""
    for node, own in group_by_node(ranks).items():
        if len(own) > 1 and own[0].container.network == HOST:
            names = " and ".join(item.name for item in own)
            text = f"node {node}: {names} would have the same ports in the node's own network"
            raise InputError(text, hint="use --format ansible, compose or slurm, or a node for each server")


def _make_templates(
    ranks: Sequence[Placed], ports: Mapping[str, int], node_addresses: Sequence[str]
) -> tuple[_Object, _Object | None]:
    """Return the leader's template and the workers'. Raises InputError if the workers need more than one."""
    leader, *workers = (pods.make_pod_template(item, ports, node_addresses) for item in ranks)
    for place, worker in enumerate(workers[1:], 2):
        if worker != workers[0]:
            raise InputError(
                f"{ranks[0].replica.group}-{ranks[0].replica.number}: ranks 1 and {place} differ in more than their"
                " number and address, but a LeaderWorkerSet has one template for all workers",
                hint="use --format ansible or compose, or a group of two nodes",
            )
    return leader, workers[0] if workers else None


def _make_workload(
    name: str, leader: _Object, worker: _Object | None, replicas: Sequence[tuple[Placed, ...]]
) -> Workload:
    item = Workload(name_of(name), tuple(replicas), leader, worker)
    spread = _make_spread_rule(item)
    placed_leader = _place_on_nodes(item, leader, [ranks[0] for ranks in replicas], spread)
    worker_ranks = [rank for ranks in replicas for rank in ranks[1:]]
    return item._replace(
        leader=placed_leader, worker=_place_on_nodes(item, worker, worker_ranks, spread) if worker else None
    )


def _place_on_nodes(item: Workload, template: _Object, ranks: Sequence[Placed], spread: _Object) -> _Object:
    """Return a template on the plan's nodes, with the workload's label."""
    nodes = sorted({rank.rank.node for rank in ranks})
    term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": nodes}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    metadata = {"labels": {**template["metadata"]["labels"], WORKLOAD: item.name}}
    return {"metadata": metadata, "spec": {**template["spec"], "affinity": affinity | spread}}


def _make_spread_rule(item: Workload) -> _Object:
    """Return the rule that no two pods share a node, if the plan puts each on its own."""
    nodes = [rank.rank.node for ranks in item.replicas for rank in ranks]
    if len(nodes) == 1 or len(set(nodes)) < len(nodes):
        return {}
    term = {"labelSelector": {"matchLabels": item.labels}, "topologyKey": HOSTNAME}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _make_workload_objects(item: Workload) -> list[_Object]:
    """Return a workload's own objects."""
    if item.size > 1:
        return [
            _make_object(
                "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", item.name, item.labels, _make_leader_worker_set(item)
            )
        ]
    return [
        _make_cache_claim(item),
        _make_object("Deployment", "apps/v1", item.name, item.labels, _make_deployment(item)),
    ]


def _make_deployment(item: Workload) -> _Object:
    volume = {"name": pods.CACHE_VOLUME, "persistentVolumeClaim": {"claimName": item.name}}
    spec = item.leader["spec"]
    return {
        "replicas": len(item.replicas),
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
        },  # no spare devices
        "selector": {"matchLabels": item.labels},
        "template": {**item.leader, "spec": {**spec, "volumes": [*spec["volumes"], volume]}},
    }


def _make_leader_worker_set(item: Workload) -> _Object:
    """Return a LeaderWorkerSet's specification: if one pod of a group restarts, the group does."""
    templates = {"leaderTemplate": item.leader, "workerTemplate": item.worker} if item.worker else {}
    claim = {"metadata": {"name": pods.CACHE_VOLUME}, "spec": _make_storage_request("ReadWriteOnce")}
    return {
        "replicas": len(item.replicas),
        "startupPolicy": "LeaderCreated",
        "rolloutStrategy": {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": {"maxSurge": 0, "maxUnavailable": 1},
        },
        "networkConfig": {"subdomainPolicy": "Shared"},
        "leaderWorkerTemplate": {
            "size": item.size,
            "restartPolicy": "RecreateGroupOnPodRestart",
            **(templates or {"workerTemplate": item.leader}),
            "volumeClaimTemplates": [claim],
        },
    }


def _make_disaggregated_set(split: Sequence[Workload]) -> _Object:
    """Return one set with a role for each workload."""
    roles = [{"name": item.name, "spec": _make_leader_worker_set(item)} for item in split]
    return _make_object("DisaggregatedSet", "disaggregatedset.x-k8s.io/v1", "vllm", {}, {"slices": 1, "roles": roles})


def _make_cache_claim(item: Workload) -> _Object:
    """Return the claim of a Deployment's cache; several pods need a volume that several nodes can mount."""
    spec = _make_storage_request("ReadWriteMany" if len(item.replicas) > 1 else "ReadWriteOnce")
    return _make_object("PersistentVolumeClaim", "v1", item.name, item.labels, spec)


def _make_storage_request(mode: str) -> _Object:
    return {"accessModes": [mode], "resources": {"requests": {"storage": CACHE_SIZE}}}


def _make_disruption_budget(item: Workload) -> _Object:
    """Return the budget with which a drained node ends one pod of a workload at a time."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": item.labels}}
    return _make_object("PodDisruptionBudget", "policy/v1", item.name, item.labels, spec)


def _make_object(
    kind_: str, version: str, name: str, labels: Mapping[str, str], spec: _Object | None = None
) -> _Object:
    object_labels = {**labels} or {"app.kubernetes.io/name": "vllm"}
    return {
        "apiVersion": version,
        "kind": kind_,
        "metadata": {"name": name, "labels": object_labels},
        **({} if spec is None else {"spec": spec}),
    }


# --- services -------------------------------------------------------------------------------------------------------


def _list_groups(workloads: Iterable[Workload]) -> list[str]:
    return sorted({item.first.replica.group for item in workloads})


def _make_group_service(group: str, workloads: Iterable[Workload], *, headless: bool) -> _Object:
    """Return the service of a group's leaders, not called as a LeaderWorkerSet, which makes one of its own name.

    Behind a router it is headless: each pod's address for metrics, and no second balancer.
    """
    first = next(item.first for item in workloads if item.first.replica.group == group)
    spec: _Object = {
        "selector": pods.make_pod_labels(first),
        "ports": [
            {"name": pods.make_port_name(purpose), "port": port["containerPort"], "targetPort": port["name"]}
            for purpose, port in _list_client_ports(workloads, group)
        ],
    }
    return _make_object(
        "Service",
        "v1",
        name_of(f"{group}-api"),
        pods.make_pod_labels(first),
        spec | ({"clusterIP": "None"} if headless else {}),
    )


def _list_client_ports(workloads: Iterable[Workload], group: str) -> Iterator[tuple[str, _Object]]:
    """Yield the ports that clients and monitoring use."""
    leader = next(item.leader for item in workloads if item.first.replica.group == group)
    for port in leader["spec"]["containers"][0]["ports"]:
        if port["name"] in ("api", "status"):
            yield port["name"], port


def _make_network_policy(workloads: Iterable[Workload], *, open_to_clients: bool) -> _Object:
    """Return who reaches the servers: each other and the router at every port, all others at the status port.

    Without a router, clients reach the API too. It has no effect on pods with the node's network.
    """
    names = (SERVER, f"{SERVER}-router", verify_job.NAME)
    chosen = [{"matchLabels": {"app.kubernetes.io/name": name}} for name in names]
    open_ports = ("api", "status") if open_to_clients else ("status",)
    ports = {
        port["containerPort"]
        for item in workloads
        for port in _list_container_ports(item)
        if port["name"] in open_ports
    }
    everyone = {"ports": [{"port": port, "protocol": "TCP"} for port in sorted(ports)]}
    spec = {
        "podSelector": chosen[0],
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": labels} for labels in chosen]}, everyone],
    }
    return _make_object("NetworkPolicy", "networking.k8s.io/v1", SERVER, {}, spec)


def _list_container_ports(item: Workload) -> list[_Object]:
    templates = [item.leader, *([item.worker] if item.worker else [])]
    return [port for template in templates for port in template["spec"]["containers"][0]["ports"]]


# --- the router -----------------------------------------------------------------------------------------------------


def _make_router_objects(router: RouterPlan, workloads: Sequence[Workload], secrets: Sequence[str]) -> list[_Object]:
    labels = {"app.kubernetes.io/name": f"{SERVER}-router", WORKLOAD: ROUTER}
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    subject = {"kind": "ServiceAccount", "name": ROUTER}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ROUTER}
    ports = [{"name": "http", "port": router.port, "targetPort": "http"}]
    return [
        _make_object("ServiceAccount", "v1", ROUTER, labels),
        _make_object("Role", "rbac.authorization.k8s.io/v1", ROUTER, labels) | {"rules": [rule]},
        _make_object("RoleBinding", "rbac.authorization.k8s.io/v1", ROUTER, labels)
        | {"roleRef": role, "subjects": [subject]},
        _make_object("Service", "v1", ROUTER, labels, {"selector": labels, "ports": ports}),
        _make_object(
            "Deployment", "apps/v1", ROUTER, labels, _make_router_deployment(router, workloads, labels, secrets)
        ),
    ]


def _make_router_deployment(
    router: RouterPlan, workloads: Sequence[Workload], labels: Mapping[str, str], secrets: Sequence[str]
) -> _Object:
    term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [router.node]}]}
    pod = {
        "serviceAccountName": ROUTER,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": PRESTOP_SECONDS + STOP_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}},
        "containers": [_make_router_container(router, workloads, secrets)],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    return {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }


def _make_router_container(router: RouterPlan, workloads: Sequence[Workload], secrets: Sequence[str]) -> _Object:
    """Return the router's container. Not /health: it fails as soon as one of the servers is down.

    The router requires its key for every path, and a manifest may not have it; so a program asks, in the container.
    """
    words = [EVERY_ADDRESS if word == router.address else word for word in list_router_words(router)]
    namespace = {"name": NAMESPACE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}
    return {
        "name": ROUTER,
        "image": router.image,
        **pods.make_pull_policy(router.image),
        "command": [*ENTRYPOINT_WORDS],
        "args": [*_remove_server_lists(words), *_list_discovery_words(words, workloads)],
        "env": [namespace, *(from_secret(name, KEY_SECRET, optional=False) for name in secrets)],
        "ports": [{"name": "http", "containerPort": router.port, "protocol": "TCP"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": TMP}],
        "startupProbe": _make_probe(router, "/liveness", START_SECONDS // ASK_EVERY),
        "readinessProbe": _make_probe(router, "/readiness", 1),
        "livenessProbe": _make_probe(router, "/liveness", 3),
    }


def _make_probe(router: RouterPlan, path: str, failures: int) -> _Object:
    return {
        "exec": {"command": [*make_router_check(router, LOOPBACK, path)]},
        "periodSeconds": ASK_EVERY,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _remove_server_lists(words: Sequence[str]) -> Iterator[str]:
    """Yield the router's words without the lists of servers. Raises InputError for what labels cannot say."""
    listing = False
    for word in words:
        if word.startswith("--"):
            listing = word.partition("=")[0] in LISTS
        if not listing:
            yield double_dollars(word)
        elif not word.startswith("--") and not word.startswith(("http://", "https://")):
            raise InputError(
                f"router: found {word!r} in a list of servers, expected addresses: labels cannot carry it",
                hint="use --format ansible or compose",
            )


def _list_discovery_words(words: Sequence[str], workloads: Sequence[Workload]) -> Iterator[str]:
    """Yield the words with which the router finds the pods of the roles that it listed (vllm-router's --help)."""
    roles = [role for flag, role in LISTS.items() if any(word.partition("=")[0] == flag for word in words)]
    ports = {
        port["containerPort"]
        for item in workloads
        for port in item.leader["spec"]["containers"][0]["ports"]
        if port["name"] == "api"
    }
    yield from ("--service-discovery", "--service-discovery-namespace", f"$({NAMESPACE})")
    yield from ("--service-discovery-port", str(*ports))
    for role in roles:
        flag = "--selector" if role == "serve" else f"--{role}-selector"
        yield from (flag, "app.kubernetes.io/name=vllm", f"{pods.COMPONENT}={role}")
