"""Containers of tests, which testcontainers starts, waits for and removes with their volumes. IO.

`docker ps --all --filter label=org.testcontainers` lists those of a run that was killed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from docker.models.containers import Container
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

testcontainers_config.ryuk_disabled = True
"""The reaper is an image of a hub, which a machine without a network cannot pull. Containers are removed by id."""
testcontainers_config._docker_auth_config = None
"""It would log in with a CI job's DOCKER_AUTH_CONFIG for each container; the tests' images are in the engine."""


CREATED_WITHIN = 300
"""Seconds of an answer of the engine: it unpacks an image of 10 GB for the first container of it, and removes one."""


class Ended(NamedTuple):
    """A container that has ended."""

    code: int
    stdout: str
    stderr: str


def make_container(
    image: str,
    *words: str,
    tmpfs: Sequence[str] = (),
    ports: Mapping[str, Any] | None = None,
    **options: Any,
) -> DockerContainer:
    """Return a container to start. `ports` are those of docker's SDK, `options` those of testcontainers and the SDK."""
    container = DockerContainer(image, docker_client_kw={"timeout": CREATED_WITHIN}, **options).with_command([*words])
    for path in tmpfs:
        container.with_tmpfs_mount(path)
    container.ports.update(ports or {})
    return container


@contextmanager
def start_container(image: str, *words: str, **options: Any) -> Iterator[Container]:
    """Start a container; remove it at the end."""
    with make_container(image, *words, **options) as container:
        yield container.get_wrapped_container()


def run_container(image: str, *words: str, seconds: float = 300, **options: Any) -> Ended:
    with start_container(image, *words, **options) as container:
        code = container.wait(timeout=seconds)["StatusCode"]
        return Ended(code, *(container.logs(stdout=out, stderr=not out).decode() for out in (True, False)))


def run_in_container(container: Container, *command: str, **options: Any) -> Ended:
    """Run a command in a container that runs. `options` are those of the SDK's `exec_run`."""
    code, output = container.exec_run([*command], demux=True, **options)
    return Ended(code, *((text or b"").decode() for text in output))


def ask_entrypoint(container: Container, *words: str, **options: Any) -> Ended:
    """Give the image's ENTRYPOINT words, in a container that runs: quicker than a container for each question."""
    return run_in_container(container, *container.attrs["Config"]["Entrypoint"], *words, **options)


def count_imports(module: str, log: str) -> int:
    """Count the processes that imported a module, from what PYTHONPROFILEIMPORTTIME makes Python say."""
    return len(re.findall(rf"^import time: .*\| {{0,200}}{module}$", log, re.MULTILINE))
