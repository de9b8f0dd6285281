"""Zeros that are there soon, and written to by nobody."""

from __future__ import annotations

import mmap
import platform
import threading
from pathlib import Path

import pytest

from drydock.core.paths import ROOT
from tests.support.patterns import load_file

SIZE = 32 << 20


memory = load_file(ROOT / "entrypoints" / "plugin" / "drydock_plugin" / "memory.py")


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(tuple(map(int, platform.release().split(".")[:2])) < (5, 14), reason="MADV_POPULATE_WRITE")
def test_a_thread_has_the_kernel_give_all_of_it() -> None:
    before = resident()
    zeros = memory.reserve(SIZE)
    for thread in threading.enumerate():
        if thread.name == "populate":
            thread.join(60)

    assert resident() - before >= SIZE * 0.9
    assert zeros[:4096] == bytes(4096)


def test_what_was_written_meanwhile_stays() -> None:
    zeros = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    zeros[SIZE - 5 :] = b"token"
    memory.populate(zeros)

    assert zeros[SIZE - 5 :] == b"token"


@pytest.mark.parametrize(("sizes", "large"), [((1 << 30,), True), ((1 << 10,), False), ((1 << 20, 1 << 20), False)])
def test_only_one_large_size_is_a_cache(sizes: tuple[int, ...], large: bool) -> None:
    assert memory.is_large(sizes) is large
