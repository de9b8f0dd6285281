"""Read an image from a registry: manifests, referrers and blobs, each checked against its digest. IO."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import docker.errors

from drydock.build.build_job import OWN, STAND_INS
from drydock.config.matrix import find_variant, read_matrix
from drydock.core.errors import EngineError, InputError, RegistryError
from drydock.core.project import Project
from drydock.engine import image_loading
from drydock.engine.connection import connect_engine
from drydock.inputs import indexes
from drydock.inputs.store import default_store
from drydock.oci import strict
from drydock.oci.manifest import Manifest
from drydock.oci.reference import Reference, parse_reference
from drydock.publish.repository import Referrer, Repository
from drydock.registry.platform_images import PlatformImages


class Image(NamedTuple):
    """An image in a registry."""

    repository: Repository
    where: Reference
    """The reference as the user gave it."""
    manifest: Manifest
    """The manifest that the reference names: an index, or the manifest of the only platform."""
    platforms: Mapping[str, Manifest]
    indexes: Sequence[Manifest] = ()
    """What leads to the platforms: the index that the reference names, and those within it."""

    @property
    def digest(self) -> str:
        """Return the digest of the manifest that the reference names."""
        return self.manifest.digest

    def config(self, platform: str) -> dict[str, Any]:
        """Return a platform's image configuration."""
        digest = self.platforms[platform].content["config"]["digest"]
        return strict.read_config(self.bytes(digest), f"{self.where}: {digest}")

    def bytes(self, digest: str) -> bytes:
        """Return a small blob's bytes."""
        return b"".join(self.repository.blobs.pull(digest))

    def blob(self, digest: str) -> Path:
        """Return a blob's file in the store; fetch it first if needed. Raises FetchError if it was changed there."""
        sha256 = digest.removeprefix("sha256:")
        store = default_store()
        if store.has(sha256):
            store.verify(sha256)
        else:
            store.add(self.repository.blobs.pull(digest, self._size(digest)), sha256, digest)
        return store.path(sha256)

    def _size(self, digest: str) -> int:
        """Return the size of a layer or a config as a manifest of the image names it. Raises RegistryError."""
        contents = [manifest.content for manifest in self.platforms.values()]
        descriptors = [item for content in contents for item in (content["config"], *content["layers"])]
        size = next((item.get("size") for item in descriptors if item["digest"] == digest), None)
        if not isinstance(size, int):
            raise RegistryError(f"{self.where}: {digest}: no manifest names the size of this blob")
        return size

    def documents(self, digest: str, types: Collection[str]) -> tuple[Referrer, ...]:
        """Return the documents of these artifact types attached to a digest. Raises RegistryError or UntrustedError."""
        return self.repository.documents(digest, types)

    def signatures(self, digest: str) -> int:
        """Return the number of signatures of a digest, by anyone."""
        referrers = self.repository.manifests.referrers(digest)
        return sum("sigstore" in self.repository.artifact_type(item) for item in referrers)


def open_image(
    text: str, *, insecure: bool = False, accept: Callable[[Reference], object] = bool, artifact: str = ""
) -> Image:
    """Return the image that a reference names. Raises InputError, RegistryError or CredentialsError.

    `accept` gets the digest of the image before anything that it names is read, and raises an error to stop. An
    artifact of the type `artifact` is returned as an image without platforms.
    """
    where = parse_reference(text)
    if is_local_name(text):
        raise InputError(
            f"{text}: an image of this machine's engine, expected one in a registry: HOST/REPOSITORY[:TAG]",
            hint=f"`docker image inspect {text}` shows it, `./inv images` which lock has its digest; "
            "`./inv publish` puts it into a registry",
        )
    access = indexes.make_index_access(indexes.read_indexes(), os.environ)
    repository = Repository(where._replace(tag="", digest=""), access, insecure=insecure)
    manifest = repository.manifests.find(where.name)
    if manifest is None:
        raise RegistryError(f"{where}: image not found in the registry", hint=_hint_tags(repository))
    accept(repository.where.at(manifest.digest))
    if artifact and manifest.content.get("artifactType") == artifact:
        return Image(repository, where, manifest, {})
    images = PlatformImages(repository.manifests, repository.blobs, manifest)
    return Image(repository, where, manifest, images.images, images.indexes)


def choose_platforms(image: Image, platform: str) -> tuple[str, ...]:
    """Return the platform that the user names, or all of an image. Raises InputError if the image does not have it."""
    if platform and platform not in image.platforms:
        raise InputError(f"--platform {platform}: {image.where} is for {', '.join(image.platforms)}")
    return (platform,) if platform else (*image.platforms,)


_IMAGE_ID = re.compile(r"(?:sha256:)?[0-9a-f]{12,64}")


def is_local_name(text: str) -> bool:
    """Tell whether a reference is of an image in this machine's engine, not of one in a registry.

    docker reads a name without a host as one of Docker Hub. There are no images of drydock below `drydock/` there, and
    none without a slash, which are Docker's own.
    """
    if _IMAGE_ID.fullmatch(text) or text.startswith((OWN, STAND_INS)):
        return True
    if "/" in text:
        return False
    return image_loading.LABEL in _read_local_labels(text)


def refuse_row_name(project: Project, text: str) -> None:
    """Raise InputError for a name that `--target` takes, before anything is asked: docker reads it as one of its own.

    Raises TargetError for a row that is retired, or an accelerator without a default row.
    """
    name = re.split("[:@]", text)[0]
    variants = read_matrix(project)
    if not any(name in (row.id, row.accelerator, *row.aliases, *row.replaces) for row in variants):
        return
    variant = find_variant(variants, name)
    local, publish = f"{OWN}{variant.id}", f"`./inv publish --target {name}` puts it into a registry"
    if _read_local_labels(local):
        problem, hint = f"its image {local} is in this machine's engine", f"`docker image inspect {local}` shows it"
    else:
        problem, hint = "it has no image on this machine", f"`./inv build --target {name}` makes it"
    expected = "expected an image in a registry: HOST/REPOSITORY[:TAG]"
    raise InputError(f"{text}: the row {variant.id} of the matrix, {expected}; {problem}", hint=f"{hint}; {publish}")


def _read_local_labels(name: str) -> Mapping[str, str]:
    """Return the labels of an image in this machine's engine; none if it is not there, or there is no engine."""
    try:
        labels: Mapping[str, str] = connect_engine().images.get(name).labels
    except (docker.errors.DockerException, EngineError):
        return {}
    return labels


def _hint_tags(repository: Repository) -> str:
    names = [tag for tag in repository.manifests.tags() if not tag.startswith("sha256-")]
    return f"existing tags: {', '.join(names[-10:])}" if names else "the repository has no tags"
