"""REF → is it what its publisher says it is: bytes, signatures, tag, lock, provenance, bill of materials, rebuild. IO.

A third party needs this repository and, for the signatures, the publisher's public key or identity. Everything is
collected before it is refused, so that one run says all that is wrong.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from drydock.attest import bom, components, contents, documents, provenance, signing
from drydock.build import build
from drydock.build.job import BuildOptions, choose_platform, prepare
from drydock.build.verify import describe
from drydock.config import matrix
from drydock.core.console import log
from drydock.core.errors import DrydockError, InputError, NotReproducibleError, UntrustedError
from drydock.core.files import checksum
from drydock.core.paths import ROOT
from drydock.examine.image import of
from drydock.examine.pulled import Image, Referrer, open_image
from drydock.lock import lockfile
from drydock.model.locked import Lock
from drydock.model.record import Record, dump
from drydock.model.variant import Variant
from drydock.oci.diff import compare
from drydock.publish import tags


class VerifyOptions(NamedTuple):
    """The options of a verification."""

    trust: signing.Trust = signing.Trust()
    rebuild: bool = True
    builder: str = ""


class Trusted(Record):
    """What `verify --reference --json` prints: what was shown of an image."""

    image: str
    digest: str
    variant: str
    shown: tuple[str, ...]
    """What was checked and held."""
    not_shown: tuple[str, ...]
    """What was not checked, and why."""
    rebuilt: str | None
    """The digest that a build here gave."""


def verify_reference(reference: str, options: VerifyOptions, *, root: Path = ROOT) -> Trusted:
    """Check an image of a registry.

    Raises UntrustedError with everything that is wrong, NotReproducibleError where a build here gives another digest,
    and what a build raises.
    """
    image = open_image(reference, insecure=options.trust.insecure)
    check = _Check(image, options)
    check.all()
    if check.problems:
        raise UntrustedError(*check.problems, hint="do not run it; ask its publisher")
    rebuilt = _rebuild(image, check.lock, options, root) if options.rebuild else None
    return Trusted(
        image=str(image.where.at(image.digest)),
        digest=image.digest,
        variant=check.variant,
        shown=(*check.shown, *((f"rebuilt here to the same digest {rebuilt}",) if rebuilt else ())),
        not_shown=(*check.not_shown, *(() if options.rebuild else ("rebuilding: --registry-only",))),
        rebuilt=rebuilt,
    )


def report(found: Trusted) -> str:
    """Return what people read."""
    lines = [found.image, *(f"  {line}" for line in found.shown), *(f"  not shown: {line}" for line in found.not_shown)]
    return "\n".join(lines) + "\n"


class _Check:
    """Everything that is checked of one image, and what came of it."""

    def __init__(self, image: Image, options: VerifyOptions) -> None:
        self.image, self._trust = image, options.trust
        self.problems: list[str] = []
        self.shown: list[str] = []
        self.not_shown: list[str] = []
        self.lock: Lock | None = None
        self.variant = ""

    def all(self) -> None:
        """Check it all."""
        self._try(self._signature, self.image.digest, "the image")
        for platform, manifest in self.image.platforms.items():
            if manifest.digest != self.image.digest:
                self._try(self._signature, manifest.digest, platform)
            self._try(self._blobs, platform)
            self._try(self._documents, platform)
        self._try(self._tag)
        if not self._trust.asked:
            self.not_shown.append(
                "signatures: neither --key nor --identity was given; anybody may have written the rest"
            )

    def _try(self, step: Callable[..., None], *arguments: str) -> None:
        try:
            step(*arguments)
        except DrydockError as error:
            self.problems.extend(error.problems)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            self.problems.append(f"{self.image.where}: {step.__name__.strip('_')}: not what drydock writes: {error!r}")

    # --- signatures and bytes ---------------------------------------------------------------------------------------

    def _signature(self, digest: str, what: str) -> None:
        if self._trust.asked:
            signing.check(self.image.where.at(digest), self._trust)
            self.shown.append(f"signature of {what} ({digest})")

    def _blobs(self, platform: str) -> None:
        content = self.image.platforms[platform].content
        for descriptor in (content["config"], *content["layers"]):
            size = sum(len(chunk) for chunk in self.image.repository.blobs.pull(descriptor["digest"]))
            if size != descriptor["size"]:
                raise UntrustedError(f"{descriptor['digest']}: {size} bytes, its manifest says {descriptor['size']}")
        self.shown.append(f"{platform}: all {1 + len(content['layers'])} blobs have their digests' bytes")

    def _tag(self) -> None:
        """See that a document binds a release's tag to this digest, signed where signatures are asked for."""
        tag = self.image.where.tag
        if not tags.is_release(tag):
            if tag:
                self.not_shown.append(f"the tag {tag}: it moves by design")
            return
        bound = self.image.documents(self.image.digest, {documents.RELEASE: ""})
        for item in bound:
            found = item.json()
            if (found["tag"], found["image"]) == (tag, self.image.digest):
                self._signature(item.manifest, f"release {tag}")
                self.shown.append(f"the tag {tag} was published with this digest")
                return
        raise UntrustedError(f"{self.image.where}: nothing binds this tag to {self.image.digest}: it was swapped")

    # --- what is said of it -----------------------------------------------------------------------------------------

    def _documents(self, platform: str) -> None:
        digest = self.image.platforms[platform].digest
        found = self.image.documents(digest, documents.KINDS)
        for item in found:
            if item.media_type != documents.RELEASE:
                self._signature(item.manifest, f"{platform}: {documents.KINDS[item.media_type]}")
        self._lock(found, platform)
        _one(found, documents.PROVENANCE, platform)
        for item in of(found, documents.PROVENANCE):
            self._provenance(item, digest, tuple(of(found, documents.LOCK)))
        self.shown.append(f"{platform}: provenance is of this digest and this lock")
        self._bills(found, platform)

    def _lock(self, found: tuple[Referrer, ...], platform: str) -> None:
        """Read the lock; of several, which an image has whose digest was recorded later, all pin the same."""
        _one(found, documents.LOCK, platform)
        locks = [
            lockfile.parse_lock(item.data.decode(), f"{platform}: lock {item.manifest}")
            for item in of(found, documents.LOCK)
        ]
        if len({pinned(item, platform) for item in locks}) > 1:
            raise UntrustedError(f"{platform}: the locks attached to it pin different things")
        self.lock, self.variant = locks[0], locks[0].variant
        label = (self.image.config(platform).get("config", {}).get("Labels") or {}).get("io.drydock.variant")
        if label != self.variant:
            raise UntrustedError(f"{platform}: the image is labelled {label!r}, its lock is of {self.variant!r}")

    @staticmethod
    def _provenance(item: Referrer, digest: str, locks: tuple[Referrer, ...]) -> None:
        statement = item.json()
        where = f"provenance {item.manifest}"
        if (statement["_type"], statement["predicateType"]) != (provenance.STATEMENT, provenance.PREDICATE):
            raise UntrustedError(f"{where}: not SLSA provenance but {statement['predicateType']}")
        subjects = {f"sha256:{subject['digest']['sha256']}" for subject in statement["subject"]}
        if digest not in subjects:
            raise UntrustedError(f"{where}: is about {', '.join(sorted(subjects))}, not about {digest}")
        dependencies = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
        hashes = {entry.get("uri", ""): entry["digest"].get("sha256") for entry in dependencies}
        own = next((value for uri, value in hashes.items() if uri.endswith("/lock.json")), None)
        if own not in {hashlib.sha256(item.data).hexdigest() for item in locks}:
            raise UntrustedError(f"{where}: names a lock with sha256 {own}, attached is another")

    def _bills(self, found: tuple[Referrer, ...], platform: str) -> None:
        """Both bills must say the same, and what the layers themselves say."""
        manifest = self.image.platforms[platform]
        really = contents.read_contents(manifest.content, self.image.blob)
        cyclonedx = bom.cyclonedx_packages(_one(found, documents.CYCLONEDX, platform).json())
        spdx = bom.spdx_packages(_one(found, documents.SPDX, platform).json())
        if cyclonedx != spdx:
            raise UntrustedError(f"{platform}: the two bills of materials differ in {len(cyclonedx ^ spdx)} packages")
        purls = {purl for purl, _ in cyclonedx}
        absent = sorted(part.purl for part in map(components.component, really.packages) if part.purl not in purls)
        if absent:
            raise UntrustedError(f"{platform}: in the image and not in its bill of materials: {', '.join(absent[:5])}")
        self.shown.append(f"{platform}: the bills of materials agree with each other and with the layers")


def _one(found: tuple[Referrer, ...], media_type: str, platform: str) -> Referrer:
    item: Referrer | None = next(of(found, media_type), None)
    if item is None:
        raise UntrustedError(f"{platform}: no {documents.KINDS[media_type]} is attached to it")
    return item


# --- rebuild --------------------------------------------------------------------------------------------------------


def _rebuild(image: Image, published: Lock | None, options: VerifyOptions, root: Path) -> str:
    """Build the platform of this machine from this repository; return its digest, which is the published one."""
    if published is None:
        raise UntrustedError(f"{image.where}: no lock is attached, so there is nothing to build from")
    variant = _variant(published, root)
    platform = choose_platform(variant, None)
    job = prepare(variant.id, BuildOptions(platform=platform), root=root)
    if pinned(job.lock, platform) != pinned(published, platform):
        raise InputError(
            f"{variant.id}: this repository's lock is not the one that the image was built from",
            hint=f"check out the commit that its provenance names (invoke inspect {image.where}), and verify there",
        )
    log(f"{image.where}: now building {variant.id} for {platform} here")
    built = build.build(job, builder=options.builder or None, no_cache=True, into_engine=False)
    expected = image.platforms[platform].digest
    if built.digest != expected:
        differences = tuple(describe(item) for item in _differences(image, platform, Path(built.layout)))
        raise NotReproducibleError(f"{variant.id}: built here it is {built.digest}, published {expected}", *differences)
    return built.digest


def pinned(locked: Lock, platform: str) -> str:
    """Return the checksum of what a lock pins for a platform, the recorded digest of the result apart."""
    return checksum(dump(locked.platforms[platform].model_copy(update={"image": None})))


def _variant(published: Lock, root: Path) -> Variant:
    return matrix.find(matrix.read_matrix(root), published.variant)


def _differences(image: Image, platform: str, layout: Path) -> Iterator[Any]:
    """Compare with the published image, laid out on disk as a build is."""
    manifest = image.platforms[platform]
    with tempfile.TemporaryDirectory(prefix="drydock-published-") as name:
        folder = Path(name)
        blobs = folder / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        (folder / "index.json").write_text(json.dumps({"manifests": [manifest.descriptor()]}))
        (blobs / manifest.digest.removeprefix("sha256:")).write_bytes(manifest.data)
        content = manifest.content
        for digest in {item["digest"] for item in (content["config"], *content["layers"])}:
            (blobs / digest.removeprefix("sha256:")).symlink_to(image.blob(digest))
        yield from compare(folder, layout)
