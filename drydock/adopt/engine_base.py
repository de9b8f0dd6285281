"""An image of others that only this machine's engine has, as a base. IO.

It is put into the store as a base from a registry would be, so that the row's image is assembled from there.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from drydock.adopt.base_image import PLATFORMS, BaseImage, BasePlatform
from drydock.build.adoption import read_parts
from drydock.core.errors import InputError
from drydock.core.files import hold_lock_file, read_bounded
from drydock.engine import daemon
from drydock.engine.saved_images import save_image
from drydock.inputs import fetch, indexes
from drydock.inputs.store import Store, whole_folder
from drydock.oci import image_layout, strict
from drydock.oci.manifest import Manifest
from drydock.oci.reference import parse_reference
from drydock.publish.repository import Repository

SAVED = "saved"
"""Folder of the store for images whose digest is not known yet."""


def open_engine_base(name: str, only: str, store: Store) -> BaseImage:
    """Return an image of the engine, of the platform that it has; no registry is asked.

    Raises EngineError for an image that the engine does not have, InputError for another platform than `only`,
    RegistryError for what no engine can run.
    """
    if name.startswith("-"):
        raise InputError(f"{name}: expected the name of an image")
    daemon.ensure_engine(install=False)
    named = parse_reference(name)
    saved = fetch.image_folder(f"sha256:{hashlib.sha256(name.encode()).hexdigest()}", SAVED, store)
    with hold_lock_file(saved.with_suffix(".lock")):
        with whole_folder(saved, replace=True) as folder:
            digest = save_image(name, folder)
        platform, base_platform = _read_saved_image(saved, name, only)
        final = fetch.image_folder(digest, platform, store)
        _move_layout(saved, final)
    access = indexes.make_index_access(indexes.read_indexes(), os.environ)
    repository = Repository(named._replace(tag="", digest=""), access)
    reference = named.at(digest)._replace(tag=named.tag)
    return BaseImage(repository, reference, {platform: base_platform}, layout=final)


def _read_saved_image(saved: Path, name: str, only: str) -> tuple[str, BasePlatform]:
    """Return the platform of a saved image, and what is known of it. Raises InputError."""
    image_digest, content = image_layout.find_image(saved)
    if problem := strict.not_image(content):
        raise InputError(f"{name}: not an image, but {problem}")
    raw = read_bounded(image_layout.path_of_blob(saved, image_digest), image_layout.LARGEST)
    manifest = Manifest(raw, content["mediaType"])
    config = read_bounded(image_layout.path_of_blob(saved, content["config"]["digest"]), image_layout.LARGEST)
    platform = strict.platform_of(strict.read_config(config, name))
    if platform not in PLATFORMS or only not in ("", platform):
        raise InputError(f"{name}: the engine has it for {platform}, expected {only or 'Linux'}")
    return platform, BasePlatform(manifest, read_parts(content, config, name))


def _move_layout(saved: Path, final: Path) -> None:
    """Move a layout to where it is looked for by its digest; one that is there stays, since a build may read it."""
    with whole_folder(final, replace_unless=image_layout.is_intact_layout) as folder:
        for path in saved.iterdir():
            path.rename(folder / path.name)
    saved.rmdir()
