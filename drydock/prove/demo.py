"""Build the CPU image, create a small real model, serve it and ask it a question. IO."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from docker.models.containers import Container

from drydock.build import build
from drydock.build.build_job import Job, prepare_job
from drydock.core.console import log
from drydock.core.errors import BuildError, GoneError
from drydock.core.project import Project
from drydock.engine.connection import UNPACKED_WITHIN, connect_engine
from drydock.lock import resolution
from drydock.lock.image_record import PlatformRecord
from drydock.model.locked import Lock
from drydock.model.variant import Variant

TARGET = "cpu"
QUESTION = "What is the capital city of France? Answer with one word."
"""The greedy answer leads by a nat at each token, in bfloat16 and float32: rounding cannot change it."""
EXPECTED = "Paris"
READY_WITHIN = 600
STATUS_PORT, API_PORT = "8001/tcp", "8000/tcp"


class DemoImage(NamedTuple):
    """The image of a demo, and why it is another one than the committed lock gives."""

    built: build.Built
    record: PlatformRecord
    """What is committed of the row's image."""
    gone_inputs: tuple[str, ...] = ()
    """Locked inputs that no mirror has any more, each with where it was sought."""

    def describe_digest(self) -> str:
        """Return the digest, and how it compares with the committed one."""
        if self.gone_inputs:
            number, first = len(self.gone_inputs), self.gone_inputs[0]
            reason = f"no mirror of this machine has {number} of the locked inputs, such as {first}"
            return f"{self.built.digest} (not {_name_committed_digest(self.record)}: {reason})"
        return f"{self.built.digest} ({_compare_with_record(self.record, self.built)})"


def _name_committed_digest(record: PlatformRecord) -> str:
    return f"the committed one, {record.verified.digest}" if record.verified else "of the committed lock"


def build_or_relock(
    project: Project,
    make: Callable[[Job], build.Built] = build.build_image,
    resolve: Callable[[Variant, Lock], Lock] = resolution.resolve_newest,
) -> DemoImage:
    """Build from the lock. If no mirror has a pinned input any more, log a warning, and build from a newer lock.

    The newer lock is written nowhere: a demo changes no committed file.
    """
    job = prepare_job(project, TARGET)
    try:
        return DemoImage(make(job), job.record)
    except GoneError as error:
        gone_inputs = error.problems
        log(f"{error}\n\nWARNING: no mirror of this machine has some locked inputs. The demo takes newer ones, and its")
        log(f"image is not {_name_committed_digest(job.record)}. The committed lock stays as it is.")
    return DemoImage(make(replace(job, lock=resolve(job.variant, job.lock))), job.record, gone_inputs)


@contextlib.contextmanager
def run_model_server(image: str, model: Path, *flags: str, **options: Any) -> Iterator[Container]:
    """Run an image's `serve` with a model, both ports on free ports of the loopback address; remove it at the end."""
    client = connect_engine(seconds=UNPACKED_WITHIN)
    settings = {
        "ports": {API_PORT: ("127.0.0.1", None), STATUS_PORT: ("127.0.0.1", None)},
        "volumes": {str(model): {"bind": "/models/smollm2", "mode": "ro"}},
        **options,
    }
    command = ["serve", "--model", "/models/smollm2", "--served-model-name", "smollm2", *flags]
    container = client.containers.run(image, command, detach=True, **settings)
    try:
        yield container
    finally:
        container.remove(force=True, v=True)


def wait_until_ready(container: Container, seconds: float = READY_WITHIN) -> None:
    """Wait for /readyz and log each start-up phase once. Raises BuildError with the container's last lines."""
    last_phase = ""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        container.reload()
        if container.status == "exited":
            break
        phase = _startup_phase(container)
        if phase and phase != last_phase:
            log(f"starting: {phase}")
            last_phase = phase
        if last_phase and fetch_status(find_port_url(container, STATUS_PORT, "/readyz"))[0] == 200:  # noqa: PLR2004 - HTTP OK
            return
        time.sleep(0.5)
    lines = container.logs(tail=15).decode(errors="replace")
    raise BuildError(f"the server has exited, or is not ready after {seconds:.0f} seconds:\n{lines}")


def ask_chat_question(container: Container, question: str, max_tokens: int = 32, model: str = "smollm2") -> str:
    """Return the greedy chat answer to a question."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": max_tokens,
    }
    request = urllib.request.Request(  # noqa: S310 - a loopback address of our own container
        find_port_url(container, API_PORT, "/v1/chat/completions"),
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310 - as above
        answer: str = json.load(response)["choices"][0]["message"]["content"]
    return answer


def find_port_url(container: Container, port: str, path: str) -> str:
    """Return the URL on this host of a container's port; empty while the port is not published."""
    bindings = (container.attrs["NetworkSettings"]["Ports"] or {}).get(port)
    number = bindings[0]["HostPort"] if bindings else _own_port(container, port)
    return f"http://127.0.0.1:{number}{path}" if number else ""


def _own_port(container: Container, port: str) -> str:
    """Return the port of a container that uses the host's network, where no port is published; else empty."""
    if container.attrs.get("HostConfig", {}).get("NetworkMode") != "host":
        return ""
    command = container.attrs["Config"]["Cmd"] or []
    flag = {API_PORT: "--port", STATUS_PORT: "--status-port"}[port]
    return command[command.index(flag) + 1] if flag in command[:-1] else port.partition("/")[0]


def known_answers(container: Container) -> list[str]:
    """Return the results of the known-answer test, from /readyz."""
    code, text = fetch_status(find_port_url(container, STATUS_PORT, "/readyz"))
    notes: list[str] = json.loads(text).get("known_answer", []) if code else []
    return notes


def _startup_phase(container: Container) -> str:
    code, text = fetch_status(find_port_url(container, STATUS_PORT, "/startupz"))
    return str(json.loads(text).get("phase", "")) if code and text.startswith("{") else ""


def fetch_status(url: str) -> tuple[int, str]:
    """Return HTTP status and body, or (0, "") if there is no connection."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 - a loopback address
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except (OSError, ValueError):
        return 0, ""


def without_build(laps: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each phase but the build, which has phases of its own."""
    return {name: seconds for name, seconds in laps.items() if name != "build"}


def _compare_with_record(record: PlatformRecord, built: build.Built) -> str:
    """Say in a few words whether a build gave the digest that is committed for its inputs."""
    committed = record.find_verified_digest(built.inputs_sha256)
    if committed:
        return "as committed" if committed == built.digest else f"committed: {committed}"
    if record.verified:
        return f"inputs changed since {record.verified.date or 'the committed digest'}"
    return "no digest is committed"


def format_demo_report(image: DemoImage, phases: Mapping[str, float], answer: str) -> str:
    """Return the answer, the digest and the seconds of each phase."""
    lines = {
        "question": QUESTION,
        "answer": answer,
        "image": image.built.image,
        "digest": image.describe_digest(),
        "seconds": ", ".join(f"{name} {seconds:.1f}" for name, seconds in phases.items()),
    }
    return "".join(f"{name:<9} {value}\n" for name, value in lines.items())
