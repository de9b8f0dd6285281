"""The revision of a model, so that a cache compiled for another revision is not used. IO."""

from __future__ import annotations

import os
from hashlib import sha256
from typing import TYPE_CHECKING

from entrypoints.core.folders import read_bounded
from entrypoints.core.weight_files import WEIGHTS
from entrypoints.model.files import FILE_AT_MOST

if TYPE_CHECKING:
    from entrypoints.model.hub import Hub

_CONFIGS = ("config.json", "params.json")
_SAMPLES = 8
"""Weight files to read from: reading hundreds would take as long as the rest of the start."""
_END = 4096
"""Bytes at the end of a file: they are the last tensor's, which training changes."""
_COMMIT = 40
"""Characters of a commit id."""


def read_revision(name: str, hub: Hub) -> str:
    """Return the hub's commit; for a plain folder, a digest of its configuration and weights.

    The digest covers config.json, the name and size of every weight file, and the end of some. Empty if the folder
    cannot be read.
    """
    from entrypoints.model.hub import find_snapshot

    folder = name if os.path.isdir(name) else find_snapshot(hub, name)
    if not folder:
        return hub.revision
    commit = os.path.basename(os.path.realpath(folder))
    if len(commit) == _COMMIT and os.path.basename(os.path.dirname(os.path.realpath(folder))) == "snapshots":
        return commit
    try:
        return _hash_folder(folder)
    except OSError:  # read_model reports a folder that matters
        return ""


def _hash_folder(folder: str) -> str:
    digest = sha256()
    names = sorted(os.listdir(folder))
    for config in [name for name in names if name in _CONFIGS]:
        digest.update(read_bounded(os.path.join(folder, config), FILE_AT_MOST))
    weights = [name for name in names if name.endswith(WEIGHTS)]
    for name in weights:
        digest.update(f"{name} {os.path.getsize(os.path.join(folder, name))}\n".encode())
    for name in weights[:: -(-len(weights) // _SAMPLES) or 1]:
        digest.update(_read_file_end(os.path.join(folder, name)))
    return digest.hexdigest()[:12]


def _read_file_end(path: str) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.pread(handle, _END, max(0, os.fstat(handle).st_size - _END))
    finally:
        os.close(handle)
