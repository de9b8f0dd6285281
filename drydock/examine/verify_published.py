"""Verify a published image: bytes, signatures, tag, lock, provenance, bill of materials, rebuild. IO.

Requires this repository and, to verify signatures, the publisher's public key or identity. The signatures come first:
the first wrong one ends the verification, before what it should vouch for is read. Of the other checks, all problems
are collected.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from drydock.attest import bom, components, contents, cosign, documents, provenance
from drydock.build import adoption, build
from drydock.build.build_job import BuildOptions, choose_platform, prepare_job
from drydock.build.rebuild import format_difference
from drydock.config import matrix
from drydock.core.console import as_lines, log
from drydock.core.errors import DrydockError, InputError, NotReproducibleError, UntrustedError
from drydock.core.project import Project
from drydock.examine import tag_binding
from drydock.examine.image import of_type
from drydock.examine.remote_image import Image, open_image
from drydock.examine.signatures import HINT, Signatures, copy_hint
from drydock.inputs import project_files
from drydock.lock import lockfile
from drydock.model.locked import Lock
from drydock.model.record import Record
from drydock.oci import strict
from drydock.oci.layout_diff import compare_layouts
from drydock.oci.manifest import Manifest
from drydock.oci.reference import parse_reference
from drydock.publish.bindings import Binding, Kind
from drydock.publish.foundations import CLAIM
from drydock.publish.repository import Referrer


class VerifyOptions(NamedTuple):
    """Options of `image verify`."""

    trust: cosign.Trust = cosign.Trust()
    rebuild: bool = True
    builder: str = ""
    mirror_of: str = ""
    """HOST/REPOSITORY that the image was copied from, if it is verified in a mirror."""
    max_age: int = 0
    """Days since the publish of a channel that are accepted; 0 for any."""
    unsigned: bool = False
    """Whether the user only looks: no signature is checked."""


class Trusted(Record):
    """What `image verify --json` prints."""

    image: str
    digest: str
    variant: str
    shown: tuple[str, ...]
    """The checks that passed."""
    not_shown: tuple[str, ...]
    """The checks that were skipped, each with the reason."""
    rebuilt: str | None
    """Digest of the build on this machine."""
    platforms: Mapping[str, str]
    """Platform → digest of its manifest."""
    source_date_epoch: int
    """Of the attached lock. Unix seconds."""
    inputs: Mapping[str, str]
    """Platform → checksum of the inputs that its provenance names."""


def verify_reference(project: Project, reference: str, options: VerifyOptions) -> Trusted:
    """Verify an image in a registry.

    Raises UntrustedError with the first wrong signature, or with all other problems, NotReproducibleError if a build on
    this machine gives another digest, and the errors of a build.
    """
    signatures = Signatures(options.trust, parse_reference(reference), options.mirror_of)
    insecure, accept = options.trust.insecure, signatures.check_image
    image = open_image(reference, insecure=insecure, accept=accept, artifact=project_files.KIND)
    check = _Check(image, options, signatures)
    check.all()
    if check.problems:
        hint = copy_hint(options.mirror_of, image.where, image.digest) if check.lacks_documents else HINT
        raise UntrustedError(*check.problems, hint=hint)
    rebuilt = None
    if not check.is_row:
        check.not_shown.append(f"rebuild: a {check.kind} is not built from a lock")
    elif options.rebuild:
        rebuilt = _rebuild_image(image, check.lock, options, project)
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
        platforms={platform: manifest.digest for platform, manifest in image.platforms.items()},
        source_date_epoch=check.lock.source_date_epoch if check.lock else 0,
        inputs=check.inputs,
    )


def format_trusted(trusted: Trusted) -> str:
    """Return the result as text."""
    lines = [trusted.image]
    lines += [f"  {line}" for line in trusted.shown]
    lines += [f"  not checked: {line}" for line in trusted.not_shown]
    return as_lines(lines)


class _Check:
    """The checks of one image, and their results."""

    def __init__(self, image: Image, options: VerifyOptions, signatures: Signatures) -> None:
        self.image, self._signatures = image, signatures
        platforms = {platform: manifest.digest for platform, manifest in image.platforms.items()}
        self._name = tag_binding.make_image_name(
            image.where, options.mirror_of, image.digest, platforms, options.max_age
        )
        self.problems: list[str] = []
        self.shown = signatures.shown
        self.not_shown: list[str] = []
        self.lock: Lock | None = None
        self.variant = ""
        self.kind: Kind = "image"
        """As the publisher has signed it, in tag.json."""
        self.inputs: dict[str, str] = {}
        self.lacks_documents = False
        self._binding: Binding | None = None

    @property
    def is_row(self) -> bool:
        """Tell whether it is the image of a row, with a lock and what is attached to each."""
        return self.kind in ("image", "adopted")

    def all(self) -> None:
        """Run every check: first the signatures of the platforms and of all documents."""
        attached = {
            platform: self.image.repository.attached(manifest.digest, documents.FILE_NAMES)
            for platform, manifest in self.image.platforms.items()
        }
        for platform, listed in attached.items():
            self._signed(platform, listed)
        self._try(self._choose_tag)
        self._try(self._platforms)
        for platform, listed in attached.items():
            self._try(self._blobs, platform, self.image.platforms[platform])
            if self.is_row:
                self._try(self._documents, platform, listed)
            elif self.kind == "model":
                self._try(self._model_bom, platform, listed)
        if not attached:
            self._try(self._blobs, self.kind, self.image.manifest)
        if self.kind == "foundation":
            self._try(self._foundation)
        self._try(self._tag)
        if not self._signatures.required:
            self.not_shown.append("signatures: skipped by --unsigned; the documents may come from anyone")

    def _try(self, step: Callable[..., None], *arguments: Any) -> None:
        try:
            step(*arguments)
        except DrydockError as error:
            self.problems.extend(error.problems)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            self.problems.append(f"{self.image.where}: {step.__name__.strip('_')}: unexpected content: {error!r}")

    # --- signatures and bytes ---------------------------------------------------------------------------------------

    def _signature(self, digest: str, name: str) -> None:
        self._signatures.check(self.image.where.at(digest), name)

    def _signed(self, platform: str, listed: Sequence[tuple[str, str]]) -> None:
        """Check the signatures of a platform and of its documents; `_tag` checks the one that binds the tag."""
        digest = self.image.platforms[platform].digest
        if digest != self.image.digest:
            self._signature(digest, platform)
        signed_documents = [(kind, artifact) for kind, artifact in listed if kind not in documents.BINDINGS]
        self._signatures.check_documents(self.image.where, platform, signed_documents)

    def _blobs(self, platform: str, manifest: Manifest) -> None:
        content = manifest.content
        for descriptor in (content["config"], *content["layers"]):
            size = sum(
                len(chunk) for chunk in self.image.repository.blobs.pull(descriptor["digest"], int(descriptor["size"]))
            )
            if size != descriptor["size"]:
                raise UntrustedError(f"{descriptor['digest']}: {size} bytes, expected {descriptor['size']}")
        self.shown.append(f"{platform}: all {1 + len(content['layers'])} blobs match their digests")

    def _platforms(self) -> None:
        """Check that each image is for the platform that the index says, and that the index has nothing else."""
        for platform in self.image.platforms:
            actual = strict.platform_of(self.image.config(platform))
            if actual != platform:
                raise UntrustedError(f"{self.image.where}: the index says {platform}, the image is for {actual}")
        if self.image.manifest.is_index and not _names_each_platform_once(self.image.manifest.content["manifests"]):
            raise UntrustedError(
                f"{self.image.where}: the index has entries for no platform, or two for one: a client may choose them"
            )

    def _choose_tag(self) -> None:
        """Choose the tag.json that gives the image this name; it is signed if signatures are required."""
        name = self._name
        referrers = self.image.documents(self.image.digest, documents.BINDINGS)
        tag_artifact = tag_binding.choose_tag_binding(
            [(item.manifest, tag_binding.read_binding(item, name)) for item in referrers], name
        )
        if tag_artifact is None:
            self.not_shown.append(f"repository: no tag was published with the digest {name.image}")
            return
        artifact, binding = tag_artifact
        self._signature(artifact, f"tag {binding.tag}")
        self._binding, self.kind = binding, binding.kind

    def _tag(self) -> None:
        """Check what that tag.json says of the image."""
        binding, name = self._binding, self._name
        if binding is None:
            return
        variant = self.variant if self.is_row else binding.variant
        if problems := tag_binding.find_binding_problems(binding, name, variant):
            raise UntrustedError(*problems)
        if self._signatures.required:
            tag_binding.remember_channel(binding, name)
        self._say_tag(binding)

    def _foundation(self) -> None:
        """Check that the signature names the key of the foundation, as `build --foundations` does."""
        if self._binding and self._signatures.required:
            self._signatures.check(self.image.where.at(self.image.digest), "the key", {CLAIM: self._binding.tag})

    def _say_tag(self, binding: Binding) -> None:
        self.shown.append(f"tag {binding.tag} was published with this digest")
        self.shown.append(f"repository {binding.repository} is where it was published")
        if self._name.tag and binding.channel and binding.expires is None and not self._name.max_age:
            self.not_shown.append(f"age: tag {binding.tag} never expires; --max-age DAYS limits its age")

    # --- attached documents -----------------------------------------------------------------------------------------

    def _documents(self, platform: str, listed: Sequence[tuple[str, str]]) -> None:
        digest = self.image.platforms[platform].digest
        self.lacks_documents |= not documents.REQUIRED.intersection(kind for kind, _ in listed)
        referrers = tuple(self.image.repository.document(digest, kind, artifact) for kind, artifact in listed)
        self._lock(referrers, platform)
        locks = of_type(referrers, documents.LOCK)
        for item in _require_documents(referrers, documents.PROVENANCE, platform):
            self._provenance(item, digest, platform, locks)
        self.shown.append(f"{platform}: provenance names this digest and this lock")
        self._bom(referrers, platform)

    def _model_bom(self, platform: str, listed: Sequence[tuple[str, str]]) -> None:
        """Check that a bill of materials is attached, and names this digest."""
        digest = self.image.platforms[platform].digest
        referrers = tuple(self.image.repository.document(digest, kind, artifact) for kind, artifact in listed)
        for item in _require_documents(referrers, documents.MODEL_BOM, platform):
            hashes = [entry["content"] for entry in item.json()["metadata"]["component"]["hashes"]]
            if hashes != [digest.removeprefix("sha256:")]:
                raise UntrustedError(f"{platform}: the bill of materials is about another model than {digest}")
        self.shown.append("the bill of materials names this digest")

    def _lock(self, referrers: tuple[Referrer, ...], platform: str) -> None:
        """Read the lock.

        An image that was published again, after a change of its lock's form, has several locks: all must pin the same
        inputs.
        """
        locks = [
            lockfile.parse_lock(item.data.decode(), f"{platform}: lock {item.manifest}")
            for item in _require_documents(referrers, documents.LOCK, platform)
        ]
        if platform not in locks[0].platforms:
            raise UntrustedError(f"{platform}: the attached lock is for {', '.join(locks[0].platforms)}")
        if self.variant not in ("", locks[0].variant):
            raise UntrustedError(f"{platform}: the image is {locks[0].variant}, the index also has {self.variant}")
        if any(item.platforms.get(platform) != locks[0].platforms[platform] for item in locks):
            raise UntrustedError(f"{platform}: the attached locks pin different inputs")
        self.lock, self.variant = locks[0], locks[0].variant
        label = self.image.config(platform)["config"]["Labels"].get("io.drydock.variant")
        if label != self.variant:
            raise UntrustedError(f"{platform}: the image's label is {label!r}, its lock is for {self.variant!r}")

    def _provenance(self, item: Referrer, digest: str, platform: str, locks: tuple[Referrer, ...]) -> None:
        where = f"provenance {item.manifest}"
        statement = provenance.parse_statement(item.json(), where)
        if digest not in statement.digests:
            raise UntrustedError(f"{where}: its subject is {', '.join(sorted(statement.digests))}, expected {digest}")
        if statement.lock_sha256 not in {hashlib.sha256(item.data).hexdigest() for item in locks}:
            raise UntrustedError(f"{where}: names a lock with sha256 {statement.lock_sha256}, which is not attached")
        self.inputs[platform] = statement.inputs_sha256

    def _bom(self, referrers: tuple[Referrer, ...], platform: str) -> None:
        """Check that every package in the layers is in the bill of materials."""
        document = _require_documents(referrers, documents.BOM, platform)[0].json()
        listed = {purl for purl, _ in bom.list_bom_packages(document)}
        content = self.image.platforms[platform].content
        if self._is_adopted(platform):
            content = {**content, "layers": content["layers"][-adoption.ADDED_LAYERS :]}
        layers = contents.read_contents(content, self.image.blob)
        purls = {components.make_component(package).purl for package in layers.packages}
        missing = sorted(purls - listed)
        if missing:
            raise UntrustedError(f"{platform}: in the image but not in its bill of materials: {', '.join(missing[:5])}")
        if self._is_adopted(platform):
            self.shown.append(f"{platform}: the bill of materials names the base, and matches the layers added to it")
            self.not_shown.append(f"{platform}: what is in the base: its publisher vouches for it")
        else:
            self.shown.append(f"{platform}: the bill of materials matches the layers")

    def _is_adopted(self, platform: str) -> bool:
        """Tell whether an image is one of others with layers added. Raises UntrustedError for another base."""
        labels = self.image.config(platform)["config"]["Labels"]
        if labels.get(adoption.ADOPTED) != "true":
            return False
        locked = self.lock.platforms[platform].base.digest if self.lock else None
        if labels.get(adoption.BASE_DIGEST) != locked:
            raise UntrustedError(
                f"{platform}: the label names the base {labels.get(adoption.BASE_DIGEST)!a}, not {locked}"
            )
        return True


def _names_each_platform_once(entries: Sequence[Mapping[str, Any]]) -> bool:
    platforms = {strict.platform_of(entry.get("platform")) for entry in entries}
    images = all(entry["mediaType"] in strict.MANIFESTS for entry in entries)
    return images and len(platforms) == len(entries) and not platforms.intersection(("", strict.UNKNOWN))


def _require_documents(referrers: tuple[Referrer, ...], media_type: str, platform: str) -> tuple[Referrer, ...]:
    """Return the documents of one type. Raises UntrustedError if there is none."""
    items = of_type(referrers, media_type)
    if not items:
        raise UntrustedError(f"{platform}: no {documents.FILE_NAMES[media_type]} is attached")
    return items


# --- rebuild --------------------------------------------------------------------------------------------------------


def _rebuild_image(image: Image, published: Lock | None, options: VerifyOptions, project: Project) -> str:
    """Build the image for this machine's platform from this repository, and return its digest.

    Raises NotReproducibleError if it is not the published digest.
    """
    if published is None:
        raise UntrustedError(f"{image.where}: cannot rebuild: no lock is attached")
    variant = matrix.find_recorded_variant(project, published.variant, str(image.where), _REBUILD_HINT)
    platform = choose_platform(variant, None)
    job = prepare_job(project, variant.id, BuildOptions(platform=platform))
    if job.lock.platforms[platform] != published.platforms[platform]:
        raise InputError(
            f"{variant.id}: the image was built from another lock than this repository's",
            hint=f"`./inv image inspect {image.where}` shows its commit: check that out and verify there",
        )
    log(f"{image.where}: building {variant.id} for {platform} on this machine")
    built = build.build_image(job, builder=options.builder or None, no_cache=True, into_engine=False)
    expected = image.platforms[platform].digest
    if built.digest != expected:
        differences = [format_difference(item) for item in _list_differences(image, platform, Path(built.layout))]
        raise NotReproducibleError(
            f"{variant.id}: this machine built {built.digest}, expected {expected}", *differences
        )
    return built.digest


_REBUILD_HINT = (
    "all but the rebuild is as it was published. To rebuild it, run this in the project that the image was built from,"
    " or with --project DIR before the verb; without it: --registry-only"
)


def _list_differences(image: Image, platform: str, layout: Path) -> Iterator[Any]:
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
        yield from compare_layouts(folder, layout)
