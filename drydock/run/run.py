"""Start an image on this machine, or print the docker command, compose file or Kubernetes manifest. IO.

drydock/run/container.py decides the container's options. The command or manifest goes to standard output, reasons and
remarks to standard error.
"""

from __future__ import annotations

import itertools
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
from drydock.run.container import API_KEY, DIGEST, Container, RunRequest, container
from drydock.run.machine import Machine
from entrypoints.core.redact import redact_argv

FLAG = "--api-key"
OURS = "drydock/"
"""How the names of images begin that `build` makes: drydock/VARIANT:latest."""
WRITERS: dict[str, Callable[[Container], str]] = {
    "docker": manifests.docker_text,
    "compose": manifests.compose_text,
    "k8s": kubernetes.kubernetes_text,
}
"""Format → the function that writes it."""


class Here:
    """Access to this machine: its files, the engine's images, and running docker. Tests replace it."""

    machine = Machine()

    def digest(self, image: str) -> str:
        """Return the digest of an image in the engine; empty if there is no such image. Raises EngineError.

        In Docker's older image store, images that came from no registry have no digest: return their id.
        """
        try:
            found = docker.from_env().images.get(image)
        except docker.errors.ImageNotFound:
            return ""
        except docker.errors.DockerException as error:
            raise EngineError(f"cannot connect to the Docker engine: {error}", hint="run `./inv engine`") from error
        digests = [name.rpartition("@")[2] for name in found.attrs.get("RepoDigests") or ()]
        return str(digests[0] if digests else found.id)

    def become(self, argv: Sequence[str]) -> None:
        """Replace this process by another program, which then gets signals directly."""
        try:
            os.execvp(argv[0], [*argv])  # noqa: S606 - a list, no shell
        except FileNotFoundError as error:
            raise EngineError(f"{argv[0]}: not found on PATH", hint="run `./inv engine`") from error


class Building(Here):
    """Like Here, but builds an image of ours that is not in the engine: for `--target auto`."""

    def digest(self, image: str) -> str:
        """Return the digest of an image in the engine; build it first if it is missing. Raises what a build raises."""
        from drydock.build import build  # noqa: PLC0415 - slow, and most runs find their image
        from drydock.build.job import prepare  # noqa: PLC0415 - as above
        from drydock.engine import daemon  # noqa: PLC0415 - as above

        daemon.ensure()
        found = super().digest(image)
        if found or not image.startswith(OURS):
            return found
        log(f"{image}: not built yet; building it")
        build.build(prepare(image.removeprefix(OURS).partition(":")[0]))
        return super().digest(image)


def run(
    target: str, request: RunRequest, *, form: str = "docker", only_print: bool = False, root: Path = ROOT, here: Here
) -> None:
    """Start a target with docker in the foreground, or print its command or manifest.

    Formats other than docker are only printed. Raises TargetError, InputError; before a start also EngineError, and
    HostError for what this machine lacks.
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
    wanted = _with_hidden_key(require(wanted, target, here))
    log(manifests.docker_text(wanted.model_copy(update={"arguments": redact_argv(wanted.arguments)})))
    here.become(manifests.docker_argv(wanted))


def require(wanted: Container, target: str, here: Here) -> Container:
    """Check that this machine has what the container needs; return the container with its image's digest set.

    Raises HostError with everything that is missing.
    """
    if wanted.missing:
        found = (f"{text} on this machine" for text in wanted.missing)
        raise HostError(*found, hint="load the driver; use --print to see the command")
    digest = here.digest(wanted.image)
    if wanted.image.startswith(OURS) and not digest:
        raise HostError(f"{wanted.image}: image not found", hint=f"run `./inv build --target {target}`")
    known = {DIGEST: digest} if digest else {}
    return wanted.model_copy(update={"env": {**known, **wanted.env}})


def _with_hidden_key(wanted: Container) -> Container:
    """Move the key of --api-key into the environment, from which docker passes it on by name.

    Several keys stay arguments: vLLM takes them in no other way.
    """
    words = [word for argument in wanted.arguments for word in _split(argument)]
    if words.count(FLAG) != 1:
        return wanted
    start = words.index(FLAG)
    values = list(itertools.takewhile(lambda word: not word.startswith("-"), words[start + 1 :]))
    if len(values) != 1:
        return wanted
    os.environ[API_KEY] = values[0]
    log(f"the key of {FLAG} is passed as {API_KEY}; set that variable, or your shell's history keeps the key")
    return wanted.model_copy(update={"arguments": (*words[:start], *words[start + 2 :])})


def _split(argument: str) -> tuple[str, ...]:
    """Return --api-key=KEY, in any spelling, as two words, and any other argument as it is."""
    name, equals, value = argument.partition("=")
    if name.replace("_", "-") != FLAG:
        return (argument,)
    return (FLAG, value) if equals else (FLAG,)


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        log(line)
