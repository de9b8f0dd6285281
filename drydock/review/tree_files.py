"""The texts of a folder that may name a vLLM command. Others wrote them: every read is bounded. IO."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from drydock.core.errors import InputError
from drydock.core.files import read_bounded

LARGEST = 1 << 20
"""Bytes of a file. The largest command of a chart or page that was seen is below a tenth of this."""
ENTRIES_AT_MOST = 100_000
"""Files and folders that are looked at; Kubernetes' own repository has 30,000."""
BYTES_AT_MOST = 256 << 20
"""Bytes that are read of a whole tree."""
DEEPEST = 40
"""Folders within each other."""
LEFT_OUT = frozenset((".git", ".hg", ".svn", ".venv", "node_modules", "site-packages", "__pycache__"))
"""Folders of tools, in which no one writes a command."""
KINDS = {
    **dict.fromkeys((".yaml", ".yml"), "yaml"),
    **dict.fromkeys((".sh", ".bash", ".sbatch", ".slurm", ".zsh"), "shell"),
    **dict.fromkeys((".md", ".mdx", ".markdown"), "markdown"),
    **dict.fromkeys((".service", ".container"), "unit"),
    **dict.fromkeys((".dockerfile", ".containerfile"), "dockerfile"),
}
"""End of a file's name → how it is read."""
_MARK = b"vllm"


class TreeFile(NamedTuple):
    """A file that names vLLM."""

    path: str
    """Below the folder, with slashes."""
    kind: str
    text: str


class SkippedFile(NamedTuple):
    """A file, or a part of one, that was not judged."""

    path: str
    because: str


def read_tree(folder: Path, skipped: list[SkippedFile]) -> Iterator[TreeFile]:
    """Yield the files that name vLLM, by path; what is not read is added to `skipped`.

    No symbolic link is followed: a target within the folder is read where it stands. Raises InputError for a folder
    that is none, or of more entries than anyone wrote.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: not a folder", hint="name the folder with the charts, samples and scripts")
    root, total, entries = folder.resolve(), 0, 0
    for parent, folders, names in os.walk(root):
        depth = len(Path(parent).relative_to(root).parts)
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT) if depth < DEEPEST else []
        entries += len(folders) + len(names)
        if entries > ENTRIES_AT_MOST:
            raise InputError(f"{folder}: more than {ENTRIES_AT_MOST} files and folders", hint="review a part of it")
        for name in sorted(names):
            if kind := _kind_of(name):
                path = Path(parent) / name
                data = _read_file(path, root, skipped)
                total += len(data)
                if total > BYTES_AT_MOST:
                    raise InputError(f"{folder}: more than {BYTES_AT_MOST >> 20} MiB of text", hint="review a part")
                if _MARK in data.lower():
                    yield from _decode(path.relative_to(root).as_posix(), kind, data, skipped)


def _read_file(path: Path, root: Path, skipped: list[SkippedFile]) -> bytes:
    """Return the content of a file; empty for one that is skipped."""
    shown = path.relative_to(root).as_posix()
    if path.is_symlink():
        if because := _explain_link(path, root):
            skipped.append(SkippedFile(shown, because))
        return b""
    try:
        return read_bounded(path, LARGEST)
    except OSError as error:
        skipped.append(SkippedFile(shown, error.strerror or "cannot be read"))
        return b""


def _kind_of(name: str) -> str:
    """Return how a file is read; empty for one that is not."""
    if name.startswith(("Dockerfile", "Containerfile")):
        return "dockerfile"
    return KINDS.get(Path(name).suffix.lower(), "")


def _explain_link(path: Path, root: Path) -> str:
    """Return why what a link names is not read; empty if it is within the folder."""
    try:
        target = path.resolve()
    except (OSError, RuntimeError):
        return "a link that leads to itself"
    return "" if target.is_relative_to(root) else "a link to a place outside of the folder"


def _decode(path: str, kind: str, data: bytes, skipped: list[SkippedFile]) -> Iterator[TreeFile]:
    try:
        yield TreeFile(path, kind, data.decode())
    except UnicodeDecodeError as error:
        skipped.append(SkippedFile(path, f"byte {error.start} is not UTF-8"))
