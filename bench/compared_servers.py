"""The servers to compare, drydock's and plain ones: containers with the same model and the same question. IO."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import docker
import docker.errors
from docker.models.containers import Container

from bench import cleanup_guard, plain_image
from drydock.build import build
from drydock.build.build_job import prepare_job
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import BuildError
from drydock.core.paths import ROOT
from drydock.prove import smollm2
from drydock.prove.demo import API_PORT, EXPECTED, QUESTION, STATUS_PORT, find_port_url

MODEL = "/models/smollm2"
GIVEN = ("--model", MODEL, "--served-model-name", "smollm2")
"""Arguments of every server."""
SHARE = "0.5"
PLAIN = (*GIVEN, "--gpu-memory-utilization", SHARE)
"""Of a plain vLLM: the share of the machine's memory, all of which must be free at the start. With the default, 0.92,
the engine core ends where a Docker engine runs (ValueError in vllm/v1/worker/cpu_worker.py)."""
HELPED = (
    f"The other server gets --gpu-memory-utilization {SHARE}: with its default it ends where 8 % of memory is in use."
)
"""Said of each figure of a plain server."""
PLUGIN = "entrypoints/plugin/drydock_plugin"
"""What vLLM loads of drydock's, in the repository and below /opt/drydock."""
SHARED_MEMORY = "4g"
WITHIN = 1200
"""Seconds until a start counts as failed."""
PAUSE = 0.2
LAST_LINES = 200
"""Of a server that failed: vLLM's cause comes before two tracebacks."""
CAUSE = re.compile(r"\b(?:\w+\.)*\w*(?:Error|Exception|Interrupt): .*")
"""The last line of a traceback."""
FILES = """
import os, sys
for top in sys.argv[2:]:
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb", 0) as file:
                    if sys.argv[1] == "forget":
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    else:
                        while file.read(1 << 20):
                            pass
"""
"""Runs in a container: has the kernel keep the files of its image in memory, or forget them."""


class Way(NamedTuple):
    """One way to serve: an image and its arguments."""

    name: str
    image: str
    command: tuple[str, ...]
    shared_memory: str | None = None
    """Value of --shm-size. A plain vLLM exits with docker's default of 64 MiB; its CPU documentation uses 4g."""
    volumes: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    """More mounts, as docker's SDK takes them."""


class Ways(NamedTuple):
    """The servers to compare, and their model."""

    ours: Way
    default: Way
    eager: Way
    model: Path


def prepare_ways() -> Ways:
    """Build both images and the model if needed. Raises the errors of builds."""
    image = build.build_image(prepare_job(DRYDOCK, "cpu")).image
    plain = plain_image.build_plain_image(plain_image.fetch_plain_contexts())
    return Ways(
        Way("ours", image, ("serve", *GIVEN)),
        Way("plain default", plain, PLAIN, SHARED_MEMORY),
        Way("plain eager", plain, (*PLAIN, "--enforce-eager"), SHARED_MEMORY),
        smollm2.make_small_model(image, labels=cleanup_guard.make_run_labels()),
    )


OPEN = '''"""Stands for drydock's middleware, and passes every request on."""


class Guard:
    def __init__(self, app):
        self._app = app

    async def __call__(self, scope, receive, send):
        await self._app(scope, receive, send)
'''


def make_unguarded_way(way: Way, folder: Path) -> Way:
    """Return drydock's server, with its supervisor, and a middleware in `folder` that only passes requests on."""
    shutil.copytree(ROOT / PLUGIN, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "guard.py").write_text(OPEN)
    mount = {str(folder): {"bind": f"/opt/drydock/{PLUGIN}", "mode": "ro"}}
    return way._replace(name="without the guard", volumes=mount)


@contextlib.contextmanager
def run_server(way: Way, model: Path, volumes: Mapping[str, dict[str, str]] | None = None) -> Iterator[Container]:
    """Run a server's container on free ports of the loopback address; remove it and its volumes at the end."""
    options: dict[str, Any] = {
        "ports": {API_PORT: ("127.0.0.1", None), STATUS_PORT: ("127.0.0.1", None)},
        "volumes": {str(model): {"bind": MODEL, "mode": "ro"}, **way.volumes, **(volumes or {})},
        "shm_size": way.shared_memory,
        "labels": {"io.drydock.bench": way.name, **cleanup_guard.make_run_labels()},
    }
    container = docker.from_env().containers.run(way.image, list(way.command), detach=True, **options)
    try:
        yield container
    finally:
        container.remove(force=True, v=True)


def first_answer(container: Container, within: float = WITHIN) -> str:
    """Ask until the server answers; return the answer. Raises BuildError with the container's last lines."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        container.reload()
        if container.status == "exited":
            break
        answer = ask_server(container)
        if answer is not None:
            return answer
        time.sleep(PAUSE)
    raise BuildError(*describe_failure(container, within))


def describe_failure(container: Container, within: float) -> tuple[str, ...]:
    """Return why a server does not answer: the cause first, then its last lines."""
    name = container.labels.get("io.drydock.bench")
    ended = container.status == "exited"
    how = f"exited with {container.attrs['State']['ExitCode']}" if ended else f"no answer after {within:.0f} s"
    lines = container.logs(tail=LAST_LINES).decode(errors="replace").splitlines()
    return (f"{name}: {how}: {find_server_cause(lines)}", *lines)


def find_server_cause(lines: Sequence[str]) -> str:
    """Return the first error of a log, since those that follow are its consequences; else the last line."""
    errors = (match[0] for match in map(CAUSE.search, lines) if match)
    return next(errors, lines[-1] if lines else "no output")


def in_memory(way: Way, model: Path, mode: Literal["keep", "forget"]) -> None:
    """Have the kernel keep all files of a way and the model in memory, or forget them. Raises BuildError."""
    command = ["-I", "-c", FILES, mode, "/opt", "/usr", MODEL]
    options: dict[str, Any] = {
        "volumes": {str(model): {"bind": MODEL, "mode": "ro"}},
        "labels": dict(cleanup_guard.make_run_labels()),
        "network_mode": "none",
    }
    try:
        docker.from_env().containers.run(way.image, command, entrypoint="/usr/bin/python3", remove=True, **options)
    except docker.errors.ContainerError as error:
        raise BuildError(f"{way.name}: its files cannot be read: {error}") from error


def ask_server(container: Container) -> str | None:
    """Ask the question greedily; return None while the server does not answer."""
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 16}
    try:
        content: str = post_json(container, "/v1/chat/completions", body)["choices"][0]["message"]["content"]
    except (urllib.error.URLError, OSError, ValueError):
        return None
    return content


def is_right_answer(answer: str) -> bool:
    """Return whether an answer is the one that transformers gives."""
    return EXPECTED in answer


def complete_prompt(container: Container, prompt: str, tokens: int) -> str:
    """Return the greedy continuation of a prompt, exactly `tokens` long."""
    body = {"prompt": prompt, "max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}
    text: str = post_json(container, "/v1/completions", body)["choices"][0]["text"]
    return text


def post_json(container: Container, path: str, body: Mapping[str, Any]) -> Any:
    """Send a request to a server; return its JSON."""
    request = urllib.request.Request(  # noqa: S310 - a loopback address of our own container
        find_port_url(container, API_PORT, path),
        data=json.dumps({"model": "smollm2", "temperature": 0, **body}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as response:  # noqa: S310 - as above
        return json.load(response)
