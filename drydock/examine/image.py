"""Inspect an image in a registry: contents, creation time, variant and attached documents, all unverified. IO."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from drydock.attest import documents, provenance
from drydock.build.build_job import STAND_IN
from drydock.core.console import as_lines, log
from drydock.core.errors import DrydockError, UntrustedError
from drydock.core.project import Project
from drydock.examine.remote_image import Image, open_image
from drydock.lock import code_lists, lockfile
from drydock.lock.image_record import name_releases, read_releases
from drydock.lock.proof import Proof, strongest_tier
from drydock.model.locked import LockedDebianBase, LockedPlatform
from drydock.model.record import Record
from drydock.publish.repository import Referrer
from entrypoints.checks.code_for_cards import describe_code

T = TypeVar("T")


class InspectedPlatform(Record):
    """One platform's image."""

    digest: str
    created: str
    """SOURCE_DATE_EPOCH, not the time of the build."""
    layers: int
    size: int
    """Size of the compressed layers in bytes."""
    labels: Mapping[str, str]
    attached: Mapping[str, str]
    """File name → digest of the artifact that contains it."""
    signatures: int
    """Number of signatures by anyone; `./inv image verify` verifies them."""
    base: str
    packages: Mapping[str, int]
    """Number of wheels and Debian packages that the lock pins."""
    built: tuple[Mapping[str, str], ...]
    """For each provenance: time of the build, builder, commit."""
    shown: str
    """Highest proof tier of the image's inputs."""
    code: Mapping[str, Mapping[str, str]]
    """Library with its version → file → the cards that it has code for, as far as this project read it."""
    releases: tuple[str, ...]
    """Releases of drydock with this digest, as far as this project's records say."""
    stand_in: str
    """What stand-ins are in it; empty for an image without any."""


class Inspected(Record):
    """What `inspect --json` prints."""

    image: str
    digest: str
    tag: str
    platforms: Mapping[str, InspectedPlatform]


def inspect_image(project: Project, reference: str, *, insecure: bool = False) -> Inspected:
    """Return what a registry stores about an image, unverified.

    Which cards its libraries have code for is what the project read of the same wheels or base. Raises InputError,
    RegistryError or UntrustedError.
    """
    image = open_image(reference, insecure=insecure)
    return Inspected(
        image=str(image.where.at(image.digest)),
        digest=image.digest,
        tag=image.where.tag,
        platforms={platform: _inspect_platform(project, image, platform) for platform in image.platforms},
    )


def format_inspected(inspected: Inspected) -> str:
    """Return the result as text."""
    lines = [inspected.image]
    for name, platform in inspected.platforms.items():
        variant = platform.labels.get("io.drydock.variant", "?")
        version = platform.labels.get("org.opencontainers.image.version", "?")
        packages = ", ".join(f"{count} {kind}" for kind, count in platform.packages.items())
        lines += [
            f"{name}: {variant}, vLLM {version}, {platform.layers} layers, {platform.size / 1e6:.0f} MB",
            f"  digest   {platform.digest}",
            f"  base     {platform.base or 'unknown'}",
            f"  pinned   {packages or 'unknown'}",
            f"  attached {', '.join(platform.attached) or 'nothing'}; {platform.signatures} signatures",
            f"  shown    {platform.shown}",
            f"  release  {name_releases(platform.releases) or 'none that this drydock records'}",
        ]
        lines += _format_code(platform)
        lines += [
            f"  built    {item['finished'] or 'by `adopt`'} by {item['builder']} from {item['commit']}"
            for item in platform.built
        ]
    return as_lines(lines)


def _format_code(platform: InspectedPlatform) -> Iterator[str]:
    """Yield a line for each library, or for each of its files that has code for other cards."""
    if platform.stand_in:
        yield f"  code     none: stand-ins for {platform.stand_in.replace(',', ', ')}"
        return
    for library, files in platform.code.items():
        for cards in dict.fromkeys(files.values()) or ("none: it compiles its code where it runs, or has none",):
            paths = [path.rpartition("/")[2] for path in files if files[path] == cards]
            names = f" {paths[0]}" + (f" and {len(paths) - 1} more" if paths[1:] else "") if paths else ""
            yield f"  code     {library}{names}: {cards}"
    if not platform.code:
        yield "  code     unknown: this project has not read its libraries"


def _inspect_platform(project: Project, image: Image, name: str) -> InspectedPlatform:
    manifest = image.platforms[name]
    layers: Sequence[Mapping[str, Any]] = manifest.content["layers"]
    config = image.config(name)
    referrers = _read_attached(image, manifest.digest)
    pins = next(_read_each(of_type(referrers, documents.LOCK), partial(_read_pins, platform=name)), None)
    base, packages = _describe_pins(pins) if pins else ("", {})
    labels: Mapping[str, str] = config["config"]["Labels"]
    proofs = [*of_type(referrers, documents.PROOF), *of_type(referrers, documents.EARLIER_PROOF)]
    return InspectedPlatform(
        digest=manifest.digest,
        created=str(config.get("created", "")),
        layers=len(layers),
        size=sum(int(layer["size"]) for layer in layers),
        labels=labels,
        attached={documents.FILE_NAMES[item.media_type]: item.manifest for item in referrers},
        signatures=image.signatures(manifest.digest),
        base=base,
        packages=packages,
        built=tuple(_read_each(of_type(referrers, documents.PROVENANCE), _read_build)),
        shown=next(_read_each(proofs, _read_tier), "none"),
        code=_describe_code(project, labels.get("io.drydock.variant", ""), pins) if pins else {},
        releases=read_releases(project).get(manifest.digest, ()),
        stand_in=labels.get(STAND_IN, ""),
    )


def _read_attached(image: Image, digest: str) -> list[Referrer]:
    """Return the attached documents, without those that are not as the registry lists them: anyone may attach some."""
    referrers = []
    for kind, artifact in image.repository.attached(digest, documents.FILE_NAMES):
        try:
            referrers.append(image.repository.document(digest, kind, artifact))
        except UntrustedError as error:
            log(f"left out: {error.problems[0]}")
    return referrers


def _read_each(referrers: Iterable[Referrer], read: Callable[[Referrer], T]) -> Iterator[T]:
    """Yield what can be read of documents of one type; others use the types of SPDX and in-toto for their own."""
    for item in referrers:
        try:
            yield read(item)
        except (DrydockError, LookupError, TypeError, ValueError, AttributeError):
            log(f"left out: {item.manifest}: {documents.FILE_NAMES[item.media_type]} is not as drydock writes it")


def _read_tier(item: Referrer) -> str:
    return strongest_tier(Proof.model_validate(item.json())).tier


def _read_pins(item: Referrer, platform: str) -> LockedPlatform:
    """Return what an attached lock pins."""
    return lockfile.parse_lock(item.data.decode(), f"the lock attached as {item.manifest}").platforms[platform]


def _describe_pins(pins: LockedPlatform) -> tuple[str, dict[str, int]]:
    """Return the base and the number of pinned packages."""
    wheels = sum(len(layer) for layer in pins.layers.values())
    if isinstance(pins.base, LockedDebianBase):
        return f"Debian {pins.base.suite} of {pins.base.snapshot}", {"wheels": wheels, "debs": len(pins.base.packages)}
    return f"{pins.base.reference}@{pins.base.digest}", {"wheels": wheels}


def _describe_code(project: Project, row: str, pins: LockedPlatform) -> dict[str, dict[str, str]]:
    """Return library → file → the cards that it has code for, as the project read it of these wheels or this base."""
    libraries = code_lists.find_pinned_code(project, row, pins)
    return {
        library: {path: describe_code({path: code.counts}) for path, code in files.items()}
        for library, files in libraries.items()
    }


def _read_build(item: Referrer) -> dict[str, str]:
    build = provenance.parse_statement(item.json(), item.manifest)
    return {"finished": build.finished, "builder": build.builder, "commit": build.commit}


def of_type(referrers: Iterable[Referrer], media_type: str) -> tuple[Referrer, ...]:
    """Return the documents of one type."""
    return tuple(item for item in referrers if item.media_type == media_type)
