"""JSON files of a model, and errors that say what to do about a file. IO."""

from __future__ import annotations

import json
import os
from typing import Any

from entrypoints.core.errors import MODEL, EntrypointError


def read_json(path: str) -> dict[str, Any]:
    """Read a JSON object from a file. Raises MODEL."""
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError as error:
        raise unreadable(path, error) from error
    return parse_json(text, path)


def parse_json(text: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object that was read from `where`. Raises MODEL."""
    try:
        loaded = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise EntrypointError(MODEL, f"{where}: invalid JSON: {error}", "download the file again") from error
    if not isinstance(loaded, dict):
        message = f"{where}: expected a JSON object, found a {type(loaded).__name__}"
        raise EntrypointError(MODEL, message, "download the file again")
    return loaded


def unreadable(path: str, error: OSError) -> EntrypointError:
    """Return the error for a file or folder that the system does not let us read."""
    if isinstance(error, FileNotFoundError):
        hint = "name the folder with config.json and the weights (in a hub cache: …/snapshots/<revision>)"
        return EntrypointError(MODEL, f"{path}: no such file", hint)
    message = f"{path}: cannot be read by uid {os.getuid()}, gid {os.getgid()}: {error.strerror}"
    return EntrypointError(MODEL, message, "make the whole folder readable: chmod -R a+rX FOLDER")
