"""Ansible in an environment of its own, outside .venv: 300 MB that only playbooks need. IO.

It is made of requirements-ansible.txt when the first playbook runs, from the indexes that pip is configured to use;
every wheel must have a hash of that file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.core.files import disk_full, exclusive, write_atomically
from drydock.core.ownership import find_writer
from drydock.core.paths import ROOT, cache_home
from drydock.inputs.indexes import read_indexes, uv_environment
from drydock.inputs.uv import INDEX_HINT, uv_binary

REQUIREMENTS = ROOT / "requirements-ansible.txt"
MARKER = ".complete"
"""Written last. An environment without it was interrupted, and is made again."""


def programs(requirements: Path = REQUIREMENTS) -> Path:
    """Return the folder of ansible-playbook and ansible-lint; make their environment if there is none.

    Raises InputError if the packages cannot be had or another user could have written them, and DiskFullError.
    """
    folder = cache_home() / "ansible" / _fingerprint(requirements)
    if not (folder / MARKER).is_file():
        with exclusive(folder.parent / "lock"), disk_full(folder):
            if not (folder / MARKER).is_file():
                _make(folder, requirements)
    programs_folder = folder / "bin"
    if writer := find_writer(folder) or find_writer(programs_folder):
        raise InputError(writer, hint=f"remove {folder}: the next playbook installs Ansible again")
    return programs_folder


def _fingerprint(requirements: Path) -> str:
    """Return the name of an environment: what it is made of, and of which interpreter."""
    text = f"{requirements.read_text()}\n{Path(sys.executable).resolve()}\n{sys.version}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _make(folder: Path, requirements: Path) -> None:
    log(f"installing Ansible into {folder} (once)")
    shutil.rmtree(folder, ignore_errors=True)
    interpreter = folder / "bin" / "python"
    _uv("venv", "--quiet", "--python", sys.executable, str(folder))
    # Each file must have a hash of the lock, so it does not matter which index it comes from.
    _uv(
        *("pip", "install", "--quiet", "--python", str(interpreter), "--require-hashes", "--no-build"),
        *("--index-strategy", "unsafe-best-match", "--requirement", str(requirements)),
    )
    write_atomically(folder / MARKER, f"{interpreter.resolve()}\n")


def _uv(*arguments: str) -> None:
    """Run uv with pip's indexes. Raises InputError with its message."""
    indexes = read_indexes()
    options = ("--no-config", *(("--no-index",) if indexes.no_index and "install" in arguments else ()))
    environment = uv_environment(indexes, os.environ)
    done = subprocess.run(
        [str(uv_binary()), *arguments, *options], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InputError(f"Ansible cannot be installed: {done.stderr.strip()}", hint=INDEX_HINT)
