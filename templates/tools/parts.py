"""Spread a folder's files over so many folders, each source together with its bytecode.

A layer is pushed and pulled whole. With the entrypoint in one, an edit of one module sent all hundred; now it sends
the part that the module is in. A file's part depends on its path alone, so an edit never moves another file.
"""

from __future__ import annotations

import hashlib
import sys
from importlib.util import source_from_cache
from pathlib import Path


def part_of(path: str, parts: int) -> int:
    """Return the number of the part that a file belongs to, bytecode with its source."""
    source = source_from_cache(path) if path.endswith(".pyc") else path
    return int.from_bytes(hashlib.sha256(source.encode()).digest(), "big") % parts


def spread(folder: Path, into: Path, parts: int) -> None:
    """Move every file of a folder to the same path below one of `into`/0, `into`/1, …; all of them exist afterwards."""
    for number in range(parts):
        (into / str(number)).mkdir(parents=True)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        path = file.relative_to(folder)
        target = into / str(part_of(path.as_posix(), parts)) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target)


if __name__ == "__main__":
    spread(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
