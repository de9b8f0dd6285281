"""The verb `bundle create`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from drydock.cli.task_helpers import here, write_result
from drydock.cli.verb import Verb
from drydock.core.errors import InputError
from drydock.core.files import disk_full
from drydock.core.paths import cache_home
from drydock.core.project import Project
from drydock.model.shared_options import DryRunOption, JsonOption

if TYPE_CHECKING:
    from drydock.bundle.create import Created


class BundleCreateOptions(DryRunOption, JsonOption):
    """What a bundle contains."""

    output: str
    """file to write"""
    target: tuple[str, ...] = ()
    """row, alias or accelerator; repeatable"""
    model: tuple[str, ...] = ()
    """folder of a model to include, such as one of `model pull`; repeatable"""
    sign_key: str = ""
    """sign with this cosign private key: a file, env://NAME, or a key service URI"""


@Verb
def create_bundle(options: BundleCreateOptions) -> None:
    """Write images, their attestations, the inputs to rebuild them, and models into one file."""
    from drydock.bundle import create

    created = write_bundle(here(), options)
    write_result(created, create.format_created_bundle(created), json=options.json)


def write_bundle(project: Project, options: BundleCreateOptions) -> Created:
    """Write a bundle of rows and of models, signed if a key is given.

    Raises InputError if a row is not built, FetchError if an input cannot be downloaded, LicenceError or UntrustedError
    if `publish` would refuse an image, DiskFullError.
    """
    from drydock.attest import cosign
    from drydock.bundle import archive, create
    from drydock.bundle.bundle_models import gather_models
    from drydock.bundle.bundle_records import make_blob
    from drydock.config.matrix import find_variant, read_matrix
    from drydock.publish.push import list_built_layouts

    if not options.target and not options.model:
        raise InputError("no --target", hint="./inv bundle create --target cpu --output FILE; --target is repeatable")
    started, output = time.monotonic(), Path(options.output)
    create.check_output(output)
    signer = cosign.Signer(options.sign_key) if options.sign_key else None
    cosign.require_signer(signer)
    variants = read_matrix(project)
    variants_by_id = {variant.id: variant for variant in (find_variant(variants, target) for target in options.target)}
    layouts = {name: list_built_layouts(project, variant) for name, variant in sorted(variants_by_id.items())}
    models = gather_models([Path(folder) for folder in options.model])
    with disk_full(cache_home()):
        parts = [create.make_bundled_part(layout) for row_layouts in layouts.values() for layout in row_layouts]
        entries, blobs = create.assemble_index(parts, layouts, models, project)
        index = archive.index_of(entries)
        if not options.dry_run:
            archive.write_archive(output, index, blobs, cosign.sign_data(index, signer) if signer else b"")
    return create.Created(
        file=str(output),
        bundle=make_blob(index).digest,
        size=sum({blob.digest: blob.size for blob in blobs}.values()) if options.dry_run else output.stat().st_size,
        images=create.map_images(parts),
        models={model.record.name: create.name_model_source(model.record) for model in models},
        blobs=len({item.digest for item in blobs}),
        not_included=tuple(line for part in parts for line in create.not_included(part.record)),
        signed=signer is not None,
        seconds=round(time.monotonic() - started, 1),
    )
