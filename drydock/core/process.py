"""Settings of the process of a short-lived command, and where it runs."""

from __future__ import annotations

import codecs
import gc
import io
import json
import locale
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from drydock.core.errors import InputError

GC_THRESHOLD = 100_000
"""Allocations between two runs of the garbage collector. A command makes a million records, keeps them until it ends
and leaves no cycles worth collecting: with Python's default of 700, the collector takes a fifth of the time."""
NOT_FOR_OTHERS = 0o002
"""Bits that no file or folder gets, whatever the umask. git and buildx, which drydock starts, inherit that."""

SECONDS_AT_MOST, MEMORY_AT_MOST = 120, 2 << 30
"""Processor time and memory of one reading of others' files. Those of vLLM and transformers take 10 s and 0.5 GB."""
ANSWER_AT_MOST = 16 << 20
"""Bytes of its answer. That for vLLM 0.32 has 0.1 million."""


def short_lived() -> None:
    """Make the garbage collector run rarely, as imports make many objects too; make no file that others can write."""
    os.umask(os.umask(0) | NOT_FOR_OTHERS)
    gc.set_threshold(GC_THRESHOLD)


def spare_imported_objects() -> None:
    """Make the garbage collector never scan what was imported."""
    gc.freeze()


def prepare_process() -> None:
    """Make what the environment got wrong right, before anything is read: closed standard streams, and the encoding."""
    open_standard_streams()
    require_utf8()
    unbuffer_standard_error()


def open_standard_streams() -> None:
    """Open /dev/null in place of each closed standard stream: the next file that is opened would get its number.

    What git then writes to standard error would be in that file. Standard output is opened for reading only, so that
    a write to it fails as it would have (gnulib's stdopen does the same).
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:  # Python found it closed
            opened = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            os.dup2(opened, number)
            if opened != number:
                os.close(opened)
            setattr(sys, name, open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False))  # noqa: SIM115


def unbuffer_standard_error() -> None:
    """Write to standard error at once: what a full disk behind 2>FILE did not take would fail again, with code 120."""
    if sys.stderr is sys.__stderr__ and sys.stderr:
        sys.stderr = io.TextIOWrapper(
            open(sys.stderr.fileno(), "wb", buffering=0, closefd=False),  # noqa: SIM115 - until the process ends
            encoding=sys.stderr.encoding,
            errors=sys.stderr.errors,
            write_through=True,
        )


def require_utf8() -> None:
    """Start this process again in Python's UTF-8 mode if the locale has another encoding.

    All of drydock's files are UTF-8. In such a locale Python would read them as ISO 8859-1 or the like (PEP 540).
    """
    if sys.flags.utf8_mode or codecs.lookup(locale.getencoding()).name == "utf-8":
        return
    os.environ["PYTHONUTF8"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - no shell is wanted


def check_current_folder() -> None:
    """Raise InputError if the current folder was deleted: no relative path has a meaning in it."""
    try:
        Path.cwd()
    except OSError as error:
        hint = "it was deleted or cannot be read; change to another one"
        raise InputError(f"the current folder: {error.strerror}", hint=hint) from error


def in_ci(env: Mapping[str, str]) -> bool:
    """Tell whether a CI service runs the command: each of them sets CI=true."""
    return env.get("CI", "").lower() in ("true", "1")


def call_limited(read: Callable[[], Any], where: str) -> Any:
    """Return what a function makes of the files of others, as JSON, within limits of processor time and memory.

    It runs in a child, because neither Python's parser nor a regular expression can be stopped otherwise.

    Raises InputError for an error of the function, and at a limit.
    """
    output, child_output = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child starts no thread and waits for none
        child = os.fork()
    if child == 0:
        os._exit(_answer_parent(read, child_output))
    os.close(child_output)
    try:
        with os.fdopen(output, "rb") as file:
            text = file.read()
    except BaseException:  # such as Ctrl-C
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    if status:
        limits = f"{SECONDS_AT_MOST} s of processor time and {MEMORY_AT_MOST >> 20} MiB of memory"
        raise InputError(f"{where}: reading it ended with status {status}, expected at most {limits}")
    answer = json.loads(text)
    if "error" in answer:
        raise InputError(f"{where}: {answer['error']}")
    return answer["value"]


def _answer_parent(read: Callable[[], Any], output: int) -> int:
    """Write what a function returns, or its error, as JSON; return the exit code."""
    try:
        size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_AT_MOST, size + MEMORY_AT_MOST))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS_AT_MOST, SECONDS_AT_MOST))
        text = json.dumps({"value": read()})
        if len(text) > ANSWER_AT_MOST:
            text = json.dumps({"error": f"found {len(text)} bytes in its lists, expected at most {ANSWER_AT_MOST}"})
    except BaseException as error:  # noqa: BLE001 - the parent raises it
        text = json.dumps({"error": ascii(f"{type(error).__name__}: {error!s:.200}")[1:-1]})
    try:
        with os.fdopen(output, "wb") as file:
            file.write(text.encode())
    except BaseException:  # noqa: BLE001 - memory, or a parent that has ended
        return 1
    return 0
