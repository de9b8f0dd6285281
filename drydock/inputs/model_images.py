"""Models in registries, `oci://HOST/NAME@sha256:…`: images whose root has the model's files. IO.

What a plan needs is in the first layer: the small files, and drydock-model.json with the size of each other file. The
weights are never read here: the engine that mounts the image compares each layer with its digest.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from drydock.config import mirrors
from drydock.core.errors import InputError, RegistryError, UntrustedError
from drydock.core.files import format_json, hold_lock_file, parse_json_object
from drydock.core.paths import cache_home
from drydock.core.tar import small_files
from drydock.inputs import image_digests, pinned_project
from drydock.inputs.hub import MOST_FILES, unsafe_paths
from drydock.inputs.models import MANIFEST, ModelFolder
from drydock.inputs.store import whole_folder
from drydock.model.running import MODELS
from drydock.oci import image_layout
from drydock.oci.reference import OCI, Reference, parse_reference
from drydock.registry.blobs import Blobs

LARGEST = 128 << 20
"""Bytes of the first layer; `model push` writes half of that into it."""
INDEX = "model.safetensors.index.json"
_HINT = "`./inv model push FOLDER REGISTRY/NAME` makes such an image"


def by_digest(address: str, env: Mapping[str, str] = os.environ) -> Reference:
    """Return the image that an address names by its digest. Raises InputError if it names none."""
    return pinned_project.by_digest(address, env, "model push")


def in_container(address: str) -> str:
    """Return the folder of a model's image in a container. Raises InputError as `by_digest`."""
    return f"{MODELS}/{by_digest(address).repository.rpartition('/')[2]}"


def replace_model_address(words: Sequence[str], env: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return words of the entrypoint's `plan`, with folder and configuration instead of a model's image.

    Raises InputError, RegistryError and UntrustedError.
    """
    address = next(
        (word.removeprefix("--model=") for word in words if word.removeprefix("--model=").startswith(OCI)), ""
    )
    if not address:
        return (*words,)
    folder = in_container(address)
    return (
        *(word.replace(address, folder) for word in words),
        "--model-config",
        str(describe_model_image(address, env)),
    )


def describe_model_image(address: str, env: Mapping[str, str] = os.environ) -> Path:
    """Return a folder with a model's small files and an index that has the weights' size. It is kept by digest.

    Raises InputError, RegistryError and UntrustedError.
    """
    where = by_digest(address, env)
    final = cache_home(env) / "models" / where.digest.removeprefix("sha256:")
    with hold_lock_file(final.with_suffix(".lock")):
        if final.is_dir():
            return final
        files = _fetch_small_files(where, env)
        model_folder = _parse_model_manifest(files.get(MANIFEST, b""), address)
        with whole_folder(final) as temporary:
            for name in (name for name in files if "/" not in name):  # a plan reads no other
                (temporary / name).write_bytes(files[name])
            if INDEX not in files:
                index = {"metadata": {"total_size": weights_size(model_folder)}, "weight_map": {}}
                (temporary / INDEX).write_text(format_json(index))
    return final


def weights_size(model_folder: ModelFolder) -> int:
    """Return the bytes of the weights that vLLM loads: safetensors, or else *.bin."""
    sizes = {
        name: file.size for name, file in model_folder.files.items() if "/" not in name and name != "training_args.bin"
    }
    for ending in (".safetensors", ".bin"):
        if total := sum(size for name, size in sizes.items() if name.endswith(ending)):
            return total
    return 0


def _fetch_small_files(where: Reference, env: Mapping[str, str]) -> dict[str, bytes]:
    """Return the files of the first layer, each below one folder."""
    mirror = parse_reference(image_digests.at_mirror(str(where), mirrors.read_mirrors(env)))
    manifests = image_digests.open_manifests(mirror, env)
    manifest = manifests.find(where.digest)
    if manifest is None:
        raise RegistryError(f"{mirror}: the registry has no such image")
    layers = manifest.content.get("layers", ())
    if not layers or layers[0]["mediaType"] != image_layout.LAYER or layers[0]["size"] > LARGEST:
        text = (
            f"{where}: not a model, expected a first layer of type {image_layout.LAYER} and at most {LARGEST >> 20} MiB"
        )
        raise UntrustedError(text, hint=_HINT)
    blobs = Blobs(manifests.client, cache_home(env) / "uploads")
    data = b"".join(blobs.pull(layers[0]["digest"], at_most=layers[0]["size"]))
    try:
        files = small_files(data, LARGEST, MOST_FILES)
    except (tarfile.TarError, OSError) as error:
        raise UntrustedError(f"{where}: not the files of a model: {error}", hint=_HINT) from error
    if problems := unsafe_paths(files):
        raise UntrustedError(*(f"{where}: {problem}" for problem in problems[:10]))
    return files


def _parse_model_manifest(data: bytes, address: str) -> ModelFolder:
    try:
        return ModelFolder.model_validate(parse_json_object(data, f"{address}: {MANIFEST}"))
    except (InputError, ValidationError) as error:
        text = f"{address}: {MANIFEST} is missing, or none of ours: {str(error).splitlines()[0]}"
        raise UntrustedError(text, hint=_HINT) from error
