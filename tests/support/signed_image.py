"""A published, signed image in a registry of its own, for tests that attack it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drydock.attest import documents
from drydock.attest.cosign import Trust
from drydock.config.server_access import Access
from drydock.core.errors import UntrustedError
from drydock.core.project import Project
from drydock.examine import verify_published
from drydock.examine.remote_image import open_image
from drydock.oci.manifest import to_manifest
from drydock.oci.reference import parse_reference
from drydock.publish.push import Published
from drydock.publish.repository import Repository
from drydock.registry.manifests import INDEX, fallback_tag
from tests.support.local_registry import VARIANT, LocalRepository, publish
from tests.support.servers import Registry

AMD64 = "linux/amd64"


class Signed:
    """A published, signed image, and the public key."""

    def __init__(self, registry: Registry, local: LocalRepository, key: Path, path: str) -> None:
        self.registry, self.local, self.public = registry, local, str(key.with_suffix(".pub"))
        self.where = f"{registry.host}/{path}/cpu"
        options = {"release": "1.0.0", "channel": "stable", "sign_key": str(key)}
        self.done: Published = publish(local.root, f"{registry.host}/{path}", **options)
        self.repository = Repository(parse_reference(self.where), Access(), state=local.cache / "tests")

    @property
    def image(self) -> str:
        return f"{self.where}:{VARIANT}-1.0.0"

    @property
    def digest(self) -> str:
        """The one platform's."""
        return self.done.platforms[AMD64]

    def verify(self, reference: str = "") -> verify_published.Trusted:
        options = verify_published.VerifyOptions(Trust(key=self.public), rebuild=False)
        return verify_published.verify_reference(Project(self.local.root), reference or self.image, options)

    def documents(self) -> dict[str, Any]:
        image = open_image(self.image)
        return {item.media_type: item for item in image.documents(self.digest, documents.FILE_NAMES)}

    def refused(self, reference: str = "") -> str:
        """Return what is said when the verification is refused."""
        with pytest.raises(UntrustedError) as caught:
            self.verify(reference)
        assert caught.value.code == 13
        return str(caught.value)

    def next_release(self, folder: Path, key: Path, **changes: Any) -> Published:
        """Publish another image as 1.0.1 and to the channel, from another machine, which has not verified anything."""
        next_repository = LocalRepository(folder / "other", platforms=(AMD64,), salt="another")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DRYDOCK_CACHE", str(next_repository.cache))
            settings = {"release": "1.0.1", "channel": "stable", "sign_key": str(key), **changes}
            return publish(next_repository.root, self.where.rpartition("/")[0], **settings)

    def move(self, tag: str, digest: str) -> None:
        """Set a tag as somebody with the registry's password can."""
        manifest = self.repository.manifests.find(digest)
        assert manifest
        self.repository.manifests.push(manifest, tag)

    def rewrite_referrers(self, keep: Callable[[dict[str, Any]], bool]) -> None:
        """Write the list of what refers to the image anew, as somebody with the registry's password could."""
        there = self.repository.manifests
        listed = [item for item in there.referrers(self.digest) if keep(item)]
        index = to_manifest({"schemaVersion": 2, "mediaType": INDEX, "manifests": listed})
        there.push(index, fallback_tag(self.digest))
