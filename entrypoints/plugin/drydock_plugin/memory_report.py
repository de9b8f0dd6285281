"""Copies what vLLM logs of its memory into a file, for the supervisor to compare with the plan.

vLLM calls `start` in each of its processes, before models are loaded. The supervisor made the file that
DRYDOCK_MEASURED names (serve/measured.py); without that variable, nothing changes.
"""

from __future__ import annotations

import logging
import os

VARIABLE = "DRYDOCK_MEASURED"
MARKS = ("Model loading took ", "Available KV cache memory: ", " KV cache size: ", "Maximum concurrency for ",
         "Actual usage is ", " GPU blocks: ")  # fmt: skip
"""Parts of the lines, from vLLM 0.6 to 0.33."""
LINE_AT_MOST, FILE_AT_MOST = 1000, 60_000


class MemoryLines(logging.Handler):
    """Appends each line with a mark to the file."""

    def __init__(self, path: str) -> None:
        super().__init__(logging.INFO)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Append the line. Whatever fails, vLLM goes on."""
        try:
            line = record.getMessage()
            if any(mark in line for mark in MARKS):
                self._append(line.replace("\n", " ")[:LINE_AT_MOST] + "\n")
        except Exception:  # noqa: BLE001 - a report is worth no failure of the server
            return

    def _append(self, line: str) -> None:
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(handle).st_size < FILE_AT_MOST:
                os.write(handle, line.encode())  # one write: several processes append
        finally:
            os.close(handle)


def start() -> None:
    """Begin to copy, once in each process."""
    path, logger = os.environ.get(VARIABLE, ""), logging.getLogger("vllm")
    if path and not any(isinstance(handler, MemoryLines) for handler in logger.handlers):
        logger.addHandler(MemoryLines(path))
