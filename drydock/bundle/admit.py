"""Decides whether a bundle, an image in it and its documents are taken. IO (reads only).

A bundle does not vouch for itself: a key or a digest that the user names does, and for an image also the digest that
this repository records for its inputs.
"""

from __future__ import annotations

from pathlib import Path

from drydock.attest import signing
from drydock.build.job import layouts_folder, recorded_digest
from drydock.bundle.archive import Archive
from drydock.bundle.contents import BundledImage
from drydock.core.errors import NotReproducibleError, UntrustedError
from drydock.lock import lockfile
from drydock.oci import layout as oci


def verify_signature(archive: Archive, key: str) -> None:
    """Raise UntrustedError unless the owner of a public key signed the index, which names every blob by digest."""
    hint = "nothing was loaded; get the bundle again from its maker"
    if not archive.signature:
        raise UntrustedError(f"{archive.path}: not signed, but --key {key} requires a signature", hint=hint)
    try:
        signing.check_data(archive.index_bytes, archive.signature, key)
    except UntrustedError as error:
        raise UntrustedError(*(f"{archive.path}: {problem}" for problem in error.problems), hint=hint) from error


def check_recorded(image: BundledImage, root: Path) -> None:
    """Raise UntrustedError if this repository records another digest for the same inputs."""
    path = lockfile.path_of(root, image.variant)
    if not path.is_file():
        return
    recorded = recorded_digest(root, image.variant, lockfile.read_lock(path), image.platform, image.inputs_sha256)
    if recorded not in (None, image.digest):
        raise UntrustedError(
            f"{image.variant} ({image.platform}): the bundle contains {image.digest}, expected {recorded}, which"
            f" images/{image.variant} records for the same inputs",
            hint="nothing was loaded; get the bundle again from its maker",
        )


def check_own_build(image: BundledImage) -> None:
    """Raise NotReproducibleError if this machine built another image from the same inputs."""
    layout = kept(image)
    built = _digest_of(layout)
    if built not in (None, image.digest):
        raise NotReproducibleError(
            f"{image.variant} ({image.platform}): this machine built {built} from the same inputs,"
            f" the bundle contains {image.digest}",
            hint=f"`invoke verify --target {image.variant}` shows which one is reproducible; to use the bundle's image,"
            f" remove {layout}",
        )


def _digest_of(layout: Path) -> str | None:
    """Return the digest that a kept layout's index names; None if there is none, or its index is damaged."""
    try:
        return oci.read_digest(layout)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def kept(image: BundledImage) -> Path:
    """Return the folder in which this machine keeps an image made from the same inputs; it need not exist."""
    return layouts_folder(image.variant, image.platform) / image.inputs_sha256


def read_documents(archive: Archive, image: BundledImage) -> dict[str, bytes]:
    """Return the documents of an image that only the machine that built it can make, by file name.

    `publish` makes the others from the layers. Raises UntrustedError for a document about another image.
    """
    from drydock.attest import brought  # noqa: PLC0415 - slow to import, needed by few verbs

    about = brought.About(image.variant, image.platform, image.digest, image.inputs_sha256)
    found = {}
    for digest in image.documents:
        manifest = archive.json(digest)
        if manifest["artifactType"] not in brought.TYPES:
            continue
        if manifest["subject"]["digest"] != image.digest:
            raise UntrustedError(
                f"{archive.path}: document {digest} is about {manifest['subject']['digest']}, expected {image.digest}"
            )
        found[manifest["artifactType"]] = archive.data(manifest["layers"][0]["digest"])
    brought.check(found, about)
    return {brought.TYPES[media_type]: data for media_type, data in found.items()}
