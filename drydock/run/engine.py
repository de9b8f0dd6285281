"""Starts a container with docker, and explains docker's errors. IO, but for `explain_docker_error`."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import docker
import docker.errors

from drydock.build import checkouts
from drydock.build.build_job import ARCHITECTURES, STAND_IN
from drydock.core.errors import DrydockError, EngineError, HostError, UntrustedError
from drydock.core.project import Project
from drydock.engine import daemon, debian
from drydock.engine.connection import connect_engine, read_engine_address, refuse_ssh
from drydock.model.variant import Variant
from drydock.run import entrypoint
from drydock.run.container import Container
from drydock.run.machine import Machine

COMPLAINT = b"docker: "
"""How docker's own errors begin. The container's error output comes through the same pipe."""
NOT_STARTED = (125, 126, 127)
"""Exit codes of `docker run` for what it could not start (docker run reference, exit status)."""
AS_GZIP = "copy the image with `skopeo copy --dest-compress-format gzip --dest-force-compress-format`"
"""What to do where the engine cannot be updated. The copy has another digest."""
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
STDERR = 2
"""The descriptor of standard error: what a tool prints is no data of ours."""


class LocalImage(NamedTuple):
    """An image in the engine."""

    digest: str
    """In Docker's older image store, images that came from no registry have none: then the id."""
    stand_in: str = ""
    """The names of the build contexts that were replaced; empty if the image is what its lock pins."""


class Here:
    """Access to this machine: its files, the engine's images, and running docker. Tests replace it."""

    machine = Machine()

    def __init__(self, project: Project) -> None:
        self.project = project

    def image(self, name: str) -> LocalImage | None:
        """Return an image of the engine; None if it has no such image. Raises EngineError."""
        try:
            image = connect_engine().images.get(name)
        except docker.errors.ImageNotFound:
            return None
        except docker.errors.DockerException as error:
            raise daemon.make_unreachable_error(error) from error
        digests = [digest.rpartition("@")[2] for digest in image.attrs.get("RepoDigests") or ()]
        return LocalImage(str(digests[0] if digests else image.id), image.labels.get(STAND_IN, ""))

    def find_own_image(self, repository: str) -> str:
        """Return the image of a repository that this checkout has built; empty if none. The engine may have lost it."""
        return checkouts.find_newest_image(self.project.root, repository, ARCHITECTURES.get(platform.machine(), ""))

    def find_present_image(self, repository: str) -> str:
        """Return the image of a repository that can be started; empty if there is none."""
        return self.find_own_image(repository)

    def docker_version(self) -> str:
        """Return the version of the Docker engine; empty for another engine, such as Podman, and for none."""
        try:
            components = connect_engine().version().get("Components") or ()
        except docker.errors.DockerException:
            return ""  # what follows says why
        return next((str(item["Version"]) for item in components if item["Name"] == "Engine"), "")

    def engine_limits(self) -> Sequence[str]:
        """Return what an engine of this kind lacks, a sentence each. Raises EngineError for an engine over ssh."""
        refuse_ssh()
        return daemon.list_engine_limits(daemon.read_info(), read_engine_address())

    def facts(self, variant: Variant, host: str = "") -> Mapping[str, Any]:
        """Return what the entrypoint's `facts` finds on a recorded host, or else on this machine.

        Raises InputError and HostError.
        """
        facts: Mapping[str, Any] = entrypoint.ask_entrypoint(self.project, variant, "facts", host)
        return facts

    def pull(self, container: Container) -> None:
        """Pull an image; docker shows its progress on standard error. Raises EngineError or HostError."""
        result = _run_docker(["docker", "pull", container.image], stdout=STDERR)
        if result.returncode:
            raise explain_docker_error(result.stderr, container)

    def terminal(self) -> bool:
        """Return whether this process has a terminal to pass on."""
        return sys.stdin.isatty() and sys.stdout.isatty()

    def attach(self, argv: Sequence[str], container: Container, *, terminal: bool = False) -> int:
        """Run docker in the foreground and return its exit code; it gets this process's signals.

        With `terminal`, docker reads this process's. Raises HostError or EngineError if docker could not start the
        container.
        """
        # A process group of its own: else a terminal's Ctrl-C would reach docker twice. But only the group in the
        # foreground may read the terminal, and docker then sends Ctrl-C into the container as a character.
        try:
            child = subprocess.Popen(argv, stderr=subprocess.PIPE, process_group=None if terminal else 0)
        except FileNotFoundError as error:
            raise _no_docker(argv) from error
        before = {
            number: signal.signal(number, lambda signal_number, _: child.send_signal(signal_number))
            for number in PASSED_ON
        }
        try:
            complaint = pass_on(cast("IO[bytes]", child.stderr), _to_stderr)
            code = child.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if complaint and code in NOT_STARTED:
            raise explain_docker_error(complaint.decode(errors="replace"), container)
        _to_stderr(complaint)
        return code if code >= 0 else 128 - code

    def detach(self, argv: Sequence[str], container: Container) -> str:
        """Start a container in the background and return its id. Raises HostError or EngineError; leaves none then."""
        with tempfile.TemporaryDirectory(prefix="drydock-run-") as folder:
            file = Path(folder, "id")
            result = _run_docker([*argv[:2], "--cidfile", str(file), *argv[2:]])
            container_id = file.read_text() if file.is_file() else ""
        if result.returncode:
            if container_id:  # docker keeps a container that it could not start
                _run_docker(["docker", "rm", "--force", container_id])
            raise explain_docker_error(result.stderr, container)
        return container_id


def pass_on(stream: IO[bytes], write: Callable[[bytes], object]) -> bytes:
    """Write a stream's bytes at once, up to docker's own error; return this error."""
    complaint, begins_line = b"", True
    while chunk := os.read(stream.fileno(), 65536):
        if complaint:
            complaint += chunk
            continue
        place = ((b"\n" if begins_line else b" ") + chunk).find(b"\n" + COMPLAINT)
        output, complaint = (chunk, b"") if place < 0 else (chunk[:place], chunk[place:])
        write(output)
        begins_line = chunk.endswith(b"\n")
    return complaint


def explain_docker_error(message: str, container: Container) -> DrydockError:
    """Return docker's error as one of ours, with a hint. Pure."""
    text = _first_line(message)
    for pattern, error, problem, hint in _KNOWN:
        if match := re.search(pattern, text):
            runtime = container.record.runtime
            install = (runtime and runtime.install) or "install the vendor's container toolkit"
            values = {**container.model_dump(), **match.groupdict(), "text": text, "install": install}
            return error(problem.format(**values), hint=hint.format(**values))
    return EngineError(f"docker: {text}", hint="`docker info` shows whether the engine works")


_KNOWN: tuple[tuple[str, type[DrydockError], str, str], ...] = (
    (
        r"(?i)(unknown or invalid runtime name|unknown runtime specified)",
        HostError,
        "container runtime {runtime}: the engine does not have it",
        "{install}, restart the engine; `docker info` lists its runtimes",
    ),
    (
        r"could not select device driver",
        HostError,
        "--gpus {gpus}: the engine has no driver for GPUs",
        "install NVIDIA's container toolkit, run `nvidia-ctk runtime configure --runtime=docker`, restart the engine",
    ),
    (
        r"[\d\]]:(?P<port>\d+)[: ].*(address already in use|port is already allocated)",
        HostError,
        "port {port}: already in use on this machine",
        "`ss -ltnp` shows by what; choose another with --port. The status port is the next one",
    ),
    (
        r"cannot assign requested address",
        HostError,
        "--port {address}:{port}: this machine has no such address",
        "`ip address` lists its addresses",
    ),
    (
        r'(adding custom device "(?P<path>[^"]+)": .*no such file|no such device)',
        HostError,
        "a device is missing on this machine: {text}",
        "load the driver; `./inv run … --print` shows the devices that are passed",
    ),
    (
        r"container name .* is already in use",
        HostError,
        "container {name}: exists already",
        "`docker rm --force {name}` stops and removes it; --name gives this one another name",
    ),
    (
        r"bind source path does not exist: (?P<path>.+)",
        HostError,
        "{path}: no such file or folder on this machine",
        "--print shows what is mounted",
    ),
    (
        r"invalid tar header|unsupported compression|unsupported media type .*zstd",
        HostError,
        "image {image}: this engine cannot unpack its layers: {text}",
        f"Docker {{oldest[docker]}} and containerd {{oldest[containerd]}} can: update the engine, or {AS_GZIP}",
    ),
    (
        r"unexpected commit digest|failed size validation",
        UntrustedError,
        "image {image}: the registry sent other bytes than the digest names: {text}",
        "its copy is damaged or was changed: push the image again from a source that you trust",
    ),
    (
        r"mount type unknown|invalid (argument|mount config for type) \"(type=)?image",
        HostError,
        "the model is an image, and this engine mounts none: {text}",
        "Docker 28 with the containerd image store does; or give --model the folder with the model",
    ),
    (r"annot connect to the Docker daemon", EngineError, "no Docker engine answers", "run `./inv engine`"),
    (
        r"pull access denied|manifest unknown|failed to resolve reference|no matching manifest|invalid reference",
        EngineError,
        "image {image}: cannot be pulled: {text}",
        "check the reference, the network and `docker login`",
    ),
)
"""What docker says → our error, its text and its hint, with the container's fields."""


def _first_line(message: str) -> str:
    """Return what is wrong without docker's prefixes and its advice to read the help."""
    lines = [line for line in message.splitlines() if line.strip() and "docker run --help" not in line]
    text = " ".join(lines[-1:] if not message.startswith("docker: ") else lines)
    return text.removeprefix("docker: ").removeprefix("Error response from daemon: ").strip() or "failed"


def _run_docker(argv: Sequence[str], stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, stdout=stdout, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    except FileNotFoundError as error:
        raise _no_docker(argv) from error


def _no_docker(argv: Sequence[str]) -> EngineError:
    return EngineError(f"{argv[0]}: not found on PATH", hint=debian.explain_engine_setup())


def _to_stderr(data: bytes) -> None:
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()
