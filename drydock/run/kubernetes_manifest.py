"""A container → a Kubernetes Deployment, its Service and the PersistentVolumeClaim of its cache. Pure.

Something else than serving is a Job without a Service, which runs once.

Devices come from the vendor's device plugin. What a pod cannot request (ulimits, device files without a plugin, the
container runtime) is returned as remarks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from drydock.core.dollars import double_dollars
from drydock.core.yaml_writer import write_yaml
from drydock.run.access import API_KEY
from drydock.run.container import API_PORT, FOR_BUCKETS, FROM_THE_SHELL, STATUS_PORT, Bind, Container, is_local
from drydock.run.docker_command import (
    ASK_EVERY,
    CACHE,
    PYTHON,
    START_SECONDS,
    STOP_SECONDS,
    TMP,
    USER,
    binds_of,
    merge_variables,
)
from drydock.run.user_options import HOST

CACHE_SIZE = "200Gi"
"""Enough for one large model and its compiled code. Adapt it to the model."""
SECRET = "huggingface"  # noqa: S105 - its name
"""Has what docker and compose pass on from the shell (FROM_THE_SHELL), each under its own name, and each optional."""
BUCKET_SECRET = "bucket"  # noqa: S105 - its name
KEY_SECRET = "vllm-api-key"  # noqa: S105 - its name
"""Has the key that clients must send, as API_KEY. Without it, a pod that requires a key does not start.

The ranks of a server on several nodes have what they share there too: drydock/topology/topology_keys.py."""
IMAGE_VOLUMES = "an image volume, which Kubernetes 1.36 has, on nodes with containerd 2.1 or CRI-O"
"""Source: KEP-4639 (stable in 1.36; before, behind the gate ImageVolume), containerd's release 2.1.0."""
DEVICES = "devices"
"""Name of a pod's claim, and of the request in it."""
PRESTOP_SECONDS = 5
"""Between a pod's deletion and SIGTERM: kube-proxy and balancers learn that the pod gets no new request."""
PAUSE = (PYTHON, "-I", "-S", "-c")
"""Not each image has a `sleep`, nor has Kubernetes before 1.30."""
_ESCALATES = "SYS_ADMIN"
"""The API rejects allowPrivilegeEscalation: false together with this capability or privileged: true."""
POD_FIELDS = {
    "--env": "env",
    "--cap-add": "capabilities",
    "--security-opt": "securityContext",
    "--group-add": "supplementalGroups",
    "--mount": "hostPath",
    "--shm-size": "emptyDir for /dev/shm",
    "--ipc": "hostIPC",
    "--network": "hostNetwork",
    "--user": "runAsUser",
    "--privileged": "privileged",
    "--host": "args: --host",
}
"""Docker's option → the field of a pod. What is not here, a pod does not have."""


def kubernetes_text(container: Container) -> str:
    """Format the documents."""
    return write_yaml(*make_objects(container))


def make_objects(container: Container) -> tuple[dict[str, Any], ...]:
    """Return PersistentVolumeClaim, Deployment and Service; for what runs once, PersistentVolumeClaim and Job.

    Last come what the user asked for: a ResourceClaimTemplate, a PodMonitor.
    """
    more = (
        *((_make_claim_template(container),) if container.device_class else ()),
        *((_make_pod_monitor(container),) * container.monitor),
    )
    if container.ends_by_itself:
        return _make_volume_claim(container), _make_run_job(container), *more
    return _make_volume_claim(container), _make_server_deployment(container), _make_server_service(container), *more


def list_cluster_remarks(container: Container) -> Iterable[str]:
    """Yield what must be set up in the cluster, outside the manifest."""
    yield from _secret_remarks(container)
    devices = container.device_class or container.resource
    if container.ends_by_itself and devices:
        yield f"the Job waits until {container.count} of {devices} are free on a node"
    if is_local(container.image):
        yield f"image {container.image} exists on this machine only: push it, then --image (in a topology.yaml, image)"
    yield from _node_remarks(container)
    model_binds = [("model", container.model)] if container.model else []
    for what, bind in (*model_binds, *(("volume", bind) for bind in container.volumes)):
        if bind.kind == "image":
            yield f"{what} {bind.source}: {IMAGE_VOLUMES}"
        else:
            yield f"{what} {bind.source}: must exist on the node, or replace hostPath by a volume claim"
    for name in container.groups:
        if not name.isdigit():
            yield f"group {name}: left out; add its number in the nodes' /etc/group to supplementalGroups"


def _secret_remarks(container: Container) -> Iterable[str]:
    if container.key_required:
        yield (
            f"secret {KEY_SECRET}: the pod starts only with it; `kubectl create secret generic {KEY_SECRET}"
            f" --from-env-file=FILE` makes it of a file that sets {API_KEY}"
        )
    if {*container.downloads} - {*FROM_THE_SHELL}:
        yield f"secret {BUCKET_SECRET}: the pod takes {', '.join(container.downloads)} from it, if it has them"
    for name in _named_secrets(container):
        yield f"secret {secret_of(name)}: the pod starts only with it; its key {name} has the value of --env {name}"


def _node_remarks(container: Container) -> Iterable[str]:
    """Yield what the nodes must have."""
    if container.runtime:
        yield f"runtime {container.runtime}: make it the nodes' default, or set runtimeClassName"
    if container.ulimits:
        yield f"ulimits {', '.join(container.ulimits)}: a pod cannot set them; configure the nodes' container runtime"
    if container.device_class:
        yield f"device class {container.device_class}: needs Kubernetes 1.34, and the DRA driver that has it"
    elif container.devices and not container.resource:
        yield f"devices {', '.join(container.devices)}: a pod needs a device plugin for them; none is known"

    if container.monitor:
        yield "PodMonitor: needs the Prometheus operator, whose Prometheus must select it"


def _make_named_object(kind: str, version: str, container: Container, **fields: Any) -> dict[str, Any]:
    metadata = {"name": container.name, "labels": _make_selector_labels(container)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}


def _make_selector_labels(container: Container) -> dict[str, str]:
    """Return the labels that a Service selects pods by; a Job has others, or it would get requests."""
    name = "drydock-job" if container.ends_by_itself else "vllm"
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/instance": container.name}


def _make_volume_claim(container: Container) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": CACHE_SIZE}}}
    server = container.model_copy(update={"name": container.claim, "ends_by_itself": False})
    return _make_named_object("PersistentVolumeClaim", "v1", server, spec=spec)


def _make_server_service(container: Container) -> dict[str, Any]:
    ports = [{"name": "http", "port": container.port, "targetPort": "http"}]
    return _make_named_object(
        "Service", "v1", container, spec={"selector": _make_selector_labels(container), "ports": ports}
    )


def _make_claim_template(container: Container) -> dict[str, Any]:
    """Return the template of a pod's claim (https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/)."""
    exactly = {"deviceClassName": container.device_class, "allocationMode": "ExactCount", "count": container.count}
    spec = {"spec": {"devices": {"requests": [{"name": DEVICES, "exactly": exactly}]}}}
    return _make_named_object("ResourceClaimTemplate", "resource.k8s.io/v1", container, spec=spec)


def _make_pod_monitor(container: Container) -> dict[str, Any]:
    """Return what tells the Prometheus operator to read /metrics of vLLM and of the entrypoint."""
    ports = [{"port": port["name"]} for port in _list_pod_ports(container)]
    spec = {"selector": {"matchLabels": _make_selector_labels(container)}, "podMetricsEndpoints": ports}
    return _make_named_object("PodMonitor", "monitoring.coreos.com/v1", container, spec=spec)


def _make_server_deployment(container: Container) -> dict[str, Any]:
    template = {"metadata": {"labels": _make_selector_labels(container)}, "spec": _make_pod_spec(container)}
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},  # a second pod could get neither the devices nor the claim
        "selector": {"matchLabels": _make_selector_labels(container)},
        "template": template,
    }
    return _make_named_object("Deployment", "apps/v1", container, spec=spec)


def _make_run_job(container: Container) -> dict[str, Any]:
    """Return a Job that is tried once: a check that fails fails again, and a failed conversion leaves its log."""
    template = {
        "metadata": {"labels": _make_selector_labels(container)},
        "spec": {"restartPolicy": "Never", **_make_pod_spec(container)},
    }
    return _make_named_object("Job", "batch/v1", container, spec={"backoffLimit": 0, "template": template})


def _make_pod_spec(container: Container) -> dict[str, Any]:
    host = {
        "hostNetwork": container.network == HOST,
        "dnsPolicy": "ClusterFirstWithHostNet" if container.network == HOST else "",
        "hostIPC": container.ipc == "host",
    }
    claim = {"name": DEVICES, "resourceClaimTemplateName": container.name}
    return {
        **{key: value for key, value in host.items() if value},
        "terminationGracePeriodSeconds": PRESTOP_SECONDS + STOP_SECONDS,  # both begin with the pod's deletion
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # else a service named vllm sets VLLM_PORT, which vLLM reads
        **({"nodeSelector": dict(container.nodes)} if container.nodes else {}),
        **({"resourceClaims": [claim]} if container.device_class else {}),
        "securityContext": _pod_security(container),
        "containers": [_make_container_spec(container)],
        "volumes": list(_list_pod_volumes(container)),
    }


def _pod_security(container: Container) -> dict[str, Any]:
    user, _, group = container.user.partition(":")
    uid = int(user) if user.isdigit() else USER
    numbers = [int(name) for name in container.groups if name.isdigit()]
    unconfined = container.privileged or any(word.endswith("seccomp=unconfined") for word in container.security)
    context = {
        "runAsNonRoot": uid != 0,
        "runAsUser": uid,
        "runAsGroup": int(group) if group.isdigit() else 0,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "Unconfined" if unconfined else "RuntimeDefault"},
    }
    return context | ({"supplementalGroups": numbers} if numbers else {})


def _make_container_spec(container: Container) -> dict[str, Any]:
    resources: dict[str, Any] = {"limits": {container.resource: container.count}} if container.resource else {}
    resources = {"claims": [{"name": DEVICES}]} if container.device_class else resources
    return {
        "name": "vllm",
        "image": container.image,
        **({"imagePullPolicy": "Never"} if is_local(container.image) else {}),
        "args": [double_dollars(word) for word in container.arguments],
        **({} if container.ends_by_itself else {"ports": _list_pod_ports(container)}),
        "env": list(_list_pod_environment(container)),
        **({"resources": resources} if resources else {}),
        "securityContext": _make_security_context(container),
        **({} if container.ends_by_itself else _make_probes_and_hooks(container)),
        "volumeMounts": list(_volume_mounts(container)),
    }


def _list_pod_ports(container: Container) -> list[dict[str, Any]]:
    return [
        {"name": "http", "containerPort": _choose_container_port(container, API_PORT)},
        {"name": "status", "containerPort": _choose_container_port(container, STATUS_PORT)},
    ]


def _make_probes_and_hooks(container: Container) -> dict[str, Any]:
    """Return the probes of a server, and what happens before its end."""
    return {
        "startupProbe": _make_http_probe("/startupz", max(START_SECONDS, 60 * container.start_minutes) // ASK_EVERY),
        "readinessProbe": _make_http_probe("/readyz", 1),
        "livenessProbe": _make_http_probe("/livez", 3),
        "lifecycle": {"preStop": {"exec": {"command": [*PAUSE, f"import time; time.sleep({PRESTOP_SECONDS})"]}}},
    }


def _choose_container_port(container: Container, usual: int) -> int:
    """Return the port inside the container: with the host's network, the requested one."""
    return usual - API_PORT + container.port if container.network == HOST else usual


def _list_pod_environment(container: Container) -> Iterable[Mapping[str, Any]]:
    for name, value in merge_variables(container.env, container).items():
        yield {"name": name, "value": double_dollars(value)}
    for name in container.downloads:
        if name not in (*container.passed_names, *container.user_env):
            yield from_secret(name, secret_of(name), optional=True)
    for name in _named_secrets(container):
        yield from_secret(name, secret_of(name), optional=False)
    if container.key_required:
        yield from_secret(API_KEY, KEY_SECRET, optional=False)


def _named_secrets(container: Container) -> tuple[str, ...]:
    """Return the user's variables that a pod takes from secrets."""
    return tuple(name for name in container.passed_names if not (name == API_KEY and container.key_required))


def secret_of(name: str) -> str:
    """Return the name of the secret that has a variable's value, in lower case and with hyphens."""
    buckets = dict.fromkeys(chain(*FOR_BUCKETS.values()), BUCKET_SECRET)
    secrets = {**dict.fromkeys(FROM_THE_SHELL, SECRET), **buckets, API_KEY: KEY_SECRET}
    return secrets.get(name) or name.lower().replace("_", "-").strip("-") or "variable"


def from_secret(name: str, secret: str, *, optional: bool) -> dict[str, Any]:
    """Return a variable whose value is the key of the same name in a secret."""
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name, "optional": optional}}}


def _make_security_context(container: Container) -> dict[str, Any]:
    if container.privileged:
        return {"privileged": True, "readOnlyRootFilesystem": True}
    is_disabled = any(word.startswith("no-new-privileges") and word.endswith("false") for word in container.security)
    refused = is_disabled or _ESCALATES in container.capabilities
    capabilities = {"drop": ["ALL"]} | ({"add": list(container.capabilities)} if container.capabilities else {})
    return {
        "allowPrivilegeEscalation": refused,
        "readOnlyRootFilesystem": True,
        "capabilities": capabilities,
    }


def _make_http_probe(path: str, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "status"},
        "periodSeconds": ASK_EVERY,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _list_pod_volumes(container: Container) -> Iterable[Mapping[str, Any]]:
    yield {"name": "cache", "persistentVolumeClaim": {"claimName": container.claim}}
    yield {"name": "tmp", "emptyDir": {}}
    if container.shm:
        yield {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": convert_quantity(container.shm)}}
    for number, bind in enumerate(binds_of(container)):
        image = {"image": {"reference": bind.source, "pullPolicy": "IfNotPresent"}}
        source = image if bind.kind == "image" else {"hostPath": {"path": bind.source}}
        yield {"name": f"{_describe_volume_source(bind)}-{number}", **source}


def _volume_mounts(container: Container) -> Iterable[Mapping[str, Any]]:
    yield {"name": "cache", "mountPath": CACHE}
    yield {"name": "tmp", "mountPath": TMP}
    if container.shm:
        yield {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108 - the container's own
    for number, bind in enumerate(binds_of(container)):
        yield {
            "name": f"{_describe_volume_source(bind)}-{number}",
            "mountPath": bind.target,
            "readOnly": bind.read_only,
        }


def _describe_volume_source(bind: Bind) -> str:
    """Return where a volume is from, for its name."""
    return "image" if bind.kind == "image" else "host"


def convert_quantity(size: str) -> str:
    """Convert a docker size (16g, 512m) to a Kubernetes quantity (16Gi, 512Mi)."""
    number = size.rstrip("bBkKmMgGtT")
    unit = size[len(number) :].lower().removesuffix("b")
    return f"{number}{unit.upper()}i" if unit else number
