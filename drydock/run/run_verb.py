"""Start an image on this machine, or print its command, compose file, manifest or unit. IO.

drydock/run/container.py decides the container's options. What is printed goes to standard output, reasons and
remarks to standard error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from drydock.build.build_job import OWN, STAND_INS
from drydock.config.matrix import find_variant, read_matrix
from drydock.core.console import log, write_output
from drydock.core.errors import HostError, InputError, suggest_nearest
from drydock.core.files import format_json
from drydock.core.project import Project
from drydock.model.variant import Variant
from drydock.run import (
    access,
    apptainer,
    auto,
    kubernetes_manifest,
    node_selectors,
    option_reasons,
    podman,
    standin_run,
    user_options,
)
from drydock.run import docker_command as manifests
from drydock.run.container import (
    DIGEST,
    FOR_BUCKETS,
    LISTENING,
    NO_PATH,
    Container,
    RunRequest,
    is_local,
    list_known_variables,
    make_container,
    name_of,
)
from drydock.run.engine import AS_GZIP, Here
from entrypoints.core.redact import redact_argv, redact_text
from entrypoints.request.access import ALLOWED_HOSTS

WRITERS: dict[str, Callable[[Container], str]] = {
    "docker": manifests.shell_text,
    "compose": manifests.compose_text,
    "kubernetes": kubernetes_manifest.kubernetes_text,
    "quadlet": podman.quadlet_text,
    "apptainer": apptainer.apptainer_text,
}
"""Format → the function that writes it."""
DATA: dict[str, Callable[[Container], Any]] = {
    "docker": manifests.docker_argv,
    "compose": manifests.compose_project,
    "kubernetes": kubernetes_manifest.make_objects,
    "quadlet": podman.make_quadlet_unit,
    "apptainer": apptainer.apptainer_argv,
}
"""Format → the function that returns the same as data, for --json."""
REMARKS: dict[str, Callable[[Container], Iterable[str]]] = {
    "kubernetes": kubernetes_manifest.list_cluster_remarks,
    "quadlet": podman.list_unit_remarks,
    "apptainer": apptainer.list_apptainer_remarks,
}
"""Format → the function that returns what must be set up outside of what is printed."""

_CLASS = re.compile(r"(?!.*(?:[.-]\.|\.-))[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
"""A DNS subdomain, as the API requires it of a device class."""


class How(NamedTuple):
    """What to do with the container."""

    form: str = "docker"
    """Of WRITERS. Formats other than docker are only printed."""
    only_print: bool = False
    detach: bool = False
    """Start it and return at once."""
    json: bool = False

    @property
    def prints(self) -> bool:
        """Return whether nothing is started."""
        return self.only_print or self.form != "docker"


class Building(Here):
    """Like Here, but builds an image of ours that this checkout has not built: for `--target auto` and stand-ins."""

    def find_present_image(self, repository: str) -> str:
        """Return the image of a repository; build it first if it is missing. Raises what a build raises."""
        from drydock.build import build, pins  # noqa: PLC0415 - slow, and most runs find their image
        from drydock.build import standins as stubs  # noqa: PLC0415 - as above
        from drydock.build.build_job import prepare_job  # noqa: PLC0415 - as above
        from drydock.engine import daemon  # noqa: PLC0415 - as above

        daemon.ensure_engine()
        variant = repository.rpartition("/")[2]
        if repository.startswith(STAND_INS):  # at once, if it is there; a build with --context has the same name
            return build.build_image(stubs.stand_in(self.project, variant)).image
        image = self.find_own_image(repository)
        if image and self.image(image):
            return image
        log(f"{repository}: not built yet; building it")
        return build.build_image(pins.pin_missing(prepare_job(self.project, variant))).image


PLAIN = How()


def run_on_engine(project: Project, target: str, request: RunRequest, how: How = PLAIN, *, here: Here) -> int:
    """Start a target with docker, or print its command or manifest; return the exit code.

    Raises TargetError, InputError, and HostError for cards that this machine does not have; before a start also
    EngineError, and HostError for all that this machine lacks.
    """
    variant = find_variant(read_matrix(project), target)
    if request.stand_ins:
        variant, request = standin_run.stand_in(variant, request, here.machine)
    _check_run_options(request, how)
    _check_bucket(project, variant, request.model)
    if how.form == "apptainer":
        request = apptainer.adapt_request(request, variant.accelerator)
    if not request.image and variant.is_adopted and not request.stand_ins:
        request = _take_adopted(variant, request, here)
    ours = "" if request.image else f"{STAND_INS if request.stand_ins else OWN}{variant.id}"
    if ours:
        request = request.model_copy(update={"image": here.find_own_image(ours) or f"{ours}:latest"})
    container, keys = _without_literal_key(variant, request, how, here)
    container = _with_allowed_hosts(container)
    user_options.check_volumes([bind.target for bind in container.volumes], manifests.list_mount_targets(container))
    if how.prints:
        container = _for_cluster(variant, target, request, container, here) if how.form == "kubernetes" else container
        container = podman.use_cdi_devices(container) if how.form == "quadlet" else container
        _print_manifest(variant, _in_text(variant, container), how)
        return 0
    _set_key(container, request, keys)
    _check_named(container)
    check_present(container)
    _log_lines(_list_run_remarks(variant, container, how))
    _log_lines([f"warning: {limit}" for limit in here.engine_limits()])
    container = require_image(container, target, here, ours)
    shown_container = _in_text(variant, container).model_copy(update={"arguments": redact_argv(container.arguments)})
    terminal = container.once and not how.detach and here.terminal()
    lifetime = ("--detach",) if how.detach else ("--rm", *(("--interactive", "--tty") if terminal else ()))
    log(manifests.docker_text(shown_container, lifetime=lifetime))
    argv = manifests.docker_argv(container, lifetime=lifetime)
    if not how.detach:
        return here.attach(argv, container, terminal=terminal)
    _report_started(here.detach(argv, container), container, json=how.json)
    return 0


def _take_adopted(variant: Variant, request: RunRequest, here: Here) -> RunRequest:
    """Return the request with the image that `adopt` wrote into a registry, unless this checkout has it built."""
    base = variant.base
    if base.kind != "image" or not base.written_to or here.find_own_image(f"{OWN}{variant.id}"):
        return request
    return request.model_copy(update={"image": base.written_to})


def run_target(project: Project, target: str, request: RunRequest, how: How) -> int:
    """Start what --target names on this machine, or print it; return the exit code.

    Raises what `run_on_engine` raises.
    """
    machine = Building(project) if request.stand_ins or target == auto.AUTO else Here(project)
    # A manifest is for that host's kind anyway, and a stand-in runs on it.
    chosen_by = request.host if target == auto.AUTO or not (request.stand_ins or how.form == "kubernetes") else ""
    return run_on_engine(project, auto.resolve_id(project, target, chosen_by), request, how, here=machine)


def check_present(container: Container) -> None:
    """Raise HostError with all devices, folders and files that the container needs and this machine lacks."""
    if not container.missing:
        return
    paths = [text for text in container.missing if text.startswith(NO_PATH)]
    devices = "load the driver" if len(paths) < len(container.missing) else ""
    folders = "name a folder or file of this machine, or a model's hub id, OWNER/NAME" if paths else ""
    hint = "; ".join(filter(None, [devices, folders, "--print shows the command"]))
    raise HostError(*(f"{text} on this machine" for text in container.missing), hint=hint)


def require_image(container: Container, target: str, here: Here, ours: str = "") -> Container:
    """Check that this machine has what the container needs; return the container with its image's digest set.

    An image of a registry is pulled. With `ours`, a repository, it is the image that this checkout has built: `latest`
    may be another checkout's. Raises HostError with everything that is missing, or EngineError.
    """
    check_present(container)
    image_name = here.find_present_image(ours) if ours else container.image
    container = container.model_copy(update={"image": image_name or container.image})
    image = here.image(image_name) if image_name else None
    if not image and is_local(container.image):
        raise HostError(f"{container.image}: image not found", hint=_how_to_get(container.image, target, here))
    if not image:
        _log_lines(too_old(container, here.docker_version()))
        here.pull(container)
        image = here.image(container.image)
    if image and image.stand_in:
        log(f"{container.image}: contains stand-ins for {image.stand_in}: it is not what its lock pins")
    if container.model and container.model.kind == "image" and not here.image(container.model.source):
        here.pull(container.model_copy(update={"image": container.model.source}))
    digest_variable = {DIGEST: image.digest} if image else {}
    return container.model_copy(update={"env": {**digest_variable, **container.env}})


def too_old(container: Container, version: str) -> tuple[str, ...]:
    """Return a line that says that the engine cannot unpack the image, and what to do. An unknown version says nothing.

    It is no error: whoever published the image may have compressed it otherwise.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    oldest_version = tuple(map(int, container.oldest.docker.split(".")))
    if not match or (int(match[1]), int(match[2])) >= oldest_version:
        return ()
    problem = f"this engine is Docker {version}, which cannot unpack {container.compression} layers"
    return (f"warning: {problem}: update it to {container.oldest.docker} or later, or {AS_GZIP}",)


def _how_to_get(image: str, target: str, here: Here) -> str:
    stand_in_image = here.find_own_image(STAND_INS + image.removeprefix(OWN).partition(":")[0])
    advice = f"; --image {stand_in_image} runs the one built with stand-ins" if stand_in_image else ""
    return f"run `./inv build --target {target}`{advice}"


def _check_run_options(request: RunRequest, how: How) -> None:
    """Raise InputError for options that do not go together."""
    if how.form not in WRITERS:
        raise InputError(f"--format {how.form}: unknown format", hint=suggest_nearest(how.form, WRITERS))
    if how.detach and how.prints:
        raise InputError("--detach: nothing is started by --print or another --format", hint="leave one of them out")
    if how.json and not (how.detach or how.prints):
        raise InputError("--json: standard output is the container's", hint="add --detach or --print")
    verb, _ = user_options.split_verb(request.arguments)
    if verb == user_options.SERVE and not request.model:
        raise InputError("--model: found none, expected a folder or a hub id", hint="-- VERB runs something else")
    if how.form not in ("docker", "compose") and request.stand_ins:
        raise InputError("--stand-ins: a stand-in stays on this machine", hint="--format docker or compose starts it")
    if how.form == "kubernetes" and (request.cpuset_cpus or request.cpuset_mems):
        text = "--cpuset-cpus and --cpuset-mems: a pod's CPUs are the kubelet's to choose"
        raise InputError(text, hint="its static CPU manager policy gives a pod whole cores of one NUMA node")
    if how.form == "compose" and request.cpuset_mems:
        raise InputError("--cpuset-mems: Compose has no key for it", hint="--format docker, or leave it out")
    _check_cluster(request, verb, cluster=how.form == "kubernetes")


def _check_bucket(project: Project, variant: Variant, model: str) -> None:
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


def _for_cluster(variant: Variant, target: str, request: RunRequest, container: Container, here: Here) -> Container:
    """Return the container of a manifest: with values for the user's variables, and the labels of its nodes."""
    container = container.model_copy(update={"name": name_of(container.name)})
    container, selects = (
        _with_values(container, list_known_variables(variant)),
        bool(node_selectors.list_node_kinds(variant)),
    )
    facts = here.facts(variant, request.host) if request.host or (selects and container.native) else {}
    container = node_selectors.place_on_nodes(variant, target, request, container, facts) if selects else container
    return container.model_copy(
        update={"nodes": {**container.nodes, **node_selectors.make_architecture_label(variant)}}
    )


# --- the API key ----------------------------------------------------------------------------------------------------


def _without_literal_key(
    variant: Variant, request: RunRequest, how: How, here: Here
) -> tuple[Container, Sequence[str]]:
    """Return the container without the keys of --api-key, and the keys. Raises InputError.

    Docker and compose pass the keys on by name, Kubernetes takes them from a secret.
    """
    takes_key = user_options.split_verb(request.arguments)[0] in LISTENING  # another command's --api-key is its own
    arguments, keys = access.without_key(request.arguments) if takes_key else (request.arguments, ())
    if keys and request.api_key_file:
        raise InputError("--api-key-file and --api-key: both give the key that clients must send", hint="give one")
    address = access.EVERY_ADDRESS if how.form == "kubernetes" else request.address
    new_container = make_container(
        variant, request.model_copy(update={"arguments": arguments, "address": address}), here.machine
    )
    return new_container.model_copy(update={"key_required": bool(keys) or new_container.key_required}), keys


def _with_allowed_hosts(container: Container) -> Container:
    """Return the container; on loopback and without a required key, its server answers only to names of this machine.

    A container that gets the key by name all the same does not compare names (plugin/drydock_plugin/guard.py).
    """
    if container.once or container.key_required or container.network == "none" or access.is_exposed(container.address):
        return container
    of_engine = () if container.network == user_options.HOST else (container.name,)  # other containers of its network
    names = dict.fromkeys((*access.NAMES_HERE, access.bracket_address(container.address), *of_engine))
    return container.model_copy(update={"env": {**container.env, ALLOWED_HOSTS: ",".join(names)}})


def _set_key(container: Container, request: RunRequest, keys: Sequence[str]) -> None:
    """Put the API key into the environment, from which docker passes it on by name. Raises InputError."""
    if request.api_key_file:
        os.environ[access.API_KEY] = "\n".join(access.read_keys(request.api_key_file))
    elif keys:
        os.environ[access.API_KEY] = "\n".join(keys)
        log(
            f"the key of {access.FLAG} is passed as {access.API_KEY}; set that variable or use --api-key-file, or your"
            " shell's history keeps the key"
        )
    if not container.once:
        access.check_variable()
    if container.key_required:
        access.require_key(container.address, container.port)


# --- the user's variables --------------------------------------------------------------------------------------------


def _check_named(container: Container) -> None:
    """Check that the shell has the variables that the user named: docker passes nothing without a word. InputError."""
    absent = [name for name in container.named if name not in os.environ]
    if absent:
        raise InputError(
            *(f"--env {name}: your shell has no such variable, or does not export it" for name in absent),
            hint=f"export {absent[0]} first; what is no secret may also be given as NAME=VALUE",
        )


def _with_values(container: Container, known_variables: user_options.KnownVariables) -> Container:
    """Return the container of a manifest: it has the values of named variables that are known. Raises InputError."""
    public = [name for name in container.named if known_variables.shows(name, os.environ.get(name, ""))]
    _check_named(container.model_copy(update={"named": tuple(public)}))
    return container.model_copy(update={
        "given": {**container.given, **{name: os.environ[name] for name in public}},
        "named": tuple(name for name in container.named if name not in public),
    })  # fmt: skip


def _in_text(variant: Variant, container: Container) -> Container:
    """Return the container with only the names of variables that are unknown: their values may be secrets."""
    shows = list_known_variables(variant).shows
    public_values = {name: value for name, value in container.given.items() if shows(name, value)}
    return container.model_copy(update={
        "given": public_values,
        "named": (*container.named, *(name for name in container.given if name not in public_values)),
    })  # fmt: skip


# --- output ---------------------------------------------------------------------------------------------------------


def _print_manifest(variant: Variant, container: Container, how: How) -> None:
    """Print the command or manifest. Raises HostError for chosen cards that this machine does not have."""
    if container.beyond and how.form != "kubernetes":
        raise HostError(
            *container.beyond, hint="choose cards that exist, or leave --devices and --modules out for all of them"
        )
    remarks = [*_list_run_remarks(variant, container, how), *(container.missing if container.native else ())]
    remarks += REMARKS[how.form](container) if how.form in REMARKS else ()
    if container.key_required and how.form not in ("kubernetes", "quadlet"):
        remarks.append(f"set {access.API_KEY} where this runs: it does not start without a key for clients")
    if container.image.startswith(STAND_INS):
        remarks.append(f"{container.image}: contains stand-ins: it is not what its lock pins")
    if how.json:
        write_output(
            format_json(
                {
                    how.form: DATA[how.form](container),
                    "remarks": remarks,
                    "image": container.image,
                    "name": container.name,
                }
            )
        )
        return
    _log_lines(remarks)
    write_output(WRITERS[how.form](container))


def _list_run_remarks(variant: Variant, container: Container, how: How) -> tuple[str, ...]:
    engine = f"engine: {variant.compression.summary}"
    has_own_remarks = how.form in ("kubernetes", "apptainer")  # they have remarks of their own
    groups = () if has_own_remarks else manifests.unknown_groups(container)
    return (
        *option_reasons.format_option_reasons(container.record, container, how.form),
        engine,
        *groups,
        *container.notes,
    )


def _report_started(identity: str, container: Container, *, json: bool) -> None:
    """Print which container was started, and on standard error what to do with it."""
    if container.once:
        _log_lines((f"log: docker logs --follow {container.name}; remove it: docker rm --force {container.name}",))
        result = {"id": identity, "name": container.name, "image": container.image}
        write_output(format_json(result) if json else f"{container.name}\n{identity}\n")
        return
    address = f"{access.bracket_address(container.address)}:{container.port}"
    status = f"http://{access.LOOPBACK}:{container.port + 1}/readyz"
    if "--exec" in container.arguments:  # vLLM has replaced the entrypoint
        status = f"http://{address}/health"
    _log_lines((
        f"ready when {status} answers 200; log: docker logs --follow {container.name}",
        f"stop and remove it: docker stop {container.name} && docker rm {container.name}",
    ))  # fmt: skip
    result = {"id": identity, "name": container.name, "image": container.image, "address": address, "ready": status}
    write_output(format_json(result) if json else f"{container.name}\n{identity}\n")


def _log_lines(lines: Sequence[str]) -> None:
    for line in lines:
        log(line)
