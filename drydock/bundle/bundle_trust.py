"""Decides whether a bundle is loaded at all, and whether its images are those that this repository expects. IO (reads).

A bundle does not vouch for itself: a key or a digest that the user names does, before anything in it is parsed.
"""

from __future__ import annotations

from pathlib import Path

from drydock.attest import cosign
from drydock.build.build_job import layouts_folder
from drydock.bundle.archive import Archive
from drydock.bundle.bundle_records import BundledImage
from drydock.core.errors import InputError, NotReproducibleError, UntrustedError
from drydock.core.project import Project
from drydock.lock import image_record
from drydock.oci import image_layout


def open_trusted(path: Path, key: str, digest: str) -> Archive:
    """Return a bundle that the owner of a public key signed, or that has this digest, or both if both are given.

    Raises InputError without either, and UntrustedError for another bundle.
    """
    if not key and not digest:
        raise InputError(
            f"{path}: found neither --verify-key nor --digest, expected at least one of them",
            hint=f"`./inv bundle load {path} --digest sha256:…` with the digest that `./inv bundle create` printed, or"
            f" `./inv bundle load {path} --verify-key cosign.pub` with its maker's public key",
        )
    archive = Archive(path)
    if digest and archive.digest != digest:
        raise UntrustedError(f"{path}: digest is {archive.digest}, expected {digest}")
    if key:
        _verify_signature(archive, key)
    return archive


def _verify_signature(archive: Archive, key: str) -> None:
    """Raise UntrustedError unless the owner of a public key signed the index, which names every blob by digest."""
    hint = "nothing was loaded; get the bundle again from its maker"
    if not archive.signature:
        raise UntrustedError(f"{archive.path}: not signed, but --verify-key {key} requires a signature", hint=hint)
    try:
        cosign.check_data(archive.index_bytes, archive.signature, key)
    except UntrustedError as error:
        raise UntrustedError(*(f"{archive.path}: {problem}" for problem in error.problems), hint=hint) from error


def check_recorded(image: BundledImage, project: Project) -> None:
    """Raise UntrustedError if this repository records another digest for the same inputs."""
    record = image_record.read_platform_record(project, image.variant, image.platform)
    recorded = record.find_digest(image.inputs_sha256)
    if recorded not in (None, image.digest):
        raise UntrustedError(
            f"{image.variant} ({image.platform}): the bundle contains {image.digest}, expected {recorded}, which"
            f" images/{image.variant} records for the same inputs",
            hint="nothing was loaded; get the bundle again from its maker",
        )


def check_own_build(image: BundledImage) -> None:
    """Raise NotReproducibleError if this machine built another image from the same inputs."""
    layout = kept_image_folder(image)
    built = _digest_of(layout)
    if built not in (None, image.digest):
        raise NotReproducibleError(
            f"{image.variant} ({image.platform}): this machine built {built} from the same inputs,"
            f" the bundle contains {image.digest}",
            hint=f"`./inv verify --target {image.variant}` shows which one is reproducible; to use the bundle's image,"
            f" remove {layout}",
        )


def _digest_of(layout: Path) -> str | None:
    """Return the digest that a kept layout's index names; None if there is none, or its index is damaged."""
    try:
        return image_layout.read_digest(layout)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def kept_image_folder(image: BundledImage) -> Path:
    """Return the folder in which this machine keeps an image made from the same inputs; it need not exist."""
    return layouts_folder(image.variant, image.platform) / image.inputs_sha256
