"""A plan's objects in a cluster → the Job that asks for the known answer, in a folder with a kustomization. Pure.

It is not among the objects that `kubectl apply -k FOLDER` applies: a Job runs once, and asks when the servers are
ready. Its program is known_answer.py as it is, in a ConfigMap. It asks each ready pod of the groups' Services.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drydock.core.dollars import double_dollars
from drydock.core.files import format_compact_json
from drydock.run.docker import PYTHON, USER
from drydock.run.kubernetes import KEY_SECRET, from_secret
from drydock.topology import known_answer, topology_keys
from drydock.topology.known_answer import make_server_url
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.ports import API
from drydock.topology.render import pods
from drydock.topology.render.quoted_text import format_yaml

FOLDER = "verify"
JOB = "verify"
NAME = "vllm-verify"
"""The label app.kubernetes.io/name of its pod, which the NetworkPolicy admits."""
PROGRAM = Path(known_answer.__file__)
MOUNT = "/verify"
SECONDS = 1800
"""After which the cluster ends the Job."""


def render_verify_job(plan: TopologyPlan, objects: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return path → content of the Job's folder; `objects` have the Services of the plan's groups."""
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["job.yaml"],
        "configMapGenerator": [{"name": NAME, "files": [PROGRAM.name]}],
    }
    texts = {
        "kustomization.yaml": format_yaml(kustomization),
        "job.yaml": format_yaml(_make_job(plan, format_compact_json(make_pods_question(plan, objects)))),
        PROGRAM.name: PROGRAM.read_text(),
    }
    return {f"{FOLDER}/{name}": text for name, text in texts.items()}


def make_pods_question(plan: TopologyPlan, objects: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what known_answer.py asks: the pods behind each group's headless Service, or the Service itself."""
    services = {
        item["spec"]["selector"][pods.GROUP]: item
        for item in objects
        if item["kind"] == "Service" and pods.GROUP in item["spec"]["selector"]
    }
    servers = []
    for group, service in services.items():
        replicas = [replica for replica in plan.replicas if pods.format_group_label(replica) == group]
        port = next(entry["port"] for entry in service["spec"]["ports"] if entry["name"] == API)
        name = service["metadata"]["name"]
        headless = service["spec"].get("clusterIP") == "None"
        count = len(replicas) if headless else 0
        servers.append({"role": replicas[0].role, "name": group, "host": name, "port": port, "count": count})
    return {"servers": servers, "router": make_server_url("router", plan.router.port) if plan.router else ""}


def _make_job(plan: TopologyPlan, question: str) -> dict[str, Any]:
    image = plan.router.image if plan.router else plan.image
    container = {
        "name": JOB,
        "image": image,
        **pods.make_pull_policy(image),
        "command": [PYTHON, "-I", "-S", f"{MOUNT}/{PROGRAM.name}"],
        "args": [double_dollars(question)],
        "env": [from_secret(name, KEY_SECRET, optional=False) for name in topology_keys.list_router_secrets(plan)],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "program", "mountPath": MOUNT, "readOnly": True}],
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "program", "configMap": {"name": NAME}}],
    }
    labels = {"app.kubernetes.io/name": NAME}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": JOB, "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": SECONDS,
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
