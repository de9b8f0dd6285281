"""An image of others, found in a registry: which platforms it has, their layers, what its configuration says. IO."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from drydock.attest import licences
from drydock.build import adoption
from drydock.build.adoption import BaseParts, BaseSettings
from drydock.build.build_job import ARCHITECTURES
from drydock.config.mirrors import read_mirrors
from drydock.core.console import log
from drydock.core.errors import InputError, RegistryError
from drydock.core.project import Project
from drydock.inputs import indexes
from drydock.inputs.image_digests import at_mirror
from drydock.oci import image_layout, strict
from drydock.oci.manifest import Manifest
from drydock.oci.reference import Reference, parse_reference
from drydock.publish.repository import Repository
from drydock.registry.blobs import FileContent
from drydock.registry.platform_images import PlatformImages

PLATFORMS = frozenset(ARCHITECTURES.values())


class BasePlatform(NamedTuple):
    """A base's image for one platform."""

    manifest: Manifest
    parts: BaseParts

    @property
    def layers(self) -> Sequence[Mapping[str, Any]]:
        """Return the descriptors of its layers."""
        return self.parts.layers

    @property
    def settings(self) -> BaseSettings:
        """Return what its configuration says."""
        return self.parts.settings


class BaseImage(NamedTuple):
    """An image of others."""

    repository: Repository
    reference: Reference
    """As the user named it, with the digest that its tag has now."""
    platforms: Mapping[str, BasePlatform]
    indexes: Sequence[Manifest] = ()
    """What leads to the platforms: the index that the reference names, and those within it."""
    layout: Path | None = None
    """Where the store has the image, if no registry has it but the engine does."""

    def pull_layer(self, descriptor: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the bytes of a layer, as they arrive. Raises RegistryError for other ones."""
        if self.layout:
            size = descriptor["size"]
            return FileContent(image_layout.path_of_blob(self.layout, descriptor["digest"]), size).pieces(0, size)
        return self.repository.blobs.pull(descriptor["digest"], descriptor["size"])

    @property
    def digest(self) -> str:
        """Return the digest of the index, or of the only image."""
        return self.reference.digest

    @property
    def where(self) -> str:
        """Return the reference without its digest, as a stack names it."""
        return str(self.reference._replace(digest="", scheme=""))

    @property
    def layers(self) -> dict[str, int]:
        """Return the digest and the size of each layer of all platforms."""
        return {layer["digest"]: layer["size"] for platform in self.platforms.values() for layer in platform.layers}


def open_base(text: str, only: str = "", *, insecure: bool = False) -> BaseImage:
    """Return an image of others: all its platforms that drydock has rows for, or `only` one.

    Raises InputError, RegistryError for what engines could read in another way or not at all, CredentialsError.
    """
    named = parse_reference(text)
    where = parse_reference(at_mirror(text, read_mirrors(os.environ)))
    access = indexes.make_index_access(indexes.read_indexes(), os.environ)
    repository = Repository(where._replace(tag="", digest=""), access, insecure=insecure)
    top = repository.manifests.find(where.name)
    if top is None:
        raise RegistryError(f"{where}: image not found in the registry")
    listed = PlatformImages(repository.manifests, repository.blobs, top, only)
    images = listed.images
    if unusable := sorted({*images} - PLATFORMS):
        log(f"{where}: left out: {', '.join(unusable)}")
    supported_images = {name: images[name] for name in sorted(images) if name in PLATFORMS and only in ("", name)}
    if not supported_images:
        raise InputError(f"{text}: for {', '.join(sorted(images)) or 'other platforms'}, expected {only or 'Linux'}")
    platforms = {name: _read_platform(repository, name, image) for name, image in supported_images.items()}
    return BaseImage(repository, named.at(top.digest)._replace(tag=named.tag), platforms, listed.indexes)


def _read_platform(repository: Repository, name: str, manifest: Manifest) -> BasePlatform:
    where = f"{repository.where}@{manifest.digest}"
    config = b"".join(repository.blobs.pull(manifest.content["config"]["digest"]))
    parts = adoption.read_parts(manifest.content, config, where)
    strict.check_platform(parts.config, name, where)
    for layer in parts.layers:
        stated = repository.blobs.read_size(layer["digest"])
        if stated not in (None, layer["size"]):
            sizes = f"the manifest says {layer['size']} bytes, and the registry has {stated}"
            raise RegistryError(f"{where}: {layer['digest']}: {sizes}")
    return BasePlatform(manifest, parts)


def refuse_base(project: Project, base: BaseImage) -> None:
    """Raise InputError for a base that no layer makes ours, LicenceError for one that may not be pushed again."""
    policy = licences.read_policy(project)
    for platform in base.platforms.values():
        adoption.refuse_base(platform.settings, base.where)
        licences.refuse_licence(platform.settings.labels.get(adoption.LICENCES, ""), base.where, policy)
