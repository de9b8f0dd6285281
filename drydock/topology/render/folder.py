"""The folder of rendered files: what an earlier render of the format wrote, and this one does not, goes. IO."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from drydock.config.validation import make_record
from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.core.files import (
    check_below,
    explain_unwritable,
    file_sha256,
    format_json,
    join_below,
    parse_json_object,
    read_bounded,
    write_below,
)
from drydock.model.names import RelativePath
from drydock.model.record import Record, Sha256, dump_record

LIST_AT_MOST = 16 << 20
"""Bytes of a list; a thousand nodes have a hundredth of that."""


class RenderedFiles(Record):
    """What a render wrote."""

    files: dict[RelativePath, Sha256]
    """Path below the folder → hash of the content."""


def make_list_name(kind: str) -> str:
    """Return the name of a format's list. Without .json, or `kubectl apply -f FOLDER` would take it for a manifest."""
    return f".drydock-{kind}"


def replace_rendered_files(
    folder: Path, kind: str, files: Mapping[str, str], *, dry_run: bool = False
) -> tuple[Path, ...]:
    """Write rendered files, remove what the last render of the format wrote beyond them, and return what changed.

    With `dry_run` only the return value is made.

    Raises InputError, before it changes anything, if a file that would go or be replaced is not as it was written, or
    if the folder cannot have the files.
    """
    record = RenderedFiles(files={name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()})
    new_files = {make_list_name(kind): format_json(dump_record(record)), **files}
    with explain_unwritable(folder):
        earlier = _read_earlier_files(folder, kind)
        obsolete = {name: sha256 for name, sha256 in earlier.items() if name not in files}
        problems = [*_find_edited_files(folder, obsolete), *_find_foreign_files(folder, record.files, earlier)]
        if problems:
            raise InputError(*problems, hint="remove it, move it to another folder, or use another --output")
        check_below(folder, new_files)
        if dry_run:
            places = {folder / name: text for name, text in new_files.items()}
            return tuple(path for path, text in places.items() if not path.is_file() or path.read_text() != text)
        for name in obsolete:
            _remove_rendered_file(folder, name)
    return write_below(folder, new_files)


def _read_earlier_files(folder: Path, kind: str) -> Mapping[str, str]:
    """Return the files of the last render. Raises InputError if their list is none."""
    path = folder / make_list_name(kind)
    if not path.is_file():
        return {}
    return make_record(RenderedFiles, str(path), parse_json_object(read_bounded(path, LIST_AT_MOST), str(path))).files


def _find_edited_files(folder: Path, obsolete: Mapping[str, str]) -> Iterator[str]:
    """Yield each file that is another now, or lies behind a link, so that it is not the render's to remove."""
    for name, sha256 in obsolete.items():
        path = join_below(folder, name)
        is_direct = path.resolve() == folder.resolve() / name
        if os.path.lexists(path) and not (is_direct and path.is_file() and file_sha256(path) == sha256):
            yield f"{path}: this plan has no such file, and it was changed since an earlier plan was rendered here"


def _find_foreign_files(folder: Path, files: Mapping[str, str], earlier: Mapping[str, str]) -> Iterator[str]:
    """Yield each file that would be written over, and that is not as a render wrote it."""
    for name, sha256 in files.items():
        path = join_below(folder, name)
        if path.is_file() and file_sha256(path) not in (sha256, earlier.get(name)):
            yield f"{path}: it was changed since it was rendered, or something else wrote it"


def _remove_rendered_file(folder: Path, name: str) -> None:
    """Remove a file and the folders that it leaves empty."""
    path = join_below(folder, name)
    if path.exists():
        path.unlink()
        log(f"removed {path}: an earlier plan had it")
    with contextlib.suppress(OSError):  # a folder that is not empty
        for parent in path.relative_to(folder).parents[:-1]:
            (folder / parent).rmdir()
