"""Copies what vLLM logs of its memory into a file, for the supervisor to compare with the plan.

vLLM calls `start` in each of its processes, before models are loaded. The supervisor made the file that
DRYDOCK_MEASURED names (serve/measured.py); without that variable, nothing changes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

VARIABLE = "DRYDOCK_MEASURED"
MARKS = ("Model loading took ", "Available KV cache memory: ", " KV cache size: ", "Maximum concurrency for ",
         "Actual usage is ", " GPU blocks: ")  # fmt: skip
"""Parts of the lines, from vLLM 0.6 to 0.33."""
LINE_AT_MOST, FILE_AT_MOST = 1000, 60_000
_begun: list[str] = []
"""The file, in a process that copies; one that is forked from it copies, too."""


class CopyingFactory:
    """Makes log records, and appends each of vLLM's messages with a mark to the file.

    It is no handler: vLLM 0.32 and later configure their logger after plugins, which removes its handlers, and keep
    the factory of records (vllm/logger.py, _VllmLogRecordFactory).
    """

    def __init__(self, path: str, factory: Callable[..., logging.LogRecord]) -> None:
        self._path, self._factory = path, factory

    def __call__(self, *args: Any, **more: Any) -> logging.LogRecord:
        """Make a record. Whatever fails in copying it, vLLM goes on."""
        record = self._factory(*args, **more)
        try:
            if record.name.startswith("vllm"):  # plugins' loggers, too: vllm_ascend, vllm_gaudi
                line = record.getMessage()
                if any(mark in line for mark in MARKS):
                    self._append(line.replace("\n", " ")[:LINE_AT_MOST] + "\n")
        except Exception:  # noqa: BLE001, S110 - a report is worth no failure of the server
            pass
        return record

    def _append(self, line: str) -> None:
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(handle).st_size < FILE_AT_MOST:
                os.write(handle, line.encode())  # one write: several processes append
        finally:
            os.close(handle)


def start() -> None:
    """Begin to copy, once in each process."""
    path = os.environ.get(VARIABLE, "")
    if path and not _begun:
        _begun.append(path)
        logging.setLogRecordFactory(CopyingFactory(path, logging.getLogRecordFactory()))
