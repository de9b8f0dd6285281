"""Built image in, digest in a registry out: blobs, manifests, index, what refers to them, then tags. IO.

Tags come last: whoever asks for one gets a whole image or none. A blob that the registry has does not travel again, so
that a publish that broke off goes on when it is run again, and one that is done does nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from drydock.attest import signing
from drydock.build.job import BuildOptions, Job, prepare
from drydock.config import matrix
from drydock.config.access import Access
from drydock.core.console import byte_progress, log
from drydock.core.errors import InputError, RegistryError, TagError
from drydock.core.files import disk_full, exclusive, write_atomically
from drydock.core.paths import ROOT, cache_home
from drydock.inputs import indexes
from drydock.model.record import Record
from drydock.model.variant import Variant
from drydock.oci import layout as oci
from drydock.oci.reference import Reference, parse
from drydock.publish import tags
from drydock.registry.blobs import Blobs, Pushed, check_file
from drydock.registry.client import Client
from drydock.registry.manifests import EMPTY, INDEX, MANIFEST, Manifest, Manifests, to_manifest

if TYPE_CHECKING:
    from drydock.attest.documents import Attached

WORKERS = 4
Said = Mapping[str, "tuple[Attached, ...]"]
"""Digest → what is attached to it."""


class PublishOptions(NamedTuple):
    """The options of a publish."""

    registry: str
    """Host and, where there is one, the path that its repositories begin with: ghcr.io/acme."""
    release: str = ""
    channel: str = ""
    dry_run: bool = False
    insecure: bool = False
    key: str = ""
    """What cosign signs with."""
    keyless: bool = False
    """Whether cosign signs with an identity instead."""
    signing_config: str = ""
    """File that names the authorities that vouch for that identity; those that cosign knows when empty."""


class PublishedTag(Record):
    """A tag, and what became of it."""

    tag: str
    was: str | None
    """The digest that it named before; null where it is new."""
    moves: bool


class Published(Record):
    """What `publish --json` prints."""

    variant: str
    image: str
    """What to pull: repository@digest."""
    digest: str
    platforms: Mapping[str, str]
    """Platform → its manifest's digest; one alone is the image's own."""
    tags: tuple[PublishedTag, ...]
    blobs: Mapping[str, int]
    """Number of blobs that were uploaded, mounted, or present before."""
    bytes_sent: int
    referrers: Mapping[str, tuple[str, ...]]
    """Digest → what is attached to it, by file name."""
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
        """Return those of its blobs: the config, then the layers."""
        content = self.manifest.content
        return [content["config"], *content["layers"]]

    def blob(self, digest: str) -> Path:
        """Return a blob's file."""
        return oci.blob(self.folder, digest)


class Repository:
    """A registry's repository, with what is remembered of earlier pushes to that registry."""

    def __init__(self, where: Reference, access: Access, *, insecure: bool = False, state: Path | None = None) -> None:
        folder = (state or cache_home()) / "uploads"
        self.where = where
        self.client = Client(where, access, insecure=insecure)
        self.blobs = Blobs(self.client, folder)
        self.manifests = Manifests(self.client, folder)
        self._known = folder / where.host.replace(":", "_") / "blobs"
        self._lock = folder / where.host.replace(":", "_") / where.repository / "tags.lock"

    def push_blob(self, path: Path, digest: str) -> Pushed:
        """See that the repository holds a blob: mounted where another repository is known to hold it."""
        known = self._known / digest.replace(":", "-")
        elsewhere = known.read_text() if known.is_file() else ""
        pushed = self.blobs.push(path, digest, elsewhere)
        write_atomically(known, self.where.repository)
        return pushed

    def refer(self, subject: Manifest, media_type: str, data: bytes, name: str) -> Manifest:
        """Attach a document to a manifest: an OCI artifact that refers to it."""
        contents = {blob: self._push_bytes(blob) for blob in (b"{}", data)}
        layer = {"mediaType": media_type, "annotations": {"org.opencontainers.image.title": name}, **contents[data]}
        artifact = to_manifest(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "artifactType": media_type,
                "config": {"mediaType": EMPTY, **contents[b"{}"]},
                "layers": [layer],
                "subject": subject.descriptor(),
                "annotations": {"org.opencontainers.image.title": name},
            }
        )
        self.manifests.refer(artifact)
        return artifact

    def _push_bytes(self, data: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        folder = Path(tempfile.gettempdir())
        with disk_full(folder), tempfile.NamedTemporaryFile(prefix="drydock-blob-", dir=folder) as file:
            file.write(data)
            file.flush()
            self.blobs.push(Path(file.name), digest)
        return {"digest": digest, "size": len(data)}

    def tag(self, manifest: Manifest, tag: str) -> PublishedTag:
        """Let a tag name a manifest; two runs on one machine take turns. Raises TagError for a release that moves."""
        with exclusive(self._lock):
            planned = self.plan_tag(manifest.digest, tag)
            if planned.moves:
                self.manifests.push(manifest, tag)
                found = self.manifests.digest(tag)
                if found != manifest.digest and tags.is_release(tag):
                    raise _moved(self.where.tagged(tag), found, manifest.digest)
        return planned

    def plan_tag(self, digest: str, tag: str) -> PublishedTag:
        """Return what tagging would do. Raises TagError for a release tag that names something else."""
        was = self.manifests.digest(tag)
        if was and was != digest and tags.is_release(tag):
            raise _moved(self.where.tagged(tag), was, digest)
        return PublishedTag(tag=tag, was=was, moves=was != digest)


def publish(target: str, options: PublishOptions, *, root: Path = ROOT) -> Published:
    """Push what was built of a variant, and tag it. Raises InputError, TagError, RegistryError, CredentialsError."""
    started = time.monotonic()
    if options.signing_config and not options.keyless:
        raise InputError("--signing-config: says who vouches for an identity, so it wants --keyless")
    variant = matrix.find(matrix.read_matrix(root), target)
    layouts = built(variant, root)
    image = combined(layouts)
    repository = repository_of(variant, options)
    wanted = tags_of(variant, options)
    planned = [repository.plan_tag(image.digest, tag) for tag in wanted]
    said = describe(repository.where, layouts, image, options)
    if options.dry_run:
        pushed = _missing(repository, layouts)
    else:
        pushed, planned = push(repository, layouts, image, said, options)
    return Published(
        variant=variant.id,
        image=str(repository.where.at(image.digest)),
        digest=image.digest,
        platforms={layout.job.platform: layout.manifest.digest for layout in layouts},
        tags=tuple(planned),
        blobs=_counted(pushed),
        bytes_sent=sum(blob.size for blob in pushed if blob.how == "uploaded"),
        referrers={digest: tuple(item.name for item in items) for digest, items in said.items()},
        signed=bool(options.key or options.keyless) and not options.dry_run,
        dry_run=options.dry_run,
        seconds=round(time.monotonic() - started, 1),
    )


def push(
    repository: Repository, layouts: Sequence[Layout], image: Manifest, said: Said, options: PublishOptions
) -> tuple[list[Pushed], list[PublishedTag]]:
    """Bring the registry everything in the order in which nothing is ever half there: tags come last."""
    pushed = push_blobs(repository, layouts)
    push_manifests(repository, layouts, image)
    attach(repository, [*(layout.manifest for layout in layouts), image], said, options)
    return pushed, [repository.tag(image, tag) for tag in tags_of(layouts[0].job.variant, options)]


def repository_of(variant: Variant, options: PublishOptions) -> Repository:
    """Return the accelerator's repository below --registry: its variants share layers there."""
    where = parse(f"{options.registry.rstrip('/')}/{variant.accelerator}")
    if where.tag or where.digest:
        raise InputError(f"--registry {options.registry}: expected host and path, such as ghcr.io/acme")
    return Repository(where, indexes.access(indexes.read_indexes(), os.environ), insecure=options.insecure)


def tags_of(variant: Variant, options: PublishOptions) -> tuple[str, ...]:
    """Return the tags to set: the release's first, since it may be refused."""
    release = (tags.release(variant.id, options.release),) if options.release else ()
    channel = options.channel or ("" if options.release else tags.EDGE)
    return release + (tags.channels(variant.id, channel, default=variant.default) if channel else ())


def built(variant: Variant, root: Path = ROOT) -> list[Layout]:
    """Return the newest build of each platform, of just the inputs that are there now. Raises InputError if none is."""
    jobs = [prepare(variant.id, BuildOptions(platform=platform), root=root) for platform in variant.platforms]
    found = [(job, job.kept_layout) for job in jobs]
    absent = [job.platform for job, folder in found if folder is None]
    if len(absent) == len(found):
        raise InputError(
            f"{variant.id}: nothing was built of the inputs that are there now",
            hint=f"invoke build --target {variant.id}",
        )
    if absent:
        log(f"{variant.id}: not built, so not published, for {', '.join(absent)}")
    return [read_layout(job, folder) for job, folder in found if folder]


def read_layout(job: Job, folder: Path) -> Layout:
    """Return a build's layout. Raises RegistryError where the disk changed any of its bytes."""
    digest = oci.read_digest(folder)
    index = json.loads((folder / "index.json").read_bytes())
    data = oci.blob(folder, digest).read_bytes()
    manifest = Manifest(data, index["manifests"][0]["mediaType"])
    if manifest.digest != digest:
        raise RegistryError(
            f"{folder}: its manifest is {manifest.digest}, expected {digest}: it was changed on the disk",
            hint=f"invoke build --target {job.variant.id} --no-cache",
        )
    layout = Layout(job, folder, manifest)
    for descriptor in layout.descriptors:
        check_file(layout.blob(descriptor["digest"]), descriptor["digest"])
    return layout


def combined(layouts: Sequence[Layout]) -> Manifest:
    """Return what the image's tags name: the manifest of one platform, or an index of several. Pure."""
    if len(layouts) == 1:
        return layouts[0].manifest
    entries = []
    for layout in sorted(layouts, key=lambda layout: layout.job.platform):
        system, _, architecture = layout.job.platform.partition("/")
        entries.append({**layout.manifest.descriptor(), "platform": {"architecture": architecture, "os": system}})
    return to_manifest({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})


def push_blobs(repository: Repository, layouts: Sequence[Layout]) -> list[Pushed]:
    """Bring the registry the blobs that it lacks, several at once. Ctrl-C ends it after those under way."""
    wanted = _blobs(layouts)
    with byte_progress() as bar:
        task = bar.add_task(f"pushing {len(wanted)} blobs", total=sum(size for _, size in wanted.values()))
        repository.blobs.report_to(lambda count: bar.advance(task, count))
        with ThreadPoolExecutor(WORKERS) as pool:
            futures = [pool.submit(repository.push_blob, path, digest) for digest, (path, _) in wanted.items()]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def push_manifests(repository: Repository, layouts: Iterable[Layout], image: Manifest) -> None:
    """Bring the registry every manifest by its digest; the index after what it points to."""
    manifests = {manifest.digest: manifest for manifest in (*(layout.manifest for layout in layouts), image)}
    for digest, manifest in manifests.items():
        if repository.manifests.find(digest) is None:
            repository.manifests.push(manifest)


def describe(where: Reference, layouts: Sequence[Layout], image: Manifest, options: PublishOptions) -> Said:
    """Return what is said of each digest, before anything is pushed.

    Raises LicenceError or UntrustedError where an image should not be published.
    """
    from drydock.attest import documents  # noqa: PLC0415 - half a second of import that no other verb needs

    said: dict[str, tuple[Attached, ...]] = {
        layout.manifest.digest: documents.documents(layout.job, layout.folder, layout.manifest, str(where))
        for layout in layouts
    }
    if options.release:
        tag = tags.release(layouts[0].job.variant.id, options.release)
        said[image.digest] = (*said.get(image.digest, ()), documents.release(image.digest, where.repository, tag))
    return said


def attach(repository: Repository, manifests: Iterable[Manifest], said: Said, options: PublishOptions) -> None:
    """Attach to each digest what is said of it, and sign all of it."""
    signed: dict[str, None] = {}
    for manifest in {manifest.digest: manifest for manifest in manifests}.values():
        artifacts = [
            repository.refer(manifest, item.media_type, item.data, item.name) for item in said.get(manifest.digest, ())
        ]
        signed |= dict.fromkeys((manifest.digest, *(artifact.digest for artifact in artifacts)))
        _see_listed(repository, manifest, artifacts)
    if options.key or options.keyless:
        signer = signing.Signer("" if options.keyless else options.key, options.insecure, options.signing_config)
        signing.sign([repository.where.at(digest) for digest in signed], signer)


def _see_listed(repository: Repository, manifest: Manifest, artifacts: Sequence[Manifest]) -> None:
    """List again what another machine's publish, which wrote the same fallback tag, dropped meanwhile."""
    listed = {item["digest"] for item in repository.manifests.referrers(manifest.digest)}
    for artifact in artifacts:
        if artifact.digest not in listed:
            repository.manifests.refer(artifact)


def report(published: Published) -> str:
    """Return what people read."""
    lines = [published.image]
    verb = {True: "would name", False: "names"}[published.dry_run]
    for item in published.tags:
        was = f"it named {item.was}" if item.was else "new"
        lines.append(f"{item.tag} {verb} it ({was if item.moves else 'as before'})")
    counts = ", ".join(f"{count} {how}" for how, count in sorted(published.blobs.items()))
    lines.append(f"blobs: {counts}; {published.bytes_sent / 1e6:.1f} MB {'to send' if published.dry_run else 'sent'}")
    return "\n".join(lines) + "\n"


def _blobs(layouts: Iterable[Layout]) -> dict[str, tuple[Path, int]]:
    return {
        item["digest"]: (layout.blob(item["digest"]), item["size"]) for layout in layouts for item in layout.descriptors
    }


def _missing(repository: Repository, layouts: Iterable[Layout]) -> list[Pushed]:
    found = {digest: (size, repository.blobs.has(digest)) for digest, (_, size) in _blobs(layouts).items()}
    return [Pushed(digest, size, "present" if has else "uploaded") for digest, (size, has) in found.items()]


def _counted(pushed: Iterable[Pushed]) -> dict[str, int]:
    counts = {"uploaded": 0, "mounted": 0, "present": 0}
    for blob in pushed:
        counts[blob.how] += 1
    return counts


def _moved(tag: Reference, was: str | None, digest: str) -> TagError:
    return TagError(
        f"{tag}: names {was} already, not {digest}: a release never moves",
        hint="publish under the next --release, or under a --channel, which moves",
    )
