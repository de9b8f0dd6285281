"""Starts an image on this machine, or prints how docker, compose or Kubernetes starts it. IO.

drydock/run/container.py decides, from data, what the container is started with. Standard output carries only the
command or the manifest; reasons and remarks go to standard error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import docker
import docker.errors

from drydock.config.matrix import find, read_matrix
from drydock.core.console import emit, log
from drydock.core.errors import EngineError, HostError, InputError, nearest
from drydock.core.paths import ROOT
from drydock.run import docker as manifests
from drydock.run import kubernetes
from drydock.run.container import DIGEST, Container, RunRequest, container
from drydock.run.machine import Machine
from entrypoints.redact import redact_argv

WRITERS: dict[str, Callable[[Container], str]] = {
    "docker": manifests.docker_text,
    "compose": manifests.compose_text,
    "k8s": kubernetes.kubernetes_text,
}
"""Format → what writes it."""


class Here:
    """The seams to this machine: its files, its engine's images, and becoming docker."""

    machine = Machine()

    def digest(self, image: str) -> str:
        """Return the digest of an image that the engine holds, else nothing. Raises EngineError when none answers.

        With Docker's older image store an image that came from no registry has none; its id then serves as well.
        """
        try:
            found = docker.from_env().images.get(image)
        except docker.errors.ImageNotFound:
            return ""
        except docker.errors.DockerException as error:
            raise EngineError(f"no Docker engine answers: {error}", hint="invoke engine") from error
        digests = [name.rpartition("@")[2] for name in found.attrs.get("RepoDigests") or ()]
        return str(digests[0] if digests else found.id)

    def become(self, argv: Sequence[str]) -> None:
        """Become another program: its output and exit code are ours, and signals reach it directly."""
        try:
            os.execvp(argv[0], [*argv])  # noqa: S606 - a list, no shell
        except FileNotFoundError as error:
            raise EngineError(f"{argv[0]}: not found on PATH", hint="invoke engine") from error


def run(
    target: str, request: RunRequest, *, form: str = "docker", only_print: bool = False, root: Path = ROOT, here: Here
) -> None:
    """Print how a target is started, or start it with docker, attached: Ctrl-C ends it as SIGINT ends the entrypoint.

    Formats other than docker are printed only. Raises TargetError, InputError; and when it is to be started HostError
    for what this machine lacks, EngineError.
    """
    if form not in WRITERS:
        raise InputError(f"--format {form}: unknown format", hint=nearest(form, WRITERS))
    wanted = container(find(read_matrix(root), target), request, here.machine)
    if only_print or form != "docker":
        missing = wanted.missing if wanted.native else ()
        _say((*wanted.notes, *missing, *(kubernetes.remarks(wanted) if form == "k8s" else ())))
        emit(WRITERS[form](wanted))
        return
    _say(wanted.notes)
    wanted = require(wanted, target, here)
    log(manifests.docker_text(wanted.model_copy(update={"arguments": redact_argv(wanted.arguments)})))
    here.become(manifests.docker_argv(wanted))


def require(wanted: Container, target: str, here: Here) -> Container:
    """See that this machine has what the container needs, and return the container with its image's digest told.

    Raises HostError with everything that is missing.
    """
    if wanted.missing:
        found = (f"{text} on this machine" for text in wanted.missing)
        raise HostError(*found, hint="load the driver; --print shows what would be started")
    digest = here.digest(wanted.image)
    if wanted.image.startswith("drydock/") and not digest:
        raise HostError(f"{wanted.image}: the engine has no such image", hint=f"invoke build --target {target}")
    told = {DIGEST: digest} if digest else {}
    return wanted.model_copy(update={"env": {**told, **wanted.env}})


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        log(line)
