"""Zeroed memory from the kernel, which need not be written before its first use."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Sequence
from typing import Any

LARGE = 64 << 20
"""Smallest tensor of zeros, in bytes, that is taken from the kernel."""
PART = 4 << 20
"""Bytes to populate in one system call."""
POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14 (madvise(2)): allocate all pages now."""


def is_large(sizes: Sequence[Any]) -> bool:
    """Tell whether these are the sizes of a large one-dimensional tensor."""
    return len(sizes) == 1 and isinstance(sizes[0], int) and sizes[0] >= LARGE


def reserve(size: int) -> mmap.mmap:
    """Return `size` bytes of zeros, in huge pages where possible. A thread allocates the pages.

    In this way a lack of memory shows within seconds, and not hours later under load.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    threading.Thread(target=populate, args=(memory,), name="populate", daemon=True).start()
    return memory


def populate(memory: mmap.mmap) -> None:
    """Make the kernel allocate every page, without blocking the interpreter. Older kernels allocate on first use.

    It is done in parts, because other changes to this process's mappings wait while one part is allocated.
    """
    madvise = ctypes.CDLL(None).madvise
    address, size = ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(memory)
    for start in range(0, size, PART):
        length = min(PART, size - start)
        if madvise(ctypes.c_void_p(address + start), ctypes.c_size_t(length), POPULATE_WRITE):
            return
