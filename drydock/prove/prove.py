"""Shows that an image serves on the device it is for: build, record the host, serve, ask, and write that down. IO.

For whoever has the device. Ready means that prefill and decode agreed on the tokens, and that a recorded answer came
where the model has one: the image's own entrypoint asks before it says so.
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

import docker
from docker.models.containers import Container as Running

from drydock.build import build
from drydock.build.job import Job, prepare
from drydock.core.console import emit, log
from drydock.core.errors import BuildError, EngineError
from drydock.core.paths import ROOT
from drydock.engine import daemon
from drydock.lock import proof
from drydock.prove import demo, smollm2
from drydock.run import docker as manifests
from drydock.run.container import LOOPBACK, Container, RunRequest, container
from drydock.run.run import Here, require

SERVED = "proof"
"""The name that clients write as `model`."""
NOT_COMPARED = "not compared"
"""How a note begins that says why an answer was not compared (entrypoints/health.py)."""

Docker = Callable[[Sequence[str]], str]
"""Runs a docker command to its end and returns its standard output."""


def prove(target: str, request: RunRequest | None = None, root: Path = ROOT, here: Here | None = None) -> None:
    """Build, record, serve and ask; write the tier `hardware` into the variant's proof.json and print what was shown.

    Raises DrydockError of any stage: HostError without the device, BuildError without a right answer.
    """
    here = here or Here()
    job = prepare(target, root=root)
    built = build.build(job)
    wanted = what_to_start(job, built, request or RunRequest(model=str(smollm2.make(built.image))), here)
    wanted = require(wanted, target, here)
    facts = json.loads(daemon.run(manifests.docker_argv(wanted, command=("facts",))))
    where = record(wanted, root / "build" / "hosts" / f"{job.variant.accelerator}-{slug(device(facts))}", daemon.run)
    with serving(wanted) as running:
        demo.wait_until_ready(running)
        said = answers(running)
    found = shown(built, wanted, facts, proof.read_proof(root, job.variant.id))
    proof.write_proof(root, job.variant.id, found)
    emit(report(built, facts, where, said))


def what_to_start(job: Job, built: build.Built, request: RunRequest, here: Here) -> Container:
    """Return the container to prove with: as `run` starts it, on free ports of the loopback address."""
    own: dict[str, Any] = {
        "image": built.image,
        "name": f"drydock-proof-{os.getpid()}",
        "address": LOOPBACK,
        "port": free_port(),
        "arguments": ("--served-model-name", SERVED, *request.arguments),
    }
    return container(job.variant, request.model_copy(update=own), here.machine)


def free_port() -> int:
    """Return a port of which it and the next one are free."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind((LOOPBACK, 0))
            port: int = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind((LOOPBACK, port + 1))
                return port


def record(wanted: Container, folder: Path, run: Docker) -> Path:
    """Record the host as the container sees it, before anything serves; return the folder."""
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
    """Remove a container, running or not, if there is one."""
    with contextlib.suppress(EngineError):
        run(["docker", "rm", "--force", "--volumes", wanted.name])


@contextlib.contextmanager
def serving(wanted: Container) -> Iterator[Running]:
    """Start the container in the background; remove it in the end."""
    log(manifests.docker_text(wanted))
    try:
        daemon.run(manifests.docker_argv(wanted, lifetime=("--detach",)))
        yield docker.from_env().containers.get(wanted.name)
    finally:
        remove(wanted, daemon.run)


def answers(running: Running) -> list[str]:
    """Return what the server's answers showed. Raises BuildError when none of them was compared or none came."""
    notes = demo.known_answers(running)
    try:
        answer = demo.ask(running, demo.QUESTION, model=SERVED)
    except (urllib.error.URLError, KeyError, ValueError) as error:
        answer = f"(no chat answer: {error})"
    return judge(notes, answer)


def judge(notes: Sequence[str], answer: str) -> list[str]:
    """See that an answer was compared and found right; return what to show. Pure. Raises BuildError."""
    if not any(note and not note.startswith(NOT_COMPARED) for note in notes):
        raise BuildError("the server is ready, but no answer was compared", *notes)
    return [*notes, f"{demo.QUESTION!r} → {answer!r}"]


def shown(built: build.Built, wanted: Container, facts: Mapping[str, Any], old: proof.Proof | None) -> proof.Proof:
    """Return the proof: this image's tiers shown before, and `hardware`. Pure."""
    model = Path(wanted.model.target).name if wanted.model else wanted.arguments[2]
    said = (f"invoke prove: {model} on {device(facts)}",)
    new = proof.Proof(
        date=proof.today(), digest=built.digest, inputs_sha256=built.inputs_sha256, shown={"hardware": said}
    )
    return proof.joined(old, new)


def device(facts: Mapping[str, Any]) -> str:
    """Return what it ran on: the devices' names and number, the processor where there is none."""
    names = sorted({item["name"] for item in facts["devices"]})
    return f"{len(facts['devices'])} of {', '.join(names)}" if names else str(facts["processor"]["model"])


def slug(text: str) -> str:
    """Return text as part of a folder's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "machine"


def report(built: build.Built, facts: Mapping[str, Any], where: Path, said: Sequence[str]) -> str:
    """Return what was shown, a line each."""
    lines = [
        f"image   {built.image}",
        f"digest  {built.digest}",
        f"device  {device(facts)}",
        f"host    {where} (read it, then move it to tests/hosts/ to keep it)",
        *(f"answer  {line}" for line in said),
    ]
    return "\n".join(lines) + "\n"
