"""A plan's objects in a cluster → the Job that asks for the known answer, in a folder with a kustomization. Pure.

It is not among the objects that `kubectl apply -k FOLDER` applies: a Job runs once, and asks when the servers are
ready. It runs the image's `health --topology`, which asks each ready pod of the groups' Services. An image of another
checkout may lack it: then the program is a ConfigMap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drydock.core.dollars import double_dollars
from drydock.core.files import format_compact_json
from drydock.run.docker_command import ENTRYPOINT_WORDS, PYTHON, USER
from drydock.run.kubernetes_manifest import KEY_SECRET, from_secret
from drydock.topology import topology_keys
from drydock.topology.answer_program import make_answer_program
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.ports import API
from drydock.topology.render import pods
from drydock.topology.render.quoted_text import format_yaml
from entrypoints.serve.topology_answer import FLAG, make_server_url

FOLDER = "verify"
JOB = "verify"
NAME = "vllm-verify"
"""The label app.kubernetes.io/name of its pod, which the NetworkPolicy admits."""
PROGRAM = "known_answer.py"
MOUNT = "/verify"
SECONDS = 1800
"""After which the cluster ends the Job."""


def render_verify_job(
    plan: TopologyPlan, objects: Sequence[Mapping[str, Any]], *, has_verb: bool = True
) -> dict[str, str]:
    """Return path → content of the Job's folder; `objects` have the Services of the plan's groups.

    `has_verb`: whether `health` of the image that asks has --topology.
    """
    kustomization: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["job.yaml"],
    }
    job = _make_job(plan, format_compact_json(make_pods_question(plan, objects)))
    texts = {}
    if not has_verb:
        kustomization |= {"configMapGenerator": [{"name": NAME, "files": [PROGRAM]}]}
        _run_program(job["spec"]["template"]["spec"])
        texts[PROGRAM] = make_answer_program()
    texts |= {"kustomization.yaml": format_yaml(kustomization), "job.yaml": format_yaml(job)}
    return {f"{FOLDER}/{name}": text for name, text in texts.items()}


def make_pods_question(plan: TopologyPlan, objects: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what `health --topology` asks: the pods behind each group's headless Service, or the Service itself."""
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


def choose_asking_image(plan: TopologyPlan) -> str:
    """Return the image whose container asks: the router's, or the servers'."""
    return plan.router.image if plan.router else plan.image


def _run_program(pod: dict[str, Any]) -> None:
    """Change the Job's pod to run the program of the ConfigMap, with the same arguments."""
    (container,) = pod["containers"]
    container["command"] = [PYTHON, "-I", "-S", f"{MOUNT}/{PROGRAM}"]
    container["volumeMounts"] = [{"name": "program", "mountPath": MOUNT, "readOnly": True}]
    pod["volumes"] = [{"name": "program", "configMap": {"name": NAME}}]


def _make_job(plan: TopologyPlan, question: str) -> dict[str, Any]:
    image = choose_asking_image(plan)
    container = {
        "name": JOB,
        "image": image,
        **pods.make_pull_policy(image),
        "command": [*ENTRYPOINT_WORDS, "health"],
        "args": [FLAG, double_dollars(question)],
        "env": [from_secret(name, KEY_SECRET, optional=False) for name in topology_keys.list_router_secrets(plan)],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
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
