"""Verify a published image: bytes, signatures, tag, lock, provenance, bill of materials, rebuild. IO.

Requires this repository and, to verify signatures, the publisher's public key or identity. All problems are collected
before the verification fails.
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
from drydock.examine.image import of_type
from drydock.examine.pulled import Image, Referrer, open_image
from drydock.lock import lockfile
from drydock.model.locked import Lock
from drydock.model.record import Record, dump
from drydock.model.variant import Variant
from drydock.oci.diff import compare
from drydock.publish import tags


class VerifyOptions(NamedTuple):
    """Options of `verify --reference`."""

    trust: signing.Trust = signing.Trust()
    rebuild: bool = True
    builder: str = ""


class Trusted(Record):
    """What `verify --reference --json` prints."""

    image: str
    digest: str
    variant: str
    shown: tuple[str, ...]
    """The checks that passed."""
    not_shown: tuple[str, ...]
    """The checks that were skipped, each with the reason."""
    rebuilt: str | None
    """Digest of the build on this machine."""


def verify_reference(reference: str, options: VerifyOptions, *, root: Path = ROOT) -> Trusted:
    """Verify an image in a registry.

    Raises UntrustedError with all problems, NotReproducibleError if a build on this machine gives another digest, and
    the errors of a build.
    """
    image = open_image(reference, insecure=options.trust.insecure)
    check = _Check(image, options.trust)
    check.all()
    if check.problems:
        raise UntrustedError(*check.problems, hint="do not run this image; contact its publisher")
    rebuilt = None
    if options.rebuild:
        rebuilt = _rebuild(image, check.lock, options, root)
        check.shown.append(f"rebuilt on this machine with the same digest {rebuilt}")
    else:
        check.not_shown.append("rebuild: skipped by --registry-only")
    return Trusted(
        image=str(image.where.at(image.digest)),
        digest=image.digest,
        variant=check.variant,
        shown=tuple(check.shown),
        not_shown=tuple(check.not_shown),
        rebuilt=rebuilt,
    )


def report(found: Trusted) -> str:
    """Return the result as text."""
    lines = [found.image]
    lines += [f"  {line}" for line in found.shown]
    lines += [f"  not checked: {line}" for line in found.not_shown]
    return "\n".join(lines) + "\n"


class _Check:
    """The checks of one image, and their results."""

    def __init__(self, image: Image, trust: signing.Trust) -> None:
        self.image, self._trust = image, trust
        self.problems: list[str] = []
        self.shown: list[str] = []
        self.not_shown: list[str] = []
        self.lock: Lock | None = None
        self.variant = ""

    def all(self) -> None:
        """Run every check."""
        self._try(self._signature, self.image.digest, "the image")
        for platform, manifest in self.image.platforms.items():
            if manifest.digest != self.image.digest:
                self._try(self._signature, manifest.digest, platform)
            self._try(self._blobs, platform)
            self._try(self._documents, platform)
        self._try(self._tag)
        if not self._trust.required:
            self.not_shown.append("signatures: no --key or --identity; the documents may come from anyone")

    def _try(self, step: Callable[..., None], *arguments: str) -> None:
        try:
            step(*arguments)
        except DrydockError as error:
            self.problems.extend(error.problems)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            self.problems.append(f"{self.image.where}: {step.__name__.strip('_')}: unexpected content: {error!r}")

    # --- signatures and bytes ---------------------------------------------------------------------------------------

    def _signature(self, digest: str, name: str) -> None:
        if self._trust.required:
            signing.check(self.image.where.at(digest), self._trust)
            self.shown.append(f"signature of {name} ({digest})")

    def _blobs(self, platform: str) -> None:
        content = self.image.platforms[platform].content
        for descriptor in (content["config"], *content["layers"]):
            size = sum(
                len(chunk) for chunk in self.image.repository.blobs.pull(descriptor["digest"], int(descriptor["size"]))
            )
            if size != descriptor["size"]:
                raise UntrustedError(f"{descriptor['digest']}: {size} bytes, expected {descriptor['size']}")
        self.shown.append(f"{platform}: all {1 + len(content['layers'])} blobs match their digests")

    def _tag(self) -> None:
        """Check that a release.json binds a release tag to this digest; signed if signatures are required."""
        tag = self.image.where.tag
        if not tag:
            return
        if not tags.is_release(tag):
            self.not_shown.append(f"tag {tag}: not a release tag, so it may move")
            return
        for item in self.image.documents(self.image.digest, [documents.RELEASE]):
            found = item.json()
            if (found["tag"], found["image"]) == (tag, self.image.digest):
                self._signature(item.manifest, f"release {tag}")
                self.shown.append(f"tag {tag} was published with this digest")
                return
        raise UntrustedError(
            f"{self.image.where}: no release.json binds this tag to {self.image.digest}: the tag was moved"
        )

    # --- attached documents -----------------------------------------------------------------------------------------

    def _documents(self, platform: str) -> None:
        digest = self.image.platforms[platform].digest
        found = self.image.documents(digest, documents.FILE_NAMES)
        for item in found:
            if item.media_type != documents.RELEASE:
                self._signature(item.manifest, f"{platform}: {documents.FILE_NAMES[item.media_type]}")
        self._lock(found, platform)
        locks = of_type(found, documents.LOCK)
        for item in _required(found, documents.PROVENANCE, platform):
            self._provenance(item, digest, locks)
        self.shown.append(f"{platform}: provenance names this digest and this lock")
        self._bom(found, platform)

    def _lock(self, found: tuple[Referrer, ...], platform: str) -> None:
        """Read the lock.

        If an image was published again after its digest was recorded in the lock, several locks are attached: all must
        pin the same inputs.
        """
        locks = [
            lockfile.parse_lock(item.data.decode(), f"{platform}: lock {item.manifest}")
            for item in _required(found, documents.LOCK, platform)
        ]
        if len({pinned(item, platform) for item in locks}) > 1:
            raise UntrustedError(f"{platform}: the attached locks pin different inputs")
        self.lock, self.variant = locks[0], locks[0].variant
        label = (self.image.config(platform).get("config", {}).get("Labels") or {}).get("io.drydock.variant")
        if label != self.variant:
            raise UntrustedError(f"{platform}: the image's label is {label!r}, its lock is for {self.variant!r}")

    @staticmethod
    def _provenance(item: Referrer, digest: str, locks: tuple[Referrer, ...]) -> None:
        statement = item.json()
        where = f"provenance {item.manifest}"
        if (statement["_type"], statement["predicateType"]) != (provenance.STATEMENT, provenance.PREDICATE):
            raise UntrustedError(f"{where}: expected SLSA provenance, found {statement['predicateType']}")
        subjects = {f"sha256:{subject['digest']['sha256']}" for subject in statement["subject"]}
        if digest not in subjects:
            raise UntrustedError(f"{where}: its subject is {', '.join(sorted(subjects))}, expected {digest}")
        dependencies = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
        hashes = {entry.get("uri", ""): entry["digest"].get("sha256") for entry in dependencies}
        own = next((value for uri, value in hashes.items() if uri.endswith("/lock.json")), None)
        if own not in {hashlib.sha256(item.data).hexdigest() for item in locks}:
            raise UntrustedError(f"{where}: names a lock with sha256 {own}, which is not attached")

    def _bom(self, found: tuple[Referrer, ...], platform: str) -> None:
        """Check that every package in the layers is in the bill of materials."""
        document = _required(found, documents.BOM, platform)[0].json()
        listed = {purl for purl, _ in bom.packages(document)}
        layers = contents.read_contents(self.image.platforms[platform].content, self.image.blob)
        purls = {components.component(package).purl for package in layers.packages}
        missing = sorted(purls - listed)
        if missing:
            raise UntrustedError(f"{platform}: in the image but not in its bill of materials: {', '.join(missing[:5])}")
        self.shown.append(f"{platform}: the bill of materials matches the layers")


def _required(found: tuple[Referrer, ...], media_type: str, platform: str) -> tuple[Referrer, ...]:
    """Return the documents of one type. Raises UntrustedError if there is none."""
    items = of_type(found, media_type)
    if not items:
        raise UntrustedError(f"{platform}: no {documents.FILE_NAMES[media_type]} is attached")
    return items


# --- rebuild --------------------------------------------------------------------------------------------------------


def _rebuild(image: Image, published: Lock | None, options: VerifyOptions, root: Path) -> str:
    """Build the image for this machine's platform from this repository, and return its digest.

    Raises NotReproducibleError if it is not the published digest.
    """
    if published is None:
        raise UntrustedError(f"{image.where}: cannot rebuild: no lock is attached")
    variant = _variant(published, root)
    platform = choose_platform(variant, None)
    job = prepare(variant.id, BuildOptions(platform=platform), root=root)
    if pinned(job.lock, platform) != pinned(published, platform):
        raise InputError(
            f"{variant.id}: the image was built from another lock than this repository's",
            hint=f"`invoke inspect {image.where}` shows the commit it was built from: check it out and verify there",
        )
    log(f"{image.where}: building {variant.id} for {platform} on this machine")
    built = build.build(job, builder=options.builder or None, no_cache=True, into_engine=False)
    expected = image.platforms[platform].digest
    if built.digest != expected:
        differences = [describe(item) for item in _differences(image, platform, Path(built.layout))]
        raise NotReproducibleError(
            f"{variant.id}: this machine built {built.digest}, expected {expected}", *differences
        )
    return built.digest


def pinned(locked: Lock, platform: str) -> str:
    """Return the checksum of a lock's pins for a platform, without the recorded digest of the image."""
    return checksum(dump(locked.platforms[platform].model_copy(update={"image": None})))


def _variant(published: Lock, root: Path) -> Variant:
    return matrix.find(matrix.read_matrix(root), published.variant)


def _differences(image: Image, platform: str, layout: Path) -> Iterator[Any]:
    """Yield the differences between the published image, written to a temporary OCI layout, and a build's layout."""
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
