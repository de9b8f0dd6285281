"""REF → what is in that image, since when, from which row, and what is said of it; read from the registry alone. IO."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from drydock.attest import documents
from drydock.examine.pulled import Image, Referrer, open_image
from drydock.lock import lockfile
from drydock.lock.proof import Proof
from drydock.model.locked import LockedDebianBase
from drydock.model.record import Record


class InspectedPlatform(Record):
    """One platform's image."""

    digest: str
    created: str
    """SOURCE_DATE_EPOCH, not when it was built."""
    layers: int
    size: int
    """Bytes of its layers, compressed."""
    labels: Mapping[str, str]
    attached: Mapping[str, str]
    """File name → digest of the artifact that carries it."""
    signatures: int
    """Made by anybody: whose count is for `invoke verify --reference` to say."""
    base: str
    packages: Mapping[str, int]
    """Number of wheels and Debian packages that the lock pins."""
    built: tuple[Mapping[str, str], ...]
    """What each provenance says: when, by whom, from which commit."""
    shown: str
    """The strongest proof tier of its inputs."""


class Inspected(Record):
    """What `inspect --json` prints."""

    image: str
    digest: str
    tag: str
    platforms: Mapping[str, InspectedPlatform]


def inspect(reference: str, *, insecure: bool = False) -> Inspected:
    """Return what a registry says of an image, unverified. Raises InputError, RegistryError or UntrustedError."""
    image = open_image(reference, insecure=insecure)
    return Inspected(
        image=str(image.where.at(image.digest)),
        digest=image.digest,
        tag=image.where.tag,
        platforms={platform: _platform(image, platform) for platform in image.platforms},
    )


def report(found: Inspected) -> str:
    """Return what people read."""
    lines = [found.image]
    for name, platform in found.platforms.items():
        variant, version = (platform.labels.get(key, "?") for key in ("io.drydock.variant", _VERSION))
        lines += [
            f"{name}: {variant}, vLLM {version}, {platform.layers} layers, {platform.size / 1e6:.0f} MB",
            f"  digest   {platform.digest}",
            f"  base     {platform.base or 'not said'}",
            f"  pinned   {', '.join(f'{count} {kind}' for kind, count in platform.packages.items()) or 'not said'}",
            f"  attached {', '.join(platform.attached) or 'nothing'}; {platform.signatures} signatures",
            f"  shown    {platform.shown}",
        ]
        lines += [
            f"  built    {item['finished']} by {item['builder']} from {item['commit']}" for item in platform.built
        ]
    return "\n".join(lines) + "\n"


_VERSION = "org.opencontainers.image.version"


def _platform(image: Image, name: str) -> InspectedPlatform:
    manifest = image.platforms[name]
    layers: Sequence[Mapping[str, Any]] = manifest.content["layers"]
    config = image.config(name)
    found = image.documents(manifest.digest, documents.KINDS)
    base, packages = _pinned(found, name)
    return InspectedPlatform(
        digest=manifest.digest,
        created=str(config.get("created", "")),
        layers=len(layers),
        size=sum(int(layer["size"]) for layer in layers),
        labels=config.get("config", {}).get("Labels") or {},
        attached={documents.KINDS[item.media_type]: item.manifest for item in found},
        signatures=image.signatures(manifest.digest),
        base=base,
        packages=packages,
        built=tuple(_built(item) for item in of(found, documents.PROVENANCE)),
        shown=next((Proof.model_validate(item.json()).tier() for item in of(found, documents.PROOF)), "none"),
    )


def _pinned(found: Iterable[Referrer], platform: str) -> tuple[str, dict[str, int]]:
    item = next(of(found, documents.LOCK), None)
    if item is None:
        return "", {}
    pins = lockfile.parse_lock(item.data.decode(), f"the lock attached as {item.manifest}").platforms[platform]
    wheels = sum(len(wheels) for wheels in pins.layers.values())
    if isinstance(pins.base, LockedDebianBase):
        return f"Debian {pins.base.suite} of {pins.base.snapshot}", {"wheels": wheels, "debs": len(pins.base.packages)}
    return f"{pins.base.reference}@{pins.base.digest}", {"wheels": wheels}


def _built(item: Referrer) -> dict[str, str]:
    predicate = item.json()["predicate"]
    source = predicate["buildDefinition"]["externalParameters"]["source"]
    changed = " with changes" if source["changed"] else ""
    return {
        "finished": predicate["runDetails"]["metadata"]["finishedOn"],
        "builder": predicate["runDetails"]["builder"]["id"],
        "commit": f"{source['repository']}@{source['commit']}{changed}" if source["commit"] else "no commit",
    }


def of(found: Iterable[Referrer], media_type: str) -> Iterator[Referrer]:
    """Return the documents of one type."""
    return (item for item in found if item.media_type == media_type)
