"""Python environments in the cache folder, made once of a list of packages with hashes. IO: uv."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.core.files import disk_full, hold_lock_file, write_atomically
from drydock.core.ownership import find_writer
from drydock.core.paths import cache_home
from drydock.inputs.indexes import read_indexes, uv_environment
from drydock.inputs.uv import INDEX_HINT, uv_binary

MARKER = ".complete"
"""Written last. An environment without it was interrupted, and is made again."""


class EnvironmentRequest(NamedTuple):
    """What an environment is for, and what it is made of."""

    purpose: str
    """Its name in messages, such as Ansible."""
    folder: str
    """The folder of the cache that has the environments of this purpose."""
    requirements: Path
    interpreter: Path = Path(sys.executable)
    with_pip: bool = False
    """Whether it has pip, as a checkout's .venv has: drydock asks it for its configuration."""


def prepare_environment(request: EnvironmentRequest) -> Path:
    """Return the folder of an environment; make it if there is none.

    Raises InputError if the packages cannot be had or another user could have written them, and DiskFullError.
    """
    folder = cache_home() / request.folder / _compute_fingerprint(request)
    if not (folder / MARKER).is_file():
        with hold_lock_file(folder.parent / "lock"), disk_full(folder):
            if not (folder / MARKER).is_file():
                _make_environment(folder, request)
    if writer := find_writer(folder) or find_writer(folder / "bin"):
        raise InputError(writer, hint=f"remove {folder}: the same command makes it again")
    return folder


def _compute_fingerprint(request: EnvironmentRequest) -> str:
    """Return the name of an environment: what it is made of, and of which interpreter."""
    command = (str(request.interpreter), "-I", "-c", "import sys; print(sys.version)")
    version = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    text = f"{request.requirements.read_text()}\n{request.interpreter.resolve()}\n{version}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _make_environment(folder: Path, request: EnvironmentRequest) -> None:
    log(f"installing {request.purpose} into {folder} (once)")
    shutil.rmtree(folder, ignore_errors=True)
    interpreter = folder / "bin" / "python"
    seed = ("--seed",) if request.with_pip else ()
    _run_uv_for(request.purpose, "venv", "--quiet", *seed, "--python", str(request.interpreter), str(folder))
    # Each file must have a hash of the list, so it does not matter which index it comes from.
    _run_uv_for(
        *(request.purpose, "pip", "install", "--quiet", "--python", str(interpreter), "--require-hashes", "--no-build"),
        *("--index-strategy", "unsafe-best-match", "--requirement", str(request.requirements)),
    )
    write_atomically(folder / MARKER, f"{interpreter.resolve()}\n")


def _run_uv_for(purpose: str, *arguments: str) -> None:
    """Run uv with pip's indexes. Raises InputError with its message."""
    indexes = read_indexes()
    options = ("--no-config", *(("--no-index",) if indexes.no_index and "install" in arguments else ()))
    environment = uv_environment(indexes, os.environ)
    result = subprocess.run(
        [str(uv_binary()), *arguments, *options], env=environment, capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise InputError(f"{purpose} cannot be installed: {result.stderr.strip()}", hint=INDEX_HINT)
