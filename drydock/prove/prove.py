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
from drydock.build.job import Job, prepare
from drydock.core.console import as_lines, emit, log
from drydock.core.errors import BuildError, EngineError
from drydock.core.project import Project
from drydock.engine import daemon
from drydock.engine.connection import connect_engine
from drydock.lock import proof
from drydock.prove import demo, smollm2
from drydock.run import docker as manifests
from drydock.run.access import LOOPBACK
from drydock.run.container import Container, RunRequest, container
from drydock.run.engine import Here
from drydock.run.run import require

SERVED = "proof"
"""The served model name."""
NOT_COMPARED = "not compared"
"""How a result begins if an answer was not compared (the entrypoint's known-answer test)."""

Docker = Callable[[Sequence[str]], str]
"""Runs a docker command and returns its standard output."""


def prove(project: Project, target: str, request: RunRequest | None = None, here: Here | None = None) -> None:
    """Build, record, serve and ask; write the tier `hardware` into the variant's proof.json and print the results.

    Raises the DrydockError of any stage: HostError without the device, BuildError without a correct answer.
    """
    here = here or Here(project)
    job = prepare(project, target)
    project.check_writable(f"images/{job.variant.id}/proof.json")
    built = build.build(job)
    wanted = what_to_start(job, built, request or RunRequest(model=str(smollm2.make(built.image))), here)
    wanted = require(wanted, target, here)
    facts = json.loads(daemon.run(manifests.docker_argv(wanted, command=("facts",))))
    where = record(
        wanted, project.root / "build" / "hosts" / f"{job.variant.accelerator}-{slug(device(facts))}", daemon.run
    )
    with serving(wanted) as running:
        demo.wait_until_ready(running)
        said = answers(running)
    tests = (name_served_model(wanted, facts),)
    evidence = proof.make_evidence(project, digest=built.digest, inputs_sha256=built.inputs_sha256, tests=tests)
    before = proof.read_proof(project, job.variant.id) or proof.Proof()
    image = proof.replace_evidence(before.image, {"hardware": evidence})
    proof.write_proof(project, job.variant.id, before.model_copy(update={"image": image}))
    emit(report(built, facts, where, said))


def what_to_start(job: Job, built: build.Built, request: RunRequest, here: Here) -> Container:
    """Return the container as `run` starts it, with free ports of the loopback address."""
    own: dict[str, Any] = {
        "image": built.image,
        "name": f"drydock-proof-{os.getpid()}",
        "address": LOOPBACK,
        "port": free_port(),
        "arguments": ("--served-model-name", SERVED, *request.arguments),
    }
    return container(job.variant, request.model_copy(update=own), here.machine)


def free_port() -> int:
    """Return a free port whose next port is free too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind((LOOPBACK, 0))
            port: int = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind((LOOPBACK, port + 1))
                return port


def record(wanted: Container, folder: Path, run: Docker) -> Path:
    """Record the host as the container sees it, before serving; return the folder of its host.json."""
    inside = f"{manifests.CACHE}/{wanted.name}"
    number = next(n for n in range(1, 10_000) if not _numbered(folder, n).exists())
    target = _numbered(folder, number)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        run(manifests.docker_argv(wanted, lifetime=(), command=("facts", "--record", inside)))
        run(["docker", "cp", f"{wanted.name}:{inside}", str(target)])
    finally:
        remove(wanted, run)
        run(manifests.docker_argv(wanted, command=("rm", "-rf", inside)))
    return target


def _numbered(folder: Path, number: int) -> Path:
    return folder if number == 1 else folder.with_name(f"{folder.name}-{number}")


def remove(wanted: Container, run: Docker) -> None:
    """Remove a container, running or not, if it exists."""
    with contextlib.suppress(EngineError):
        run(["docker", "rm", "--force", "--volumes", wanted.name])


@contextlib.contextmanager
def serving(wanted: Container) -> Iterator[Running]:
    """Start the container in the background; remove it at the end."""
    log(manifests.docker_text(wanted))
    try:
        daemon.run(manifests.docker_argv(wanted, lifetime=("--detach",)))
        yield connect_engine().containers.get(wanted.name)
    finally:
        remove(wanted, daemon.run)


def answers(running: Running) -> list[str]:
    """Return the results of the known-answer test and a chat answer. Raises BuildError if no answer was compared."""
    notes = demo.known_answers(running)
    try:
        answer = demo.ask(running, demo.QUESTION, model=SERVED)
    except (urllib.error.URLError, KeyError, ValueError) as error:
        answer = f"(no chat answer: {error})"
    return judge(notes, answer)


def judge(notes: Sequence[str], answer: str) -> list[str]:
    """Check that an answer was compared; return the lines to print. Pure. Raises BuildError."""
    if not any(note and not note.startswith(NOT_COMPARED) for note in notes):
        raise BuildError("the server is ready, but no answer was compared", *notes)
    return [*notes, f"{demo.QUESTION!r} → {answer!r}"]


def name_served_model(wanted: Container, facts: Mapping[str, Any]) -> str:
    """Return what was served on which device, as a proof names it. Pure."""
    model = Path(wanted.model.target).name if wanted.model else wanted.arguments[2]
    return f"invoke prove: {model} on {device(facts)}"


def device(facts: Mapping[str, Any]) -> str:
    """Return the number and names of the devices, or the processor if there is no device."""
    names = sorted({item["name"] for item in facts["devices"]})
    return f"{len(facts['devices'])} of {', '.join(names)}" if names else str(facts["processor"]["model"])


def slug(text: str) -> str:
    """Return text as part of a folder's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "machine"


def report(built: build.Built, facts: Mapping[str, Any], where: Path, said: Sequence[str]) -> str:
    """Return the results, one per line."""
    lines = [
        f"image   {built.image}",
        f"digest  {built.digest}",
        f"device  {device(facts)}",
        f"host    {where}/host.json (review it, then move its folder to tests/hosts/ to keep it)",
        *(f"answer  {line}" for line in said),
    ]
    return as_lines(lines)
