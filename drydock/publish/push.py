"""Push a built image to a registry: blobs, manifests, index, attached documents, then tags. IO.

Tags are set last, so that a tag always names a complete image. Blobs that the registry already has are not uploaded
again: an interrupted publish resumes when it is run again, and a completed one does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from drydock.attest import cosign, documents
from drydock.attest.documents import Attached
from drydock.build.build_job import BuildOptions, Job, prepare_job
from drydock.core.console import as_lines, byte_progress, log
from drydock.core.errors import InputError, RegistryError
from drydock.core.files import parse_any_json
from drydock.core.project import Project
from drydock.inputs import indexes
from drydock.model.record import Record
from drydock.model.variant import Variant
from drydock.oci import image_layout, strict
from drydock.oci.manifest import Manifest, to_manifest
from drydock.oci.reference import Reference, parse_reference
from drydock.publish import bindings, tags
from drydock.publish.repository import PublishedTag, Repository
from drydock.registry.blobs import BlobContent, Pushed, check_file
from drydock.registry.manifests import INDEX, MANIFEST

WORKERS = 4
"""Number of blobs that are pushed at the same time."""
INSTEAD = ", then `./inv verify --record`; or `./inv adopt IMAGE --to REGISTRY/NAME`, which needs no build"
Documents = Mapping[str, tuple[Attached, ...]]
"""Digest → documents to attach to it."""


class Published(Record):
    """What `publish --json` prints."""

    variant: str
    image: str
    """Reference to pull: repository@digest."""
    digest: str
    platforms: Mapping[str, str]
    """Platform → its manifest's digest; equal to `digest` if there is only one platform."""
    tags: tuple[PublishedTag, ...]
    blobs: Mapping[str, int]
    """Number of blobs by outcome: uploaded, mounted, present."""
    bytes_sent: int
    referrers: Mapping[str, tuple[str, ...]]
    """Digest → file names of the attached documents."""
    signed: bool
    dry_run: bool
    seconds: float


class Layout(NamedTuple):
    """A built image for one platform."""

    job: Job
    folder: Path
    manifest: Manifest

    @property
    def descriptors(self) -> list[dict[str, Any]]:
        """Return the descriptors of its blobs: the config, then the layers."""
        content = self.manifest.content
        return [content["config"], *content["layers"]]

    def blob(self, digest: str) -> Path:
        """Return a blob's file."""
        return image_layout.path_of_blob(self.folder, digest)


def open_row_repository(registry: str, variant: Variant, *, insecure: bool) -> Repository:
    """Return the repository of a variant: one per accelerator, so that its variants share layers. Raises InputError."""
    where = parse_reference(f"{registry.rstrip('/')}/{variant.accelerator}")
    if where.tag or where.digest:
        raise InputError(f"--registry {registry}: expected host and path, such as ghcr.io/acme")
    return Repository(where, indexes.make_index_access(indexes.read_indexes(), os.environ), insecure=insecure)


def name_tags(variant: Variant, release: str, channel: str) -> tuple[str, ...]:
    """Return the tags to set, the release tag first because it can be refused."""
    names = (tags.format_release_tag(variant.id, release),) if release else ()
    channel = channel or ("" if release else tags.EDGE)
    return (*names, *tags.format_channel_tags(variant.id, channel, default=variant.default)) if channel else names


def list_built_layouts(project: Project, variant: Variant) -> list[Layout]:
    """Return the build of each platform from the current inputs. Raises InputError if there is none at all."""
    jobs = [prepare_job(project, variant.id, BuildOptions(platform=platform)) for platform in variant.platforms]
    job_folders = [(job, job.kept_layout) for job in jobs]
    missing = [job.platform for job, folder in job_folders if folder is None]
    if len(missing) == len(job_folders):
        raise InputError(
            f"{variant.id}: no image was built from the current inputs",
            hint=f"./inv build --target {variant.id}{INSTEAD if variant.is_adopted else ''}",
        )
    if missing:
        log(f"{variant.id}: skipping platforms that are not built: {', '.join(missing)}")
    layouts = [read_layout(job, folder) for job, folder in job_folders if folder]
    for layout in layouts:
        layout.job.refuse_other(layout.manifest.digest)
    return layouts


def read_layout(job: Job, folder: Path) -> Layout:
    """Return the layout of a build or its foundation, every blob of it checked. Raises RegistryError if damaged."""
    hint = f"./inv build --target {job.variant.id} --no-cache"
    try:
        digest = image_layout.read_digest(folder)
        index = parse_any_json((folder / "index.json").read_bytes())
        data = image_layout.path_of_blob(folder, digest).read_bytes()
        _, media_type = strict.read_strict_manifest(data, index["manifests"][0]["mediaType"], str(folder))
        manifest = Manifest(data, media_type)
        if manifest.digest != digest:
            problem = f"the manifest is {manifest.digest}, expected {digest}"
            raise RegistryError(f"{folder}: {problem}: the file was changed on the disk", hint=hint)
        if manifest.media_type != MANIFEST:
            raise RegistryError(f"{folder}: expected an image's manifest, found {manifest.media_type}", hint=hint)
        layout = Layout(job, folder, manifest)
        for descriptor in layout.descriptors:
            check_file(layout.blob(descriptor["digest"]), descriptor["digest"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RegistryError(f"{folder}: damaged: {error}", hint=hint) from error
    return layout


def combine_manifests(layouts: Sequence[Layout]) -> Manifest:
    """Return the manifest that the tags name: that of the only platform, or an index. Pure."""
    return combine_platforms({layout.job.platform: layout.manifest for layout in layouts})


def combine_platforms(manifests: Mapping[str, Manifest]) -> Manifest:
    """Return the only manifest, or an index of those of all platforms. Pure."""
    if len(manifests) == 1:
        return next(iter(manifests.values()))
    entries = []
    for platform, manifest in sorted(manifests.items()):
        system, _, architecture = platform.partition("/")
        entries.append({**manifest.descriptor(), "platform": {"architecture": architecture, "os": system}})
    return to_manifest({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})


def push_blobs(repository: Repository, layouts: Sequence[Layout]) -> list[Pushed]:
    """Push the blobs of layouts that the registry does not have."""
    return push_contents(repository, _index_layout_blobs(layouts))


def push_contents(repository: Repository, blobs: Mapping[str, tuple[Path | BlobContent, int]]) -> list[Pushed]:
    """Push blobs (digest → content and size). On Ctrl-C, finish only those that are being pushed."""
    with byte_progress() as bar:
        task = bar.add_task(f"pushing {len(blobs)} blobs", total=sum(size for _, size in blobs.values()))
        repository.blobs.report_to(lambda count: bar.advance(task, count))
        with ThreadPoolExecutor(WORKERS) as pool:
            futures = [pool.submit(repository.push_blob, source, digest) for digest, (source, _) in blobs.items()]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def push_manifests(repository: Repository, layouts: Iterable[Layout], image: Manifest) -> None:
    """Push each manifest by its digest, the index last."""
    manifests = {manifest.digest: manifest for manifest in (*(layout.manifest for layout in layouts), image)}
    for digest, manifest in manifests.items():
        if repository.manifests.find(digest) is None:
            repository.manifests.push(manifest)


def require_recorded(layouts: Iterable[Layout]) -> None:
    """Raise UntrustedError unless each digest is recorded for the current inputs."""
    for layout in layouts:
        layout.job.require_recorded(layout.manifest.digest)


def name_subject(repository: Repository, layouts: Sequence[Layout], image: Manifest) -> bindings.Subject:
    """Return what the tags are bound to."""
    platforms = {layout.job.platform: layout.manifest.digest for layout in layouts}
    return bindings.Subject(str(repository.where), layouts[0].job.variant.id, image.digest, platforms)


def make_row_documents(
    where: Reference, layouts: Sequence[Layout], image: Manifest, bound: Iterable[bindings.Binding]
) -> Documents:
    """Return the documents of each platform's image, and the bindings of the tags to the image that they name.

    Raises LicenceError or UntrustedError if an image may not be published.
    """
    documents_by_digest = {
        layout.manifest.digest: documents.make_documents(layout.job, layout.folder, layout.manifest, str(where))
        for layout in layouts
    }
    of_image = documents_by_digest.get(image.digest, ())
    return {**documents_by_digest, image.digest: (*of_image, *(binding.attached() for binding in bound))}


def attach_documents(
    repository: Repository,
    manifests: Iterable[Manifest],
    documents: Documents,
    signer: cosign.Signer | None,
    *,
    signature_tags: bool = False,
) -> None:
    """Attach the documents to each manifest; sign manifests and documents."""
    digests: list[str] = []
    images = {manifest.digest: manifest for manifest in manifests}
    for manifest in images.values():
        artifacts = [
            repository.refer(manifest, item.media_type, item.data, item.name)
            for item in documents.get(manifest.digest, ())
        ]
        digests += [manifest.digest, *(artifact.digest for artifact in artifacts)]
        _restore_referrers(repository, manifest, artifacts)
    if signer:
        cosign.sign_digests([repository.where.at(digest) for digest in dict.fromkeys(digests)], signer)
    if signer and signature_tags:
        cosign.sign_digests([repository.where.at(digest) for digest in images], signer._replace(as_tag=True))


def _restore_referrers(repository: Repository, manifest: Manifest, artifacts: Sequence[Manifest]) -> None:
    """List artifacts again that a publish on another machine removed by writing the same fallback tag."""
    listed = {item["digest"] for item in repository.manifests.referrers(manifest.digest)}
    for artifact in artifacts:
        if artifact.digest not in listed:
            repository.manifests.refer(artifact)


def format_published_image(published: Published) -> str:
    """Return the result as text."""
    lines = [published.image]
    for item in published.tags:
        if not item.moves:
            change = "unchanged"
        elif item.was:
            change = f"{'would be moved' if published.dry_run else 'moved'} from {item.was}"
        else:
            change = "would be set" if published.dry_run else "new"
        lines.append(f"tag {item.tag}: {change}")
    counts = ", ".join(f"{count} {how}" for how, count in sorted(published.blobs.items()))
    lines.append(f"blobs: {counts}; {published.bytes_sent / 1e6:.1f} MB {'to send' if published.dry_run else 'sent'}")
    return as_lines(lines)


def _index_layout_blobs(layouts: Iterable[Layout]) -> dict[str, tuple[Path | BlobContent, int]]:
    """Return file and size of each blob, by digest."""
    return {
        item["digest"]: (layout.blob(item["digest"]), item["size"]) for layout in layouts for item in layout.descriptors
    }


def plan_blobs(repository: Repository, layouts: Iterable[Layout]) -> list[Pushed]:
    """Return the result that pushing the blobs would have."""
    return [
        Pushed(digest, size, "present" if repository.blobs.has(digest) else "uploaded")
        for digest, (_, size) in _index_layout_blobs(layouts).items()
    ]
