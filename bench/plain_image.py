"""The plain image: bench/plain/Dockerfile, built by stock buildx from locked inputs. IO.

It is the CPU variant as a plain Dockerfile: the base has the compiler and headers that vLLM's defaults need at start,
no package is excluded, and all wheels are one layer. `python -m bench.plain_image` locks again what it has in addition
to drydock's wheels.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import docker

from bench import cleanup_guard
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.console import log
from drydock.core.errors import EngineError
from drydock.core.paths import ROOT
from drydock.engine.connection import inspect_images
from drydock.inputs import fetch
from drydock.lock import lockfile, resolution
from drydock.model.bases import DebianBase
from drydock.model.distributions import Layer
from drydock.model.locked import Lock, LockedWheel
from drydock.model.variant import Variant

FOLDER = ROOT / "bench" / "plain"
LOCK = FOLDER / "lock.json"
PACKAGES = ("g++", "python3-dev", "python3-venv")
UNAVAILABLE = ("torchaudio", "torchcodec", "torchvision")
"""Packages without a CPU build on any index: the plain image excludes them, and nothing else. Without a change to its
files, which drydock makes, torchaudio ends vLLM at its start: its libraries need CUDA's."""
PLATFORM = "linux/amd64"
LABEL = "io.drydock.bench=plain"
ALL = "all"
"""The one layer of wheels."""


def make_plain_variant() -> Variant:
    """Return the variant that the plain image is resolved from."""
    row = _find_cpu_row()
    if not isinstance(row.base, DebianBase):
        raise TypeError(row.base.kind)
    base = row.base.model_copy(update={"packages": (*row.base.packages, *PACKAGES)})
    exclusions = tuple(exclusion for exclusion in row.exclude if exclusion.name in UNAVAILABLE)
    update = {
        "id": "plain",
        "base": base,
        "exclude": exclusions,
        "layers": (Layer(name=ALL),),
        "platforms": (PLATFORM,),
    }
    return row.model_copy(update=update)


def _find_cpu_row() -> Variant:
    """Return the CPU variant."""
    return find_variant(read_matrix(DRYDOCK), "cpu")


def relock_plain() -> bool:
    """Resolve what the plain image has in addition to drydock's wheels; return whether its lock changed."""
    resolved, cpu_names = (
        resolution.resolve_variant(make_plain_variant(), None),
        {wheel.name for wheel in list_lock_wheels(read_cpu_lock())},
    )
    return lockfile.write_lock(
        LOCK, with_wheels(resolved, [wheel for wheel in list_lock_wheels(resolved) if wheel.name not in cpu_names])
    )


def list_lock_wheels(of: Lock) -> list[LockedWheel]:
    """Return all wheels of a lock for PLATFORM."""
    return [wheel for layer in of.platforms[PLATFORM].layers.values() for wheel in layer]


def with_wheels(of: Lock, instead: Sequence[LockedWheel]) -> Lock:
    """Return a lock with its wheels replaced."""
    pins = of.platforms[PLATFORM].model_copy(update={"layers": {ALL: tuple(instead)}})
    return of.model_copy(update={"platforms": {PLATFORM: pins}})


def read_cpu_lock() -> Lock:
    """Return the lock of the CPU variant."""
    return lockfile.read_lock(lockfile.path_of_lock(DRYDOCK, _find_cpu_row().id))


def make_plain_lock() -> Lock:
    """Return the plain image's lock: the current wheels of the CPU variant, and those in its own lock."""
    added = lockfile.read_lock(LOCK)
    usable = [wheel for wheel in list_lock_wheels(read_cpu_lock()) if wheel.name not in UNAVAILABLE]
    return with_wheels(added, [*usable, *list_lock_wheels(added)])


def fetch_plain_contexts() -> dict[str, str]:
    """Fetch the plain image's inputs; return them as build contexts. Raises StaleError or FetchError."""
    contexts = fetch.fetch_inputs(DRYDOCK, make_plain_variant(), make_plain_lock(), PLATFORM)
    return {name: contexts[name] for name in ("base", "wheels")}


def make_plain_command(folder: Path, inputs: dict[str, str], *options: str) -> list[str]:
    """Return the command that builds the plain image from a folder with its Dockerfile; all inputs are contexts."""
    context_options = [word for name, value in inputs.items() for word in ("--build-context", f"{name}={value}")]
    return ["docker", "buildx", "build", "--quiet", "--network", "none", *context_options, *options, str(folder)]


def build_plain_image(inputs: dict[str, str], folder: Path = FOLDER, *options: str) -> str:
    """Build the plain image into the engine; return its id. Raises EngineError with buildx's last line."""
    ran = subprocess.run(
        make_plain_command(
            folder, inputs, "--load", "--label", LABEL,
            "--label", f"{cleanup_guard.LABEL}={cleanup_guard.run_id()}", *options
        ),
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if ran.returncode:
        last_line = ran.stderr.strip().splitlines()[-1]
        raise EngineError(f"docker buildx build {folder}: {last_line}", hint="run `./inv engine`")
    return ran.stdout.strip()


def remove_plain_images() -> None:
    """Remove every plain image from the engine. BuildKit's cache is kept."""
    client = docker.from_env()
    for image in inspect_images(client, label=LABEL, intermediate=True):
        client.images.remove(image["Id"], force=True)


if __name__ == "__main__":
    log("changed" if relock_plain() else "nothing new")
