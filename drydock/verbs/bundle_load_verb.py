"""The verb `bundle load`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from drydock.cli.task_helpers import here, write_result
from drydock.cli.verb import Verb
from drydock.core.project import Project
from drydock.model.shared_options import ContextOption, DryRunOption, JsonOption

if TYPE_CHECKING:
    from drydock.bundle.load import Loaded


class BundleLoadOptions(DryRunOption, ContextOption, JsonOption):
    """Which bundle is loaded, and how it is trusted."""

    file: str
    """a bundle, as `bundle create` wrote it"""
    engine: bool = False
    """also load the images into the engine"""
    digest: str = ""
    """expected digest of the bundle, as `bundle create` printed it: sha256:…; this or --verify-key is required"""
    verify_key: str = ""
    """public key whose owner must have signed the bundle; this or --digest is required"""
    models: str = ""
    """folder to write the bundle's models to"""
    context: tuple[str, ...] = ()
    """NAME=FOLDER: files that only their vendor may distribute, found by hash; repeatable"""


@Verb
def load_bundle(options: BundleLoadOptions) -> None:
    """Load a bundle into the store, to run, publish and rebuild its images without network."""
    from drydock.bundle import load

    loaded = load_trusted(here(), options)
    write_result(loaded, load.format_loaded_bundle(loaded), json=options.json)


def load_trusted(project: Project, options: BundleLoadOptions) -> Loaded:
    """Load a bundle. Nothing is written before the bundle, its images and the free space were checked.

    Raises InputError, FetchError, DiskFullError, UntrustedError for a bundle that neither key nor digest vouches for or
    an image that is not the recorded one, or NotReproducibleError if this machine built another image from the same
    inputs.
    """
    from drydock.bundle import bundle_models, load
    from drydock.bundle.bundle_trust import check_own_build, check_recorded, open_trusted
    from drydock.bundle.create import not_included
    from drydock.inputs import overrides
    from drydock.inputs.store import default_store

    started = time.monotonic()
    supplied_folders = overrides.parse_contexts(options.context)
    models_folder = Path(options.models) if options.models else None
    archive = open_trusted(Path(options.file), options.verify_key, options.digest)
    bundle = load.read_bundle(archive)
    for image in bundle.images:
        check_recorded(image, project)
        check_own_build(image)
    loading = load.Loading(archive, default_store())
    bundle_models.check_models(archive, bundle.models, models_folder)
    loading.check_free_space(bundle)
    if options.dry_run:
        images = tuple(load.describe_image(image, project) for image in bundle.images)
        names = tuple(model.name for model in bundle.models)
        seconds = round(time.monotonic() - started, 1)
        return load.Loaded(
            bundle=archive.digest, origin=bundle.origin, images=images, files_new=0, not_included=(),
            models=(), models_left=names, signed=bool(options.verify_key), seconds=seconds,
        )  # fmt: skip

    load.add_supplied(bundle, supplied_folders, loading.store)
    platforms = load.engine_platforms(bundle.images) if options.engine else {}
    images = tuple(load.load_image(loading, image, platforms, project) for image in bundle.images)
    models = tuple(
        bundle_models.write_bundled_model(archive, model, models_folder) for model in bundle.models if models_folder
    )
    return load.Loaded(
        bundle=archive.digest,
        origin=bundle.origin,
        images=images,
        files_new=loading.files_new,
        not_included=tuple(line for image in bundle.images for line in not_included(image, loading.store)),
        models=tuple(map(str, models)),
        models_left=() if models_folder else tuple(model.name for model in bundle.models),
        signed=bool(options.verify_key),
        seconds=round(time.monotonic() - started, 1),
    )
