"""A disk small enough to fill, mounted by the C library: a minimal Debian has no mount program."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of a size such as 16m on a folder; skips the test where that is not allowed."""
    folder.mkdir(exist_ok=True)
    if LIBC.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={size},mode=0700".encode()):
        pytest.skip(f"only root can mount a small disk to fill: {os.strerror(ctypes.get_errno())}")
    try:
        yield folder
    finally:
        LIBC.umount(os.fsencode(folder))
