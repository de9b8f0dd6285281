"""Models in a bundle: the files of a folder, each a blob that is checked against its hash. IO."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from drydock.bundle.archive import Archive, check_free_space
from drydock.bundle.bundle_records import (
    MODEL,
    MODEL_FILE,
    Blob,
    BundledModel,
    make_artifact,
    make_blob,
    make_title_annotation,
)
from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.core.files import file_sha256, format_json, join_below
from drydock.inputs.models import (
    MANIFEST,
    ModelFile,
    ModelFolder,
    as_pulled,
    check_folder,
    check_names,
    files_of,
    read_folder,
)
from drydock.inputs.store import whole_folder
from drydock.model.record import dump_record
from drydock.oci.manifest import Manifest


class GatheredModel(NamedTuple):
    """A model to be written into a bundle."""

    record: BundledModel
    manifest: Manifest
    """Lists its files, so that index.json leads to each of them."""
    blobs: tuple[Blob, ...]


# --- create ---------------------------------------------------------------------------------------------------------


def gather_models(folders: Sequence[Path]) -> tuple[GatheredModel, ...]:
    """Return the models in these folders. Raises InputError for a folder that is no model, and for a name twice."""
    models = tuple(_gather_model(folder) for folder in folders)
    names = [model.record.name for model in models]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"--model: two folders have the name {twice[0]}", hint="rename one of them")
    return models


def _gather_model(folder: Path) -> GatheredModel:
    whole, names = files_of(folder)
    model_folder = as_pulled(whole, names) if MANIFEST in names else _hash_files(whole, names)
    try:
        record = BundledModel(name=whole.name, folder=model_folder)
    except ValidationError as error:
        reason = "expected letters, digits, dots, hyphens"
        raise InputError(f"--model {folder}: found the name {whole.name!r}, {reason}", hint="rename it") from error
    blobs = {name: Blob(f"sha256:{file.sha256}", file.size, whole / name) for name, file in model_folder.files.items()}
    layers = [item.descriptor(MODEL_FILE, **make_title_annotation(name)) for name, item in sorted(blobs.items())]
    config = make_blob(format_json(dump_record(record)).encode())
    manifest = make_artifact(MODEL, layers, config=config.descriptor(MODEL))
    return GatheredModel(record, manifest, (*blobs.values(), config, make_blob(manifest.data)))


def _hash_files(folder: Path, names: Sequence[str]) -> ModelFolder:
    """Return the files of a folder that no hub vouches for, such as a converted model."""
    log(f"{folder}: not from `model pull`: hashing its files as they are")
    sizes = {name: (folder / name).stat().st_size for name in names}
    files = {name: ModelFile(sha256=file_sha256(folder / name), size=sizes[name]) for name in names}
    return ModelFolder(schema_=1, hub="", name="", revision="", files=files)


# --- load -----------------------------------------------------------------------------------------------------------


def check_models(archive: Archive, models: Sequence[BundledModel], folder: Path | None) -> None:
    """Check what can be checked before anything is written.

    Raises InputError for names that lead elsewhere, and DiskFullError.
    """
    for model in models:
        check_names(f"{archive.path}: model {model.name}", model.folder.files)
    if folder is None or not models:
        return
    check_free_space(folder, sum(model.folder.size for model in models if not (folder / model.name).exists()))


def write_bundled_model(archive: Archive, model: BundledModel, folder: Path) -> Path:
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
            path = join_below(temporary, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as target:
                target.writelines(archive.chunks(f"sha256:{file.sha256}"))
        (temporary / MANIFEST).write_text(format_json(dump_record(model.folder)))
    return final
