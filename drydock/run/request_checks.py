"""Options of `run` that contradict each other, the row or the form in which the container is printed."""

from __future__ import annotations

import re

from drydock.config.matrix import read_matrix
from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.core.project import Project
from drydock.model.running import MODELS
from drydock.model.variant import Variant
from drydock.run import access, user_options
from drydock.run.container import FOR_BUCKETS, INSTEAD, MODEL_FLAG, RunRequest
from drydock.run.machine import Machine
from entrypoints.core.redact import redact_text
from entrypoints.model.mounted_models import FOLDER, MountedModels, find_mounted_models

_CLASS = re.compile(r"(?!.*(?:[.-]\.|\.-))[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
"""A DNS subdomain, as the API requires it of a device class."""

WITHOUT_NAME = (user_options.SERVE, "plan", "warm", "bench")
"""Verbs that serve or plan the only model that there is, if none is named."""


def check_request(request: RunRequest, form: str) -> None:
    """Raise InputError for options that do not go together."""
    verb, _ = user_options.split_verb(request.arguments)
    if form not in ("docker", "compose") and request.stand_ins:
        raise InputError("--stand-ins: a stand-in stays on this machine", hint="--format docker or compose starts it")
    if form == "kubernetes" and (request.cpuset_cpus or request.cpuset_mems):
        text = "--cpuset-cpus and --cpuset-mems: a pod's CPUs are the kubelet's to choose"
        raise InputError(text, hint="its static CPU manager policy gives a pod whole cores of one NUMA node")
    if form == "compose" and request.cpuset_mems:
        raise InputError("--cpuset-mems: Compose has no key for it", hint="--format docker, or leave it out")
    _check_cluster(request, verb, cluster=form == "kubernetes")


def take_model_of_machine(variant: Variant, request: RunRequest, machine: Machine, form: str) -> RunRequest:
    """Return a request without --model with the only model below /models of this machine, if it has one.

    Raises InputError for a server without a model.
    """
    verb, words = user_options.split_verb(request.arguments)
    names_model = words[:1] != () and not words[0].startswith("-")
    names_model = names_model or any(access.value_of(words, flag) for flag in INSTEAD)
    if request.model or names_model or verb not in WITHOUT_NAME or _has_models(variant, request):
        return request
    mounted_models = find_mounted_models(str(machine.root / MODELS.strip("/")))
    if form == "docker" and mounted_models.has_one:
        return _mount_models(request, mounted_models)  # a manifest is for other machines
    if verb != user_options.SERVE:
        return request
    lack = mounted_models.lack if form == "docker" else "found none, expected a folder or a hub id"
    example = f"./inv run --target {variant.id} --model {mounted_models.example}"
    raise InputError(f"--model: {lack}", hint=f"{example} names one; -- VERB runs something else")


def _has_models(variant: Variant, request: RunRequest) -> bool:
    """Return whether the container has a choice of its own: by its row, what the project adds, or the user's mounts."""
    targets = (user_options.parse_volume(text).target for text in request.volumes)
    is_mounted = any(f"{target}/".startswith(f"{MODELS}/") for target in targets)
    is_named = MODEL_FLAG in {item.setting for item in variant.settings}
    is_moved = any(text.partition("=")[0] == FOLDER for text in request.env)
    return is_mounted or is_named or is_moved or bool(variant.additions.files or variant.additions.dockerfile)


def _mount_models(request: RunRequest, mounted_models: MountedModels) -> RunRequest:
    """Return the request with the folder and its only model.

    The whole folder is mounted: what a snapshot of a hub's cache has are links to files next to it.
    """
    verb, words = user_options.split_verb(request.arguments)
    path = mounted_models.models[0].path
    log(mounted_models.describe_choice())
    return request.model_copy(
        update={
            "volumes": (*request.volumes, f"{mounted_models.folder}:{MODELS}:ro"),
            "arguments": (verb, MODEL_FLAG, MODELS + path.removeprefix(mounted_models.folder), *words),
        }
    )


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
