"""Manifests, tags and referrers of one repository. IO.

Source: distribution-spec 1.1, "Pushing manifests", "Content discovery", "Listing referrers", and "Referrers tag
schema" for registries that have no referrers API.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urljoin

import requests

from drydock.core.errors import RegistryError
from drydock.core.files import compact, exclusive
from drydock.registry.client import Client, HttpRequest, RefusedError, RetryableRequest

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
DOCKER = "application/vnd.docker.distribution.manifest"
ACCEPTED = f"{MANIFEST}, {INDEX}, {DOCKER}.v2+json, {DOCKER}.list.v2+json"
LARGEST = 4 << 20
"""Bytes: the least that the specification lets a registry take as a manifest."""
RACES = 4
"""Times that a manifest is put before a refusal is believed."""
TRIES = 6
"""Times that a list of referrers is written anew, where somebody else wrote it meanwhile."""


class Manifest(NamedTuple):
    """A manifest as its bytes, which are what its digest is of."""

    data: bytes
    media_type: str

    @property
    def digest(self) -> str:
        """Return the sha256 of its bytes."""
        return f"sha256:{hashlib.sha256(self.data).hexdigest()}"

    @property
    def content(self) -> dict[str, Any]:
        """Return what it says."""
        value: dict[str, Any] = json.loads(self.data)
        return value

    def descriptor(self) -> dict[str, Any]:
        """Return how another manifest points to it."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": len(self.data)}


def made(content: Mapping[str, Any]) -> Manifest:
    """Return the manifest with this content, in its one canonical form."""
    return Manifest(compact(content).encode(), str(content["mediaType"]))


class Manifests:
    """The manifests and tags of one repository; `state` is the folder whose locks let two runs take turns."""

    def __init__(self, client: Client, state: Path) -> None:
        self.client = client
        self._state = state / client.where.host.replace(":", "_") / client.where.repository

    def find(self, name: str) -> Manifest | None:
        """Return the manifest of a tag or digest, or None. Raises RegistryError if its bytes are not the digest's."""
        asked = HttpRequest("GET", self.client.path(f"manifests/{name}"), headers={"Accept": ACCEPTED})
        response = self.client.request(asked, (200, 404))
        if response.status_code != 200:  # noqa: PLR2004 - as asked for
            return None
        if len(response.content) > LARGEST:
            raise RegistryError(f"{self.client.where}: {name}: a manifest of more than {LARGEST} bytes")
        media_type = response.headers.get("Content-Type", "").partition(";")[0].strip()
        manifest = Manifest(response.content, media_type or MANIFEST)
        if name.startswith("sha256:") and manifest.digest != name:
            raise RegistryError(f"{self.client.where}: {name}: the registry sent {manifest.digest} for it")
        _readable(manifest, f"{self.client.where}: {name}")
        return manifest

    def digest(self, tag: str) -> str | None:
        """Return the digest that a tag names now, or None; of the bytes themselves, whatever a header says."""
        found = self.find(tag)
        return found.digest if found else None

    def push(self, manifest: Manifest, name: str = "") -> bool:
        """Put a manifest under its digest, or under a tag; tell whether the registry lists it as a referrer itself."""
        asked = HttpRequest(
            "PUT",
            self.client.path(f"manifests/{name or manifest.digest}"),
            "pull,push",
            {"Content-Type": manifest.media_type},
            lambda: manifest.data,
        )
        response = self._put(asked)
        told = response.headers.get("Docker-Content-Digest", manifest.digest)
        if told != manifest.digest:
            raise RegistryError(f"{self.client.where}: the registry calls {manifest.digest} {told}")
        return "OCI-Subject" in response.headers

    def _put(self, asked: HttpRequest) -> requests.Response:
        """Put it, again where the registry finds fault with what is right: its digest was made of these very bytes.

        docker-registry 2.8 on a disk does so (DIGEST_INVALID) while somebody else puts the same.
        """
        for failures in range(1, RACES):
            try:
                return self.client.request(asked, (201,))
            except RefusedError as refused:
                if refused.status not in (400, 404):
                    raise
                self.client.pause(failures, RetryableRequest(str(refused)))
        return self.client.request(asked, (201,))

    def tags(self) -> tuple[str, ...]:
        """Return the repository's tags, sorted; none where there is no such repository."""
        return tuple(sorted(str(tag) for page in self._pages("tags/list?n=1000") for tag in page.get("tags") or ()))

    # --- referrers --------------------------------------------------------------------------------------------------

    def refer(self, manifest: Manifest) -> None:
        """Put a manifest that has a `subject`, and see that it is listed among what refers to that."""
        if self.push(manifest):
            return
        content = manifest.content
        entry = {**manifest.descriptor(), "artifactType": content.get("artifactType") or content["config"]["mediaType"]}
        entry |= {"annotations": content["annotations"]} if content.get("annotations") else {}
        tag = fallback_tag(content["subject"]["digest"])
        with exclusive(self._state / f"{tag}.lock"):
            for _ in range(TRIES):
                listed = self._listed(tag)
                if any(item.get("digest") == manifest.digest for item in listed):
                    return
                self.push(_index([*listed, entry]), tag)
        raise RegistryError(f"{self.client.where}:{tag}: others keep writing it", hint="run the same command again")

    def referrers(self, digest: str) -> tuple[dict[str, Any], ...]:
        """Return the descriptors of what refers to a digest: the API's, and those under the fallback tag."""
        found = {item["digest"]: item for page in self._pages(f"referrers/{digest}") for item in _items(page)}
        found |= {item["digest"]: item for item in self._listed(fallback_tag(digest))}
        return tuple(sorted(found.values(), key=lambda item: (str(item.get("artifactType")), item["digest"])))

    def _listed(self, tag: str) -> list[dict[str, Any]]:
        index = self.find(tag)
        return _items(index.content) if index and index.media_type == INDEX else []

    def _pages(self, rest: str) -> list[dict[str, Any]]:
        """Return the answers to a question that comes in pages; none where the registry does not know it."""
        pages: list[dict[str, Any]] = []
        url = self.client.path(rest)
        while url:
            response = self.client.request(
                HttpRequest("GET", url, headers={"Accept": f"{INDEX}, application/json"}), (200, 404)
            )
            if response.status_code != 200:  # noqa: PLR2004 - as asked for
                return pages
            with contextlib.suppress(ValueError):
                pages.append(response.json())
            following = response.links.get("next", {}).get("url", "")
            url = self.client.absolute(urljoin(url, following), url) if following else ""
        return pages


def fallback_tag(digest: str) -> str:
    """Return the tag that lists what refers to a digest, where a registry has no API for it."""
    return digest.replace(":", "-")


def _index(entries: list[dict[str, Any]]) -> Manifest:
    return made({"schemaVersion": 2, "mediaType": INDEX, "manifests": sorted(entries, key=lambda item: item["digest"])})


def _items(page: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = page.get("manifests")
    return [item for item in found if isinstance(item, dict) and "digest" in item] if isinstance(found, list) else []


def _readable(manifest: Manifest, where: str) -> None:
    try:
        value = json.loads(manifest.data)
    except ValueError as error:
        raise RegistryError(f"{where}: not a manifest: {error}") from error
    if not isinstance(value, dict):
        raise RegistryError(f"{where}: not a manifest but a {type(value).__name__}")
