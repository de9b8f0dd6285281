"""Programs that a verb runs to their end, and what a stop of the container does to them. IO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from entrypoints.core.errors import HOST, EntrypointError


@contextmanager
def raise_on_stop_signal(what: str) -> Iterator[None]:
    """Raise 128 + N in the block when signal N asks this process to end: process 1 would ignore it."""
    import signal

    def stop(number: int, _frame: object = None) -> None:
        raise EntrypointError(128 + number, f"{what}: stopped")

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_program(argv: Sequence[str], env: Mapping[str, str], folder: str, *, output: int = 2) -> int:
    """Run a program; return its exit code, 128 + N for signal N. What it prints goes to `output`. Raises HOST.

    When the waiting ends early, it is killed with all processes that it started.
    """
    import os
    import signal
    import subprocess

    try:
        process = subprocess.Popen(argv, env=dict(env), cwd=folder, stdout=output, start_new_session=True)
    except OSError as error:
        raise EntrypointError(HOST, f"{argv[0]}: cannot be run: {error.strerror}") from error
    try:
        code = process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return 128 - code if code < 0 else code
