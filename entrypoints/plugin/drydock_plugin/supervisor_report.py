"""Tells the supervisor, through a file, what vLLM logs of its memory, and in which words it refuses its configuration.

The supervisor made the file that DRYDOCK_REPORT names (serve/plugin_files.py); without that variable, nothing changes.
vLLM's first process watches its errors from the start of Python (sitecustomize.py). vLLM calls `start` in each of its
processes, before models are loaded. No function of vLLM is replaced: a function is known by its name in the traceback.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from traceback import extract_tb, walk_tb
from types import TracebackType
from typing import Any, NoReturn

from . import write_stacks_when_asked

VARIABLE = "DRYDOCK_REPORT"
MARKS = ("Model loading took ", "Available KV cache memory: ", " KV cache size: ", "Maximum concurrency for ",
         "Actual usage is ", " GPU blocks: ")  # fmt: skip
"""Parts of the lines of its memory, from vLLM 0.6 to 0.33."""
LINE_AT_MOST, FILE_AT_MOST = 1000, 50_000
REFUSED = "refused"
"""Key of a line of JSON with vLLM's words; the last one counts."""
LONGEST = 600
"""Characters of one of vLLM's sentences."""
ASKING = frozenset(
    (
        *("parse_args", "validate_parsed_serve_args", "from_cli_args", "create_engine_config"),
        *("initialize_model", "_initialize_model"),
    )
)
"""Functions of vLLM 0.6 to 0.33, its forks and plug-ins, that check a configuration before weights are read: the
command line, the configuration, and the model's classes."""
_DEVICE_MODULES = frozenset(("device", "platforms"))
"""Parts of the names of modules whose RuntimeError is about the host: vllm.platforms.cuda, vllm.config.device."""
_NOISE = re.compile(r"^[ \t]*For further information visit .*$|\[type=\w+, input_value=.*$", re.MULTILINE)
"""What pydantic adds to a sentence."""
_COUNTED = re.compile(r"^\d+ validation errors? for \w+\s*")
_begun: list[str] = []
"""The file, in a process that copies; one that is forked from it copies, too."""


class CopyingFactory:
    """Makes log records; appends vLLM's messages with a mark to the file, and a refusal that vLLM logs as an error.

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
                self._copy(record)
        except Exception:  # noqa: BLE001, S110 - a report is worth no failure of the server
            pass
        return record

    def _copy(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if any(mark in line for mark in MARKS):
            append_line(self._path, line.replace("\n", " ")[:LINE_AT_MOST])
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:  # of a process without a parent that sees it, such as an engine core
            report_refusal(self._path, error)


def append_line(path: str, line: str) -> bool:
    """Append a line to the file, unless it is full; return whether it is there now. Raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        data = f"{line}\n".encode()
        is_free = os.fstat(handle).st_size < FILE_AT_MOST
        return is_free and os.write(handle, data) == len(data)  # one write: several processes append
    finally:
        os.close(handle)


def start() -> None:
    """Begin to copy, once in each process; and to write stacks, if another sitecustomize.py came before ours."""
    write_stacks_when_asked()
    path = os.environ.get(VARIABLE, "")
    if path and not _begun:
        _begun.append(path)
        logging.setLogRecordFactory(CopyingFactory(path, logging.getLogRecordFactory()))


# --- what vLLM refuses ----------------------------------------------------------------------------------------------


def watch_refusals() -> None:
    """Report what ends this process as a refusal, instead of a traceback and of the usage of each option."""
    path = os.environ[VARIABLE]
    print_error, refuse_command = sys.excepthook, ArgumentParser.error
    is_verbose = os.environ.get("VLLM_LOGGING_LEVEL", "").upper() == "DEBUG"

    def report_or_print(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not report_refusal(path, error) or is_verbose:
            print_error(kind, error, trace)

    def report_and_end(self: ArgumentParser, message: str) -> NoReturn:
        if not append_refusal(path, (shorten_text(message),)) or is_verbose:
            refuse_command(self, message)
        sys.exit(2)

    sys.excepthook = report_or_print
    ArgumentParser.error = report_and_end  # type: ignore[method-assign]


def report_refusal(path: str, error: BaseException) -> bool:
    """Append vLLM's words to the file if an error is a refusal; return whether they are there now."""
    try:
        return is_refusal(error) and append_refusal(path, describe_error(error))
    except Exception:  # noqa: BLE001 - an error's text may be made by code that fails; then it is shown as before
        return False


def append_refusal(path: str, words: tuple[str, ...]) -> bool:
    """Append vLLM's words to the file; return whether they are there now."""
    try:
        return append_line(path, json.dumps({REFUSED: words}))
    except OSError:
        return False


def is_refusal(error: BaseException) -> bool:
    """Tell whether vLLM refuses its configuration, and no file, network or device failed while it checked it."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    modules = [str(frame.f_globals.get("__name__")) for frame in frames]
    functions = (frame.f_code.co_name for frame, module in zip(frames, modules, strict=True) if module[:4] == "vllm")
    has_failed = any(isinstance(cause, (OSError, MemoryError)) for cause in list_error_causes(error))
    if ASKING.isdisjoint(functions) or has_failed or not isinstance(error, Exception):
        return False
    if isinstance(error, ImportError):
        return error.path is None  # a library that cannot be loaded has one, a package that is not there has none
    if not isinstance(error, RuntimeError) or isinstance(error, NotImplementedError):
        return True
    is_raised = (extract_tb(error.__traceback__)[-1].line or "").startswith("raise ")  # and not by PyTorch or a driver
    return is_raised and type(error) is RuntimeError and _DEVICE_MODULES.isdisjoint(modules[-1].split("."))


def describe_error(error: BaseException) -> tuple[str, ...]:
    """Return the sentences of an error and of the error that it followed from, each once and bounded."""
    errors = list_error_causes(error)
    return tuple(dict.fromkeys(filter(None, (shorten_error(item) for item in (errors[0], errors[-1])))))


def list_error_causes(error: BaseException) -> list[BaseException]:
    """Return an error and the errors that it followed from."""
    errors = [error]
    while (cause := errors[-1].__cause__ or errors[-1].__context__) and cause not in errors:
        errors.append(cause)
    return errors


def shorten_error(error: BaseException) -> str:
    """Return an error's text on one line; also its type and its line of code if it has none, or a key only."""
    text = shorten_text(str(error))
    if (not text or isinstance(error, KeyError)) and (frames := extract_tb(error.__traceback__)):
        text = f"{text} {frames[-1].line} in {frames[-1].filename.rpartition('site-packages/')[2]}".strip()
    if not text or isinstance(error, (KeyError, AssertionError)):
        text = f"{type(error).__name__} {text}".strip()
    return text


def shorten_text(text: str) -> str:
    """Return a text on one line, bounded, without what pydantic adds to it."""
    text = _COUNTED.sub("", " ".join(_NOISE.sub("", text).split()))
    text = text.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
