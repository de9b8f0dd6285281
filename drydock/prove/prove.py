"""Prove that an image serves on its device: build, record the host, serve, ask, and record the proof. IO.

Runs on a machine with the device. The image's entrypoint reports ready only after its known-answer test: prefill and
decode agreed on the tokens, and the answer is the recorded one if the model has one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import urllib.error
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from docker.models.containers import Container as Running

from drydock.build import build
from drydock.build.build_job import Job
from drydock.core.commit import read_commit
from drydock.core.console import as_lines, log
from drydock.core.errors import BuildError, EngineError
from drydock.engine import daemon
from drydock.engine.connection import connect_engine
from drydock.oci import image_layout
from drydock.prove import demo, served_statement
from drydock.run import docker_command
from drydock.run.access import LOOPBACK
from drydock.run.container import Container, RunRequest, make_container
from drydock.run.engine import Here

SERVED = "proof"
"""The served model name."""
NOT_COMPARED = "not compared"
"""How a result begins if an answer was not compared (the entrypoint's known-answer test)."""

Docker = Callable[[Sequence[str]], str]
"""Runs a docker command and returns its standard output."""


def ask_container(container: Container, *command: str) -> Any:
    """Return the JSON that a verb of the image's entrypoint prints, in a container like the one that serves."""
    return json.loads(daemon.run_docker(docker_command.docker_argv(container, command=command)))


def describe_served(
    job: Job,
    facts: Mapping[str, Any],
    plan: Mapping[str, Any],
    answer_lines: Sequence[str],
    log_text: str,
    times: tuple[int, int, int],
) -> served_statement.Served:
    """Return what a statement says; `times` are when serving began, was ready and ended. Unix seconds."""
    began, ready, ended = times
    is_kept = image_layout.is_sound_layout(job.foundation)
    return served_statement.Served(
        variant=job.variant.id,
        platform=job.platform,
        foundation=image_layout.read_digest(job.foundation) if is_kept else job.committed_foundation,
        inputs_sha256=job.inputs_sha256,
        commit=read_commit(job.project.root),
        host=served_statement.reduce_facts(facts),
        checks=served_statement.list_checks(plan["findings"]),
        command=tuple(plan["argv"]),
        environment=plan["env"],
        known_answer=tuple(" ".join(line.split()) for line in answer_lines),
        memory=served_statement.find_memory_lines(log_text),
        began=began,
        ready=ready,
        ended=ended,
    )


def what_to_start(job: Job, built: build.Built, request: RunRequest, here: Here) -> Container:
    """Return the container as `run` starts it, with free ports of the loopback address."""
    proof_options: dict[str, Any] = {
        "image": built.image,
        "name": f"drydock-proof-{os.getpid()}",
        "address": LOOPBACK,
        "port": free_port(),
        "arguments": ("--served-model-name", SERVED, *request.arguments),
    }
    return make_container(job.variant, request.model_copy(update=proof_options), here.machine)


def free_port() -> int:
    """Return a free port whose next port is free too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind((LOOPBACK, 0))
            port: int = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind((LOOPBACK, port + 1))
                return port


def record_proof_host(container: Container, folder: Path, run: Docker) -> Path:
    """Record the host as the container sees it, before serving; return the folder of its host.json."""
    inside = f"{docker_command.CACHE}/{container.name}"
    number = next(n for n in range(1, 10_000) if not _number_folder(folder, n).exists())
    target = _number_folder(folder, number)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        run(docker_command.docker_argv(container, lifetime=(), command=("facts", "--record", inside)))
        run(["docker", "cp", f"{container.name}:{inside}", str(target)])
    finally:
        remove_container(container, run)
        run(docker_command.docker_argv(container, command=("rm", "-rf", inside)))
    return target


def _number_folder(folder: Path, number: int) -> Path:
    return folder if number == 1 else folder.with_name(f"{folder.name}-{number}")


def remove_container(container: Container, run: Docker) -> None:
    """Remove a container, running or not, if it exists."""
    with contextlib.suppress(EngineError):
        run(["docker", "rm", "--force", "--volumes", container.name])


@contextlib.contextmanager
def run_proof_container(container: Container) -> Iterator[Running]:
    """Start the container in the background; remove it at the end."""
    log(docker_command.docker_text(container))
    try:
        daemon.run_docker(docker_command.docker_argv(container, lifetime=("--detach",)))
        yield connect_engine().containers.get(container.name)
    finally:
        remove_container(container, daemon.run_docker)


def collect_answers(running: Running) -> list[str]:
    """Return the results of the known-answer test and a chat answer. Raises BuildError if no answer was compared."""
    notes = demo.known_answers(running)
    try:
        answer = demo.ask_chat_question(running, demo.QUESTION, model=SERVED)
    except (urllib.error.URLError, KeyError, ValueError) as error:
        answer = f"(no chat answer: {error})"
    return check_compared_answers(notes, answer)


def check_compared_answers(notes: Sequence[str], answer: str) -> list[str]:
    """Check that an answer was compared; return the lines to print. Pure. Raises BuildError."""
    if not any(note and not note.startswith(NOT_COMPARED) for note in notes):
        raise BuildError("the server is ready, but no answer was compared", *notes)
    return [*notes, f"{demo.QUESTION!r} → {answer!r}"]


def name_served_model(container: Container, facts: Mapping[str, Any]) -> str:
    """Return what was served on which device, as a proof names it. Pure."""
    model = Path(container.model.target).name if container.model else container.arguments[2]
    return f"invoke prove: {model} on {describe_proof_devices(facts)}"


def describe_proof_devices(facts: Mapping[str, Any]) -> str:
    """Return the number and names of the devices, or the processor if there is no device."""
    names = sorted({item["name"] for item in facts["devices"]})
    return f"{len(facts['devices'])} of {', '.join(names)}" if names else str(facts["processor"]["model"])


def make_folder_name(text: str) -> str:
    """Return text as part of a folder's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "machine"


def format_proof_report(
    built: build.Built,
    facts: Mapping[str, Any],
    where: Path,
    answer_lines: Sequence[str],
    statement: Path | None = None,
) -> str:
    """Return the results, one per line."""
    signed = f"{statement} (signed)" if statement else "not written: --sign-key or --keyless signs what was seen"
    lines = [
        f"image   {built.image}",
        f"digest  {built.digest}",
        f"device  {describe_proof_devices(facts)}",
        f"host    {where}/host.json (review it, then move its folder to tests/hosts/ to keep it)",
        *(f"answer  {line}" for line in answer_lines),
        f"statement  {signed}",
    ]
    return as_lines(lines)
