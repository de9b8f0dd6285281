"""Reads tar archives that anyone may have written: as the image side does, and also from zstd streams. IO."""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Iterator
from typing import IO, Literal

import zstandard

from entrypoints.core import tar


@contextlib.contextmanager
def open_tar(file: IO[bytes], mode: Literal["r:", "r|", "r:gz"]) -> Iterator[tarfile.TarFile]:
    """Open an archive to read with `members`. Raises tarfile.TarError or OSError for a damaged or hostile one."""
    try:
        with tar.open_tar(file, mode) as archive:  # type: ignore[arg-type]  # images read no streams, but it can
            yield archive
    except zstandard.ZstdError as error:
        raise tarfile.ReadError(f"damaged archive: {error}") from error
