"""Download a model for a host that will be offline: complete and checked, or not at all. IO.

Files arrive in a store next to the result, where an interrupted download resumes. The result gets its name only when
all of it was checked against the hashes that the hub gives at one revision.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import Field, ValidationError

from drydock.config.server_access import Access
from drydock.core.console import as_lines, log
from drydock.core.errors import DiskFullError, FetchError, InputError
from drydock.core.files import (
    compute_checksum,
    file_sha256,
    format_json,
    hold_lock_file,
    measure_free_bytes,
    parse_json_object,
    read_bounded,
)
from drydock.core.paths import cache_home
from drydock.inputs import hub
from drydock.inputs.downloads import Wanted, download_files
from drydock.inputs.hub import USUAL, HubAddress, HubFile, ModelListing, unsafe_paths
from drydock.inputs.store import Store, place_file, whole_folder
from drydock.model.names import OneLine
from drydock.model.record import Count, Record, Sha256, dump_record
from entrypoints.core.weight_files import OTHER_FRAMEWORKS, PICKLED, SAFETENSORS

MANIFEST = "drydock-model.json"
"""In a folder that was pulled: where it is from, and the hash of each file."""
_MANIFEST_AT_MOST = 16 << 20
_SLACK = 64 << 20
"""Bytes to leave free on the disk."""
_OTHER_FORMATS = (*PICKLED, *OTHER_FRAMEWORKS)
"""Weights in formats that vLLM does not read where there are safetensors."""
_OTHER_FOLDERS = ("original", "onnx", "openvino", "coreml", ".git", ".cache")
"""Folders with other forms of the same weights. Source: vLLM, weight_utils.py, which ignores `original/**/*`."""
_OF_CLIENTS = (".git", ".cache/huggingface")
"""What git and `hf download --local-dir` keep in a model's folder: times, remotes, perhaps a token.

Source: huggingface_hub, _local_folder.py.
"""


class ModelFile(Record):
    """One file of a model."""

    sha256: Sha256
    size: Count


class ModelFolder(Record):
    """drydock-model.json."""

    schema_: Literal[1] = Field(alias="schema")
    hub: OneLine
    """Empty, as name and revision are, for a folder that no hub listed."""
    name: OneLine
    revision: OneLine
    files: Mapping[OneLine, ModelFile]

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(file.size for file in self.files.values())


class Pulled(Record):
    """What `model pull --json` prints."""

    folder: str
    hub: str
    name: str
    revision: str
    files: int
    size: int
    left_out: tuple[str, ...]
    """Files in other formats, which vLLM does not read."""
    new: bool
    """Whether anything was downloaded."""


def pull_model(  # noqa: PLR0913 - most have defaults
    model: str,
    output: Path,
    *,
    revision: str = "",
    where: HubAddress = USUAL,
    everything: bool = False,
    dry_run: bool = False,
    env: Mapping[str, str] = os.environ,
) -> Pulled:
    """Download a model of Hugging Face, a mirror of it, or ModelScope (modelscope:ORG/NAME) into a new folder.

    A folder that has exactly these files is left as it is. With `dry_run` only the return value is made. Raises
    InputError, FetchError, DiskFullError.
    """
    if output == Path():
        raise InputError("--output: expected the folder to write", hint=f"such as --output {model.rpartition('/')[2]}")
    output = Path(os.path.abspath(output))  # noqa: PTH100 - a link in the path stays one
    listing = hub.read_listing(model, revision, where, env)
    selected_files = tuple(file for file in listing.files if everything or not _is_other(file.path, listing.files))
    if dry_run:
        return _describe_pull(output, listing, selected_files, new=not _is_complete(output, listing, selected_files))
    reached = hub.read_hub_access(env, where) if listing.hub == "Hugging Face" else hub.anonymous_access(env)
    lock = cache_home(env) / "models" / f"{compute_checksum(str(output))}.lock"
    with hold_lock_file(lock):
        new = not _is_complete(output, listing, selected_files)
        if new:
            _fetch_model_files(output, listing, selected_files, reached)
    return _describe_pull(output, listing, selected_files, new=new)


def _describe_pull(output: Path, listing: ModelListing, chosen: Sequence[HubFile], *, new: bool) -> Pulled:
    left_out = tuple(sorted({file.path for file in listing.files} - {file.path for file in chosen}))
    return Pulled(
        folder=str(output), hub=listing.hub, name=listing.name, revision=listing.revision,
        files=len(chosen), size=sum(file.size for file in chosen), left_out=left_out, new=new,
    )  # fmt: skip


def format_pulled(pulled: Pulled) -> str:
    """Return the result as text."""
    state = "" if pulled.new else " (it was complete)"
    lines = [
        f"{pulled.folder}: {pulled.files} files, {pulled.size / 1e9:.2f} GB{state}",
        f"{pulled.name} of {pulled.hub} at {pulled.revision}; hashes: {MANIFEST}",
    ]
    lines += [f"left out, --everything takes it: {path}" for path in pulled.left_out]
    return as_lines(lines)


def _is_other(path: str, files: Iterable[HubFile]) -> bool:
    """Return whether a file is of no use to vLLM, because the same weights are there as safetensors."""
    if PurePosixPath(path).parts[0] in _OTHER_FOLDERS and "/" in path:
        return True
    safetensors = any("/" not in file.path and file.path.endswith(SAFETENSORS) for file in files)
    return safetensors and path.endswith(_OTHER_FORMATS)


def _is_complete(output: Path, listing: ModelListing, files: Iterable[HubFile]) -> bool:
    """Return whether the folder has these files already. Raises InputError if it has anything else."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return False
    recorded = read_folder(output) if (output / MANIFEST).is_file() else None
    is_same_model = recorded and (recorded.hub, recorded.name, recorded.revision) == (
        listing.hub,
        listing.name,
        listing.revision,
    )
    paths = {file.path for file in files} - {MANIFEST}
    if recorded and is_same_model and recorded.files.keys() == paths:
        check_folder(output, recorded)
        return True
    what = f"has {recorded.name} at {recorded.revision}" if recorded else "is not empty"
    raise InputError(f"--output {output}: {what}", hint="name a new folder, or remove this one")


def _fetch_model_files(output: Path, listing: ModelListing, chosen: Iterable[HubFile], reached: Access) -> None:
    files = [file for file in chosen if file.path != MANIFEST]
    store = Store(output.parent / f".{output.name[:64]}.pull")
    _check_room(output, sum(file.size for file in files if not store.has(file.sha256 or "0" * 64, file.size)))
    sha256 = {file.path: file.sha256 or _fetch_small(file, store, reached) for file in files}
    large = [Wanted(file.path, file.sha256, file.size, (file.url,)) for file in files if file.sha256]
    download_files(store, large, reached)
    folder = ModelFolder(
        schema_=1, hub=listing.hub, name=listing.name, revision=listing.revision,
        files={file.path: ModelFile(sha256=sha256[file.path], size=file.size) for file in files},
    )  # fmt: skip
    with whole_folder(output) as temporary:
        for file in files:
            place_file(store.path(sha256[file.path]), temporary / file.path, executable=False)
        (temporary / MANIFEST).write_text(format_json(dump_record(folder)))
    shutil.rmtree(store.home, ignore_errors=True)


def _fetch_small(file: HubFile, store: Store, reached: Access) -> str:
    """Fetch a file that the hub names by git's hash; return its sha256. Raises FetchError for other content."""
    data = hub.read_small(file.url, file.path, reached)
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    if blob != file.blob or len(data) != file.size:
        raise FetchError(f"{file.path}: git's hash of {len(data)} bytes is {blob}, expected {file.blob}")
    sha256 = hashlib.sha256(data).hexdigest()
    store.add([data], sha256, file.path)
    return sha256


def _check_room(output: Path, size: int) -> None:
    """Raise DiskFullError if the disk has too little space."""
    free = measure_free_bytes(output)
    if free < size + _SLACK:
        raise DiskFullError(
            f"{output}: no space left on the disk: {size / 1e9:.2f} GB needed, {free / 1e9:.2f} GB free",
            hint="name a folder on a larger disk; nothing was downloaded",
        )


# --- folders --------------------------------------------------------------------------------------------------------


def read_folder(folder: Path) -> ModelFolder:
    """Return a folder's drydock-model.json. Raises InputError."""
    path = folder / MANIFEST
    try:
        return ModelFolder.model_validate(parse_json_object(read_bounded(path, _MANIFEST_AT_MOST), str(path)))
    except (OSError, ValidationError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InputError(f"{path}: {reason}", hint="remove the file, or download the model again") from error


def check_folder(folder: Path, recorded: ModelFolder) -> None:
    """Raise FetchError for each file that is missing or has another hash than it was pulled with."""
    log(f"{folder}: checking {len(recorded.files)} files, {recorded.size / 1e9:.2f} GB")
    wrong = [name for name, file in recorded.files.items() if not _matches_file(folder / name, file)]
    if wrong:
        hint = "remove the folder and download the model again"
        raise FetchError(
            *(f"{folder / name}: missing, or changed since it was downloaded" for name in wrong), hint=hint
        )


def _matches_file(path: Path, file: ModelFile) -> bool:
    try:
        return not path.is_symlink() and path.stat().st_size == file.size and file_sha256(path) == file.sha256
    except OSError:
        return False


def files_of(folder: Path) -> tuple[Path, list[str]]:
    """Return a model's folder without links, and the sorted names of its files. Raises InputError for other folders."""
    whole = folder.resolve()
    if not any(os.path.lexists(whole / name) for name in ("config.json", "params.json")):
        raise InputError(f"{folder}: found no config.json", hint="`./inv model pull` downloads a model")
    walk = os.walk(whole, onerror=_refuse_unreadable)
    entries = [Path(parent, name) for parent, folders, names in walk for name in (*folders, *names)]
    excluded = [whole / name for name in _OF_CLIENTS]
    paths = [path for path in entries if not any(path.is_relative_to(place) for place in excluded)]
    problems = [f"{path}: {problem}" for path in paths if (problem := _find_file_problem(path, whole))]
    if problems:
        raise InputError(*problems[:10], hint="remove it, or put a copy of the file in its place")
    names = sorted(str(path.relative_to(whole)) for path in paths if path.is_file())
    check_names(str(folder), names)
    return whole, names


def _refuse_unreadable(error: OSError) -> None:
    """Do not leave out a folder that cannot be read, as os.walk does. Raises InputError."""
    raise InputError(f"{error.filename}: {error.strerror}") from error


def as_pulled(folder: Path, names: Sequence[str]) -> ModelFolder:
    """Return what `model pull` recorded; the caller compares each file with it. Raises InputError for other files."""
    recorded = read_folder(folder)
    check_names(str(folder), recorded.files)
    unlisted = sorted({*names} - recorded.files.keys() - {MANIFEST})
    if unlisted:
        raise InputError(
            f"{folder}: {MANIFEST} does not list {unlisted[0]!r}",
            hint=f"remove the file; or remove {MANIFEST}, so that the folder counts as it is",
        )
    return recorded


def _find_file_problem(path: Path, folder: Path) -> str:
    """Return why something is not a file of the model in whose folder it is; empty if it is.

    A link may lead to a file of the same model, also in the cache of Hugging Face, which has the files of
    MODEL/snapshots/REVISION in MODEL/blobs.
    """
    link = f"a link to {path.readlink()}: " if path.is_symlink() else ""
    try:
        target = Path(os.path.realpath(path, strict=True))
        mode = target.stat().st_mode
    except OSError as error:
        return f"{link}{error.strerror}"
    allowed = [folder, *([folder.parents[1] / "blobs"] if folder.parent.name == "snapshots" else [])]
    if not any(target.is_relative_to(place) for place in allowed):
        return f"{link}{target} is outside of the model's folder"
    if not stat.S_ISREG(mode) and (link or not stat.S_ISDIR(mode)):
        return f"{link}expected a file, found a {'folder' if stat.S_ISDIR(mode) else 'pipe, socket or device'}"
    return ""


def check_names(where: str, names: Iterable[str]) -> None:
    """Raise InputError for names that are not those of files below one folder."""
    problems = unsafe_paths(names)
    if problems:
        raise InputError(*(f"{where}: {problem}" for problem in problems[:10]), hint="rename or remove the file")
