"""Options of `run` that contradict each other, the row or the form in which the container is printed."""

from __future__ import annotations

import re

from drydock.config.matrix import read_matrix
from drydock.core.errors import InputError
from drydock.core.project import Project
from drydock.model.variant import Variant
from drydock.run import access, user_options
from drydock.run.container import FOR_BUCKETS, RunRequest
from entrypoints.core.redact import redact_text

_CLASS = re.compile(r"(?!.*(?:[.-]\.|\.-))[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
"""A DNS subdomain, as the API requires it of a device class."""


def check_request(request: RunRequest, form: str) -> None:
    """Raise InputError for options that do not go together."""
    verb, _ = user_options.split_verb(request.arguments)
    if verb == user_options.SERVE and not request.model:
        raise InputError("--model: found none, expected a folder or a hub id", hint="-- VERB runs something else")
    if form not in ("docker", "compose") and request.stand_ins:
        raise InputError("--stand-ins: a stand-in stays on this machine", hint="--format docker or compose starts it")
    if form == "kubernetes" and (request.cpuset_cpus or request.cpuset_mems):
        text = "--cpuset-cpus and --cpuset-mems: a pod's CPUs are the kubelet's to choose"
        raise InputError(text, hint="its static CPU manager policy gives a pod whole cores of one NUMA node")
    if form == "compose" and request.cpuset_mems:
        raise InputError("--cpuset-mems: Compose has no key for it", hint="--format docker, or leave it out")
    _check_cluster(request, verb, cluster=form == "kubernetes")


def check_bucket_scheme(project: Project, variant: Variant, model: str) -> None:
    """Raise InputError for a model in a bucket that the image does not read."""
    scheme = model.partition("://")[0]
    if scheme not in FOR_BUCKETS or scheme in variant.buckets:
        return
    rows = " or ".join(row.id for row in read_matrix(project) if scheme in row.buckets)
    raise InputError(
        f"--model {redact_text(model)}: {variant.id} reads no model from {scheme}://; these do: {rows}",
        hint="use one of them, or download the folder and name it",
    )


def _check_cluster(request: RunRequest, verb: str, *, cluster: bool) -> None:
    """Raise InputError for options that only a manifest has, or that it cannot have."""
    if not cluster and (request.monitor or request.device_class):
        raise InputError("--monitor, --dra: of a Kubernetes manifest only", hint="add --format kubernetes")
    if request.monitor and verb != user_options.SERVE:
        raise InputError(f"--monitor: {verb} has no metrics", hint="leave it out")
    if request.device_class and not _CLASS.fullmatch(request.device_class):
        raise InputError(f"--dra {request.device_class}: invalid name", hint="`kubectl get deviceclasses` lists them")
    if cluster and request.network not in ("", user_options.HOST):
        raise InputError(
            f"--network {request.network}: a pod is in the cluster's network, and has no other of the engine",
            hint="leave it out; --network host gives the pod the node's network",
        )
    if cluster and request.address:
        raise InputError(
            f"--port {access.bracket_address(request.address)}:{request.port}: a pod has no address of this machine",
            hint=f"--port {request.port}; the Service listens inside the cluster",
        )
