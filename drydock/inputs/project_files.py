"""The files of a project that others take: which they are, one tar file of them, and out of one. IO (reads only).

The tar file depends on the names and the bytes alone. What is read out of one, or out of a commit, is bounded, and has
only names that `push` publishes.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from drydock.config.project_choice import PROJECT_FILE
from drydock.config.rows import ADDITIONS, MATRIX, list_rows
from drydock.config.strict_yaml import YamlDocument, parse_yaml
from drydock.core.errors import InputError, UntrustedError
from drydock.core.files import read_bounded
from drydock.core.tar import small_files
from drydock.model.names import RelativePath

KIND = "application/vnd.drydock.project.v1"
"""Artifact type of a published project."""
LAYER = f"{KIND}.tar"
MOST_FILES, MOST_BYTES, DEEPEST, LONGEST = 10_000, 64 << 20, 16, 200
"""Files, bytes in total, folders in each other, and characters of a path. drydock itself has 500 files, 7 MB."""
_FOLDERS = ("templates", "entrypoints", "images")
_LEFT_OUT = r"(?:.*/)?(?:\.[^/]*|__pycache__)(?:/.*)?$|.*~$"
"""Hidden files, compiled Python and copies that editors keep."""
_FIXED = (
    r"drydock\.yaml",
    r"matrix\.yaml",
    r"images/[^/]+/(?:lock\.json|Dockerfile|record\.json|proof\.json|vllm\.json)",
    rf"(?!{_LEFT_OUT})(?:templates|entrypoints)/.+",
)
_PATH: TypeAdapter[str] = TypeAdapter(RelativePath)


def in_folder(folder: Path) -> dict[str, bytes]:
    """Return the files of a project to publish, by name. Raises InputError for a link, or beyond the limits."""
    first = {name: (folder / name).read_bytes() for name in (PROJECT_FILE, MATRIX) if (folder / name).is_file()}
    name_pattern = _compile_name_pattern(first)
    listed = (path for name in _FOLDERS for path in folder.glob(f"{name}/**/*"))
    added = (path for pattern in _list_added_files(first) for path in folder.glob(pattern))
    paths = {
        path.relative_to(folder).as_posix(): path for path in (*(folder / name for name in first), *listed, *added)
    }
    matching_paths = {
        name: path for name, path in sorted(paths.items()) if name_pattern.fullmatch(name) and not path.is_dir()
    }
    links = [name for name, path in matching_paths.items() if path.resolve() != folder.resolve() / name]
    if links:
        raise InputError(*(f"{name}: a link, expected a file" for name in links), hint="publish a copy of the file")
    try:
        files = {name: read_bounded(path, MOST_BYTES) for name, path in matching_paths.items()}
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from error
    check_project_files(files, str(folder))
    return files


def pack_project(files: Mapping[str, bytes]) -> bytes:
    """Return a tar file that has the same bytes for the same files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def unpack_project(data: bytes, where: str) -> dict[str, bytes]:
    """Return the files of a project in a tar file. Raises UntrustedError for anything that `pack` does not write."""
    try:
        files = small_files(data, MOST_BYTES, MOST_FILES)
    except (tarfile.TarError, OSError) as error:
        raise UntrustedError(f"{where}: not the files of a project: {error}") from error
    check_project_files(files, where)
    return files


def check_name(name: str, where: str) -> None:
    """Raise UntrustedError for a name that is no path below a folder, or is too long or too deep."""
    try:
        _PATH.validate_python(name)
        whole = len(name) <= LONGEST and name.count("/") < DEEPEST
    except (ValidationError, ValueError):
        whole = False
    if not whole:
        text = f"{where}: {name[:LONGEST]!a}: expected the path of a file of a project"
        raise UntrustedError(text, hint=f"at most {LONGEST} characters and {DEEPEST} parts, without '..'")


def check_project_files(files: Mapping[str, bytes], where: str) -> None:
    """Raise UntrustedError or InputError unless these are files of a project, and nothing else."""
    for name in files:
        check_name(name, where)
    parents = {name[: match.start()] for name in files for match in re.finditer("/", name)}
    if clashes := parents & files.keys():
        raise UntrustedError(f"{where}: {min(clashes)!a}: found a file and a folder of this name")
    check_size((len(data) for data in files.values()), where)
    if PROJECT_FILE not in files:
        raise UntrustedError(f"{where}: found no {PROJECT_FILE}", hint="`./inv project push` publishes a project")
    name_pattern = _compile_name_pattern(files)
    if foreign := [name for name in files if not name_pattern.fullmatch(name)]:
        hint = "a project has what `./inv project push` publishes; a newer drydock may publish more"
        raise UntrustedError(f"{where}: unexpected file {foreign[0]!a}", hint=hint)


def check_size(sizes: Iterable[int], where: str) -> None:
    """Raise UntrustedError beyond the limits."""
    count, total = 0, 0
    for size in sizes:
        count, total = count + 1, total + size
        if count > MOST_FILES or total > MOST_BYTES:
            raise UntrustedError(f"{where}: more than {MOST_FILES} files or {MOST_BYTES >> 20} MiB")


def choose_project_files(names: Iterable[str], first: Mapping[str, bytes]) -> list[str]:
    """Return which names of a folder or commit are files of a project, given its drydock.yaml and matrix.yaml."""
    name_pattern = _compile_name_pattern(first)
    return [name for name in names if name_pattern.fullmatch(name)]


def _compile_name_pattern(first: Mapping[str, bytes]) -> re.Pattern[str]:
    """Return a pattern of the names of a project's files."""
    more = (re.escape(name).replace(r"\*", "[^/]+") for name in _list_added_files(first))
    return re.compile("|".join((*_FIXED, *more)))


def _list_added_files(first: Mapping[str, bytes]) -> list[str]:
    """Return the files that a project and its rows put into images: names, and FOLDER/*.crt."""
    documents = {name: _parse_table(first[name], name) for name in (PROJECT_FILE, MATRIX) if name in first}
    added = [documents[PROJECT_FILE].data.get(ADDITIONS)] if PROJECT_FILE in documents else []
    added += [row.get(ADDITIONS) for row in list_rows(documents[MATRIX]).values()] if MATRIX in documents else []
    return [name for addition in added if isinstance(addition, dict) for name in _list_addition_paths(addition)]


def _list_addition_paths(added: Mapping[str, Any]) -> list[str]:
    files = added.get("files")
    folder = added.get("certificates")
    names = [name for name in files.values() if isinstance(name, str)] if isinstance(files, dict) else []
    return [*names, *([f"{folder}/*.crt"] if isinstance(folder, str) else [])]


def _parse_table(data: bytes, name: str) -> YamlDocument:
    """Parse a file of a project. Raises InputError, also if it is no table."""
    try:
        document = parse_yaml(data.decode(), name)
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: byte {error.start} is not UTF-8") from error
    if not isinstance(document.data, dict):
        raise InputError(f"{name}: expected keys and values")
    return document
