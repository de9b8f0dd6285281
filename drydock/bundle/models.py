"""Models in a bundle: the files of a folder, each a blob that is checked against its hash. IO."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from drydock.bundle.archive import Archive, check_free_space
from drydock.bundle.contents import MODEL, MODEL_FILE, Blob, BundledModel, artifact, blob, titled
from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.core.files import below, dumps, file_sha256
from drydock.inputs.hub import unsafe_paths
from drydock.inputs.models import MANIFEST, ModelFile, ModelFolder, check_folder, read_folder
from drydock.inputs.store import whole_folder
from drydock.model.record import dump
from drydock.registry.manifests import Manifest


class GatheredModel(NamedTuple):
    """A model to be written into a bundle."""

    record: BundledModel
    manifest: Manifest
    """Lists its files, so that index.json leads to each of them."""
    blobs: tuple[Blob, ...]


# --- create ---------------------------------------------------------------------------------------------------------


def gather(folders: Sequence[Path]) -> tuple[GatheredModel, ...]:
    """Return the models in these folders. Raises InputError for a folder that is no model, and for a name twice."""
    found = tuple(_gathered(folder) for folder in folders)
    names = [model.record.name for model in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"--model: two folders have the name {twice[0]}", hint="rename one of them")
    return found


def _gathered(folder: Path) -> GatheredModel:
    whole = folder.resolve()
    if not any(os.path.lexists(whole / name) for name in ("config.json", "params.json")):
        raise InputError(f"--model {folder}: found no config.json", hint="`./inv model pull` downloads a model")
    names = _files(whole)
    known = _as_pulled(whole, names) if MANIFEST in names else _hashed(whole, names)
    try:
        record = BundledModel(name=whole.name, folder=known)
    except ValidationError as error:
        reason = "expected letters, digits, dots, hyphens"
        raise InputError(f"--model {folder}: found the name {whole.name!r}, {reason}", hint="rename it") from error
    blobs = {name: Blob(f"sha256:{file.sha256}", file.size, whole / name) for name, file in known.files.items()}
    layers = [item.descriptor(MODEL_FILE, **titled(name)) for name, item in sorted(blobs.items())]
    config = blob(dumps(dump(record)).encode())
    manifest = artifact(MODEL, layers, config=config.descriptor(MODEL))
    return GatheredModel(record, manifest, (*blobs.values(), config, blob(manifest.data)))


def _as_pulled(folder: Path, names: Sequence[str]) -> ModelFolder:
    """Return what `model pull` recorded; the archive compares each file with it. Raises InputError for other files."""
    known = read_folder(folder)
    _check_names(str(folder), known.files)
    other = sorted({*names} - known.files.keys() - {MANIFEST})
    if other:
        raise InputError(
            f"--model {folder}: {MANIFEST} does not list {other[0]!r}",
            hint=f"remove the file; or remove {MANIFEST}, so that the folder counts as it is",
        )
    return known


def _hashed(folder: Path, names: Sequence[str]) -> ModelFolder:
    """Return the files of a folder that no hub vouches for, such as a converted model."""
    log(f"{folder}: not from `model pull`: hashing its files as they are")
    _check_names(str(folder), names)
    sizes = {name: (folder / name).stat().st_size for name in names}
    files = {name: ModelFile(sha256=file_sha256(folder / name), size=sizes[name]) for name in names}
    return ModelFolder(schema_=1, hub="", name=folder.name, revision="", files=files)


def _files(folder: Path) -> list[str]:
    """Return the names of all files below a folder. Raises InputError for what is not a file of this model."""
    paths = [Path(parent, name) for parent, folders, names in os.walk(folder) for name in (*folders, *names)]
    problems = [f"{path}: {problem}" for path in paths if (problem := _problem(path, folder))]
    if problems:
        raise InputError(*problems[:10], hint="remove it, or put a copy of the file in its place")
    return [str(path.relative_to(folder)) for path in paths if path.is_file()]


def _problem(path: Path, folder: Path) -> str:
    """Return why something in a model's folder cannot be bundled; empty if it can.

    A link may lead to a file of the same model, also in the cache of Hugging Face, which has the files of
    MODEL/snapshots/REVISION in MODEL/blobs.
    """
    link = f"a link to {path.readlink()}: " if path.is_symlink() else ""
    try:
        target = Path(os.path.realpath(path, strict=True))
        mode = target.stat().st_mode
    except OSError as error:
        return f"{link}{error.strerror}"
    own = [folder, *([folder.parents[1] / "blobs"] if folder.parent.name == "snapshots" else [])]
    if not any(target.is_relative_to(place) for place in own):
        return f"{link}{target} is outside of the model's folder"
    if not stat.S_ISREG(mode) and (link or not stat.S_ISDIR(mode)):
        return f"{link}expected a file, found a {'folder' if stat.S_ISDIR(mode) else 'pipe, socket or device'}"
    return ""


def _check_names(where: str, names: Iterable[str]) -> None:
    problems = unsafe_paths(names)
    if problems:
        raise InputError(*(f"{where}: {problem}" for problem in problems[:10]), hint="rename or remove the file")


# --- load -----------------------------------------------------------------------------------------------------------


def check(archive: Archive, models: Sequence[BundledModel], folder: Path | None) -> None:
    """Check what can be checked before anything is written.

    Raises InputError for names that lead elsewhere, and DiskFullError.
    """
    for model in models:
        _check_names(f"{archive.path}: model {model.name}", model.folder.files)
    if folder is None or not models:
        return
    check_free_space(folder, sum(model.folder.size for model in models if not (folder / model.name).exists()))


def load(archive: Archive, model: BundledModel, folder: Path) -> Path:
    """Write a model into a folder below `folder`; one that is there already is only checked.

    Raises FetchError for a damaged file, InputError if another model has its place.
    """
    final = folder / model.name
    if final.exists():
        if not (final / MANIFEST).is_file() or read_folder(final) != model.folder:
            raise InputError(
                f"{final}: has other files than the bundle's model", hint="remove it, or name another folder"
            )
        check_folder(final, model.folder)
        return final
    with whole_folder(final) as temporary:
        for name, file in model.folder.files.items():
            path = below(temporary, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as target:
                target.writelines(archive.chunks(f"sha256:{file.sha256}"))
        (temporary / MANIFEST).write_text(dumps(dump(model.folder)))
    return final
