"""What a verb prints for programs, and the files that its options name. IO."""

from __future__ import annotations

import json
import os
from typing import Any

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.folders import READABLE, replace_file
from entrypoints.core.text import emit_text, printable


def emit_json(value: Any) -> None:
    """Write data to standard output as sorted JSON. Raises HOST."""
    emit_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def write_output(option: str, path: str, text: str) -> None:
    """Write what an option asks for to its file, or to standard output with -. Raises USAGE."""
    if path == "-":
        emit_text(text)
        return
    try:
        if os.path.isfile(path) or not os.path.exists(path):
            replace_file(path, printable(text), READABLE)  # on the host, its reader is another user than the image's
        else:  # /dev/stdout, or a pipe: root could replace it
            with open(path, "w", encoding="utf-8") as file:
                file.write(printable(text))
    except OSError as error:
        message = f"{option} {path}: {error.strerror}"
        raise EntrypointError(USAGE, message, "name a file in a writable folder") from error
