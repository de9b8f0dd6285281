"""An image of others becomes one of drydock's in a registry: two layers more, and no layer of it is changed. IO.

The registry mounts the base's layers if it has them; else they are copied as they arrive. Nothing of them is unpacked,
and nothing is stored here.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from drydock.adopt import upstream_documents
from drydock.adopt.base_facts import BaseContents, dump_facts
from drydock.adopt.base_image import BaseImage, BasePlatform
from drydock.adopt.upstream_documents import UpstreamDocument
from drydock.attest import cosign, documents
from drydock.build import adoption
from drydock.build.build_job import Job
from drydock.core.console import as_lines
from drydock.core.errors import InputError, StaleError
from drydock.core.project import Project
from drydock.inputs import indexes
from drydock.model.record import Record
from drydock.model.variant import Variant
from drydock.oci.added_layers import AddedLayer
from drydock.oci.manifest import Manifest, to_manifest
from drydock.oci.reference import Reference, parse_reference
from drydock.publish import bindings, push, tags
from drydock.publish.repository import PublishedTag, Repository
from drydock.registry.blobs import BlobContent, BytesContent, RemoteContent


class AdoptedImage(Record):
    """What `adopt --json` prints."""

    row: str
    base: str
    """The image of others, with the digest that is pinned."""
    image: str
    """Reference to pull: repository@digest."""
    digest: str
    platforms: Mapping[str, str]
    """Platform → its manifest's digest; equal to `digest` if there is only one platform."""
    layers: Mapping[str, int]
    """Digest → bytes of each layer that was added."""
    kept: Mapping[str, Any]
    """Settings of the base that the image inherits: its volumes, and variables that change how programs start."""
    replaced: Mapping[str, Any]
    """Settings of the base that the image has otherwise: Entrypoint, User, …"""
    licences: str
    """As the base's label states them; empty if it states none."""
    facts: Mapping[str, Any]
    """What is in the base, as `--facts` takes it."""
    lists: Mapping[str, int]
    """What its vLLM says of itself, by the number of entries; empty if that was not read."""
    not_in_effect: Mapping[str, tuple[str, ...]]
    """File of the base for shells → variables that it sets: the entrypoint starts no shell."""
    upstream: tuple[UpstreamDocument, ...]
    """What is attached to the base, and was carried along."""
    upstream_verified: bool
    """Whether the base's signature was checked with the key or identity that the user names."""
    tag: PublishedTag | None
    """None if nothing was written."""
    blobs: Mapping[str, int]
    """Number of blobs by outcome: uploaded, mounted, present."""
    bytes_sent: int
    bytes_read: int
    """Bytes of the base's layers that were read to see what is in it; none of them is stored."""
    documents: Mapping[str, tuple[str, ...]]
    """Digest → file names of drydock's own documents that are attached to it."""
    signed: bool
    seconds: float
    loaded: str = ""
    """Name in the engine, with --load."""
    written: tuple[str, ...] = ()
    """Files of the row that were written."""


class AssembledImage(NamedTuple):
    """An image that a registry does not have yet."""

    manifest: Manifest
    """What the tag names: an index, or the manifest of the only platform."""
    platforms: Mapping[str, Manifest]
    blobs: Mapping[str, bytes]
    """Digest → content of what was made here."""
    layers: Sequence[AddedLayer]


SHOWN_LISTS = {
    "architectures": "architectures",
    "quantisations": "quantisations",
    "tool_parsers": "tool parsers",
    "reasoning_parsers": "reasoning parsers",
    "flags": "flags",
    "variables": "variables",
}
"""List of vLLM → what it is called where its length is printed."""
STARTS_PROGRAMS = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "BASH_ENV", "ENV")
"""Variables of a base that change how its programs start, and so are shown."""


def assemble_image(project: Project, variant: Variant, base: BaseImage) -> AssembledImage:
    """Return the image of a row on its base. It depends on the row, the entrypoint's files and the base's digest alone.

    Raises InputError for additions that need a build, and RegistryError for a base that contradicts itself.
    """
    adoption.refuse_additions(variant)
    layers = adoption.make_layers(project, variant)
    images = {
        name: adoption.extend_base(variant, platform.parts, base.digest, layers, _name_platform(base, platform))
        for name, platform in base.platforms.items()
    }
    manifests = {name: to_manifest(image.manifest) for name, image in images.items()}
    blobs = {layer.digest: layer.data for layer in layers}
    blobs |= {image.manifest["config"]["digest"]: image.config for image in images.values()}
    return AssembledImage(push.combine_platforms(manifests), manifests, blobs, layers)


def _name_platform(base: BaseImage, platform: BasePlatform) -> str:
    return f"{base.where}@{platform.manifest.digest}"


def parse_destination(text: str) -> Reference:
    """Return the repository that an image is written to. Raises InputError for a digest."""
    where = parse_reference(text)
    if where.digest:
        raise InputError(f"--to {text}: found a digest, expected REGISTRY/NAME, with or without a tag")
    return where


def choose_tag(where: Reference, row: str) -> str:
    """Return the tag to set: the one that the user names, else the row's channel that moves, as of `publish`."""
    return where.tag or tags.format_channel_tags(row, tags.EDGE, default=False)[0]


def push_image(
    jobs: Sequence[Job],
    assembled: AssembledImage,
    base: BaseImage,
    where: Reference,
    signer: cosign.Signer | None,
    *,
    insecure: bool,
) -> dict[str, Any]:
    """Write an image into a registry with its documents, then sign it, then set its tag.

    There is a job for each platform. Returns what was written, as fields of `AdoptedImage`.

    Raises RegistryError, CredentialsError, and TagError if the tag is that of another release.
    """
    started = time.monotonic()
    cosign.require_signer(signer)
    variant = jobs[0].variant
    repository = open_destination(where, insecure=insecure)
    tag = choose_tag(where, variant.id)
    planned = repository.plan_tag(assembled.manifest.digest, tag)
    platforms = {name: manifest.digest for name, manifest in assembled.platforms.items()}
    subject = bindings.Subject(str(repository.where), variant.id, assembled.manifest.digest, platforms, "adopted")
    binding = bindings.bind_chosen_tag(repository, subject, planned, signer)
    pushed = push.push_contents(repository, _list_blobs(assembled, base, repository))
    for manifest in (*assembled.platforms.values(), assembled.manifest):
        if repository.manifests.find(manifest.digest) is None:
            repository.manifests.push(manifest)
    attached = {
        assembled.platforms[job.platform].digest: documents.make_adopted_documents(
            job, assembled.platforms[job.platform], str(repository.where), base.platforms[job.platform].settings.labels
        )
        for job in jobs
    }
    attached[assembled.manifest.digest] = (*attached.get(assembled.manifest.digest, ()), binding)
    push.attach_documents(repository, [*assembled.platforms.values(), assembled.manifest], attached, signer)
    return {
        "upstream": upstream_documents.carry_documents(base, repository),
        "documents": {digest: tuple(item.name for item in items) for digest, items in attached.items()},
        "tag": repository.tag(assembled.manifest, tag),
        "blobs": {how: sum(blob.how == how for blob in pushed) for how in ("uploaded", "mounted", "present")},
        "bytes_sent": sum(blob.size for blob in pushed if blob.how == "uploaded"),
        "signed": signer is not None,
        "seconds": round(time.monotonic() - started, 1),
    }


def open_destination(where: Reference, *, insecure: bool) -> Repository:
    """Return the repository that an image is written to."""
    access = indexes.make_index_access(indexes.read_indexes(), os.environ)
    return Repository(where._replace(tag=""), access, insecure=insecure)


def _list_blobs(
    assembled: AssembledImage, base: BaseImage, repository: Repository
) -> dict[str, tuple[BlobContent, int]]:
    """Return what the registry needs: the base's layers, which it mounts if it has them, and what was made here."""
    source = base.repository
    blobs: dict[str, tuple[BlobContent, int]] = {}
    for digest, size in base.layers.items():
        if source.where.host == repository.where.host:
            repository.note_blob(digest, source.where.repository)
        blobs[digest] = RemoteContent(source.blobs, digest, size), size
    return blobs | {digest: (BytesContent(data), len(data)) for digest, data in assembled.blobs.items()}


def check_image(assembled: AssembledImage, variant: Variant, where: Reference, *, insecure: bool) -> None:
    """Raise StaleError unless the tag in the registry names this image."""
    repository = open_destination(where, insecure=insecure)
    tag = choose_tag(where, variant.id)
    digest = repository.manifests.digest(tag)
    if digest != assembled.manifest.digest:
        raise StaleError(
            f"{repository.where.tagged(tag)}: {digest or 'not found'}, expected {assembled.manifest.digest}, which the"
            f" row {variant.id} and this entrypoint make",
            hint="run it without --check to write that image",
        )


def describe_image(
    assembled: AssembledImage,
    variant: Variant,
    base: BaseImage,
    contents: BaseContents,
    where: Reference,
    *,
    is_verified: bool,
) -> AdoptedImage:
    """Return what an image is, before anything of it is pushed; `where` is the repository that it is written to."""
    settings = next(iter(base.platforms.values())).settings
    programs = {name: settings.env[name] for name in STARTS_PROGRAMS if name in settings.env}
    lists = contents.lists.lists if contents.lists else {}
    return AdoptedImage(
        row=variant.id,
        base=str(base.reference),
        image=str(where.at(assembled.manifest.digest)),
        digest=assembled.manifest.digest,
        platforms={name: manifest.digest for name, manifest in assembled.platforms.items()},
        layers={layer.digest: len(layer.data) for layer in assembled.layers},
        kept={"Volumes": settings.volumes, **programs} if settings.volumes else programs,
        replaced=settings.replaced,
        licences=settings.labels.get(adoption.LICENCES, ""),
        facts=dump_facts(contents, base),
        lists={name: len(entries) for name, entries in sorted(lists.items())},
        not_in_effect=contents.shell_variables,
        bytes_read=contents.bytes_read,
        upstream=(),
        upstream_verified=is_verified,
        documents={},
        tag=None,
        blobs={},
        bytes_sent=0,
        signed=False,
        seconds=0.0,
    )


def format_adopted(image: AdoptedImage) -> str:
    """Return the result as text."""
    lines = [image.image, f"base: {image.base}; licences: {image.licences or 'its labels state none'}"]
    lines += [f"{name}: {digest}" for name, digest in image.platforms.items() if len(image.platforms) > 1]
    lines.append(f"added: {len(image.layers)} layers, {sum(image.layers.values()) / 1e6:.1f} MB")
    lines += [f"replaced: {name} {_show_value(value)}" for name, value in image.replaced.items()]
    lines += [f"kept: {name} {_show_value(value)}" for name, value in image.kept.items()]
    if image.replaced.get("Entrypoint") and not image.bytes_read:
        lines.append("not in effect: what that entrypoint and files of shells set; --read-layers lists it")
    lines += [
        f"not in effect, since no script of the base is started: {', '.join(map(_show_name, names))} of /{path}"
        for path, names in image.not_in_effect.items()
    ]
    lines += _format_upstream(image)
    if image.tag:
        lines.append(f"tag {image.tag.tag}: {'unchanged' if not image.tag.moves else image.tag.was or 'new'}")
        counts = ", ".join(f"{count} {how}" for how, count in sorted(image.blobs.items()))
        lines.append(f"blobs: {counts}; {image.bytes_sent / 1e6:.1f} MB sent in {image.seconds} s")
    if image.bytes_read:
        lines.append(f"read: {image.bytes_read / 1e6:.1f} MB of the base's layers, none of it stored")
    if image.lists:
        counts = ", ".join(f"{image.lists[name]} {text}" for name, text in SHOWN_LISTS.items() if name in image.lists)
        lines.append(f"its vLLM has {counts}")
    if not image.signed and image.tag:
        lines.append("not signed")
    lines += [f"wrote {path}" for path in image.written]
    return as_lines(lines)


def _format_upstream(image: AdoptedImage) -> list[str]:
    """Return what the base's publisher attached, and whether its signature was checked."""
    kinds = Counter(_show_name(document.kind) for document in image.upstream)
    attached = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "nothing"
    checked = (
        "its signature is valid" if image.upstream_verified else "no signature was checked: --verify-key names one"
    )
    return [f"attached to the base: {attached}; {checked}"] if image.tag or image.upstream_verified else []


def _show_name(text: str) -> str:
    """Return a name of others, without anything that a terminal could take for a command."""
    return ascii(text)[1:-1][:80]


def _show_value(value: Any) -> str:
    """Return a value of a base in one line: others wrote it."""
    return ascii(value)[:200]
