"""JSON files of a model, and errors that say what to do about a file. IO."""

from __future__ import annotations

import errno
import os
from typing import Any

from entrypoints.core import parse
from entrypoints.core.errors import MODEL, EntrypointError
from entrypoints.core.folders import read_bounded

FILE_AT_MOST = 64 << 20
"""Bytes of config.json or an index. The largest published index has 20 MB."""


def read_json(path: str) -> dict[str, Any]:
    """Read a JSON object from a regular file of at most FILE_AT_MOST bytes. Raises MODEL."""
    try:
        text = read_bounded(path, FILE_AT_MOST)
    except OSError as error:
        raise make_read_error(path, error) from error
    return parse_model_json(text, path)


def parse_model_json(text: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object that was read from `where`. Raises MODEL."""
    try:
        loaded = parse.parse_untrusted_json(text.decode("utf-8"))
    except ValueError as error:
        raise EntrypointError(MODEL, f"{where}: invalid JSON: {error}", "download the file again") from error
    if not isinstance(loaded, dict):
        message = f"{where}: expected a JSON object, found a {type(loaded).__name__}"
        raise EntrypointError(MODEL, message, "download the file again")
    return loaded


def make_read_error(path: str, error: OSError) -> EntrypointError:
    """Return the error for a file or folder that the system does not let us read."""
    if isinstance(error, FileNotFoundError):
        hint = "name the folder with config.json and the weights (in a hub cache: …/snapshots/<revision>)"
        return EntrypointError(MODEL, f"{path}: no such file", hint)
    if error.errno == errno.EFBIG:
        return EntrypointError(MODEL, f"{path}: {error.strerror}", "download the file again")
    message = f"{path}: cannot be read by uid {os.getuid()}, gid {os.getgid()}: {error.strerror}"
    return EntrypointError(MODEL, message, "make the whole folder readable: chmod -R a+rX FOLDER")
