"""Zeros of the kernel's: memory that is not written to before anything is kept in it."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Sequence
from typing import Any

LARGE = 64 << 20
"""Bytes from which a tensor of zeros is taken from the kernel."""
PART = 4 << 20
"""Bytes that are made present at a time."""
POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14 (madvise(2)): give all pages now."""


def is_large(sizes: Sequence[Any]) -> bool:
    """Tell whether these are the sizes of one large flat tensor."""
    return len(sizes) == 1 and isinstance(sizes[0], int) and sizes[0] >= LARGE


def reserve(size: int) -> mmap.mmap:
    """Return that many bytes of zeros, in huge pages where there are any; a thread sees to it that they are there.

    So a lack of memory shows within seconds, as when it is all written to, and not under load hours later.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    threading.Thread(target=populate, args=(memory,), name="populate", daemon=True).start()
    return memory


def populate(memory: mmap.mmap) -> None:
    """Have the kernel give every page, without holding up the interpreter; older kernels give each when it is needed.

    Part by part, since nobody else changes this process's mappings while one is given.
    """
    madvise = ctypes.CDLL(None).madvise
    address, size = ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(memory)
    for start in range(0, size, PART):
        length = min(PART, size - start)
        if madvise(ctypes.c_void_p(address + start), ctypes.c_size_t(length), POPULATE_WRITE):
            return
