"""Processes of other users, which only root can start, and folders that they can reach: pytest's own are private."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can start processes of other users")


@contextmanager
def reachable_folder() -> Iterator[Path]:
    """Yield a temporary folder that every user can read."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def as_user(uid: int, do: Callable[[], object], group: int = 0) -> str:
    """Run a function in a process of another user; return what it returns, or its error, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(group)
            os.setuid(uid)
            output = str(do())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the child ends here
            output = f"{type(error).__name__}: {error}"
        os.write(writing, output.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        output = pipe.read()
    os.waitpid(child, 0)
    return output
