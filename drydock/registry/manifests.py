"""Manifests, tags and referrers of one repository. IO.

Source: distribution-spec 1.1, "Pushing manifests", "Content discovery", "Listing referrers", and "Referrers tag
schema" for registries that have no referrers API.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import requests

from drydock.core.errors import CredentialsError, RegistryError
from drydock.core.files import hold_lock_file, parse_any_json
from drydock.core.http import TransientRequestError
from drydock.oci import strict
from drydock.oci.manifest import Manifest, to_manifest
from drydock.oci.reference import DIGEST
from drydock.registry.registry_client import Client, HttpRequest, RefusedError

MANIFEST, INDEX = strict.MANIFEST, strict.INDEX
EMPTY = "application/vnd.oci.empty.v1+json"
ACCEPTED = ", ".join((*strict.MANIFESTS, *strict.INDEXES))
LARGEST_LIST = 64 << 20
"""Bytes of all pages of a list."""
MOST_PAGES = 1000
"""Pages of a list; each has up to a thousand tags or referrers."""
STORED = (200, 201, 202, 204)
"""Answers to a manifest that was put. The specification names 201; docker accepts any success."""
PUT_ATTEMPTS = 4
"""Attempts to put a manifest before a refusal is final."""
REFERRER_ATTEMPTS = 6
"""Attempts to write a list of referrers while other clients change it."""
NO_REFERRERS_API = (*(status for status in range(400, 500) if status not in (401, 403, 407, 408, 425, 429)), 501)
"""Answers of registries without a referrers API. The specification names 404, Artifactory answers 406, others 400 or
what a proxy before them says. Not those that credentials or another attempt would change."""
NO_ARTIFACTS_HINT = (
    "signatures and documents need a registry that takes artifacts of OCI 1.1 (manifests with `subject`) and, if it"
    " lists no referrers, an index under the tag `sha256-…`"
)
IMMUTABLE_HINT = (
    "if all tags of this repository are immutable, exclude `sha256-*` there, under which registries without a referrers"
    " API list signatures and documents, and the channels, which move"
)


class Manifests:
    """The manifests and tags of one repository; `state` is a folder for the lock files of concurrent runs."""

    def __init__(self, client: Client, state: Path) -> None:
        self.client = client
        self._state = state / client.where.host.replace(":", "_") / client.where.repository

    def find(self, name: str) -> Manifest | None:
        """Return the manifest of a tag or digest, or None.

        Raises RegistryError if it does not match the digest, or if other clients could read it in another way.
        """
        received = self.receive(name)
        return None if received is None else self.read(received, name)

    def receive(self, name: str) -> Manifest | None:
        """Return the bytes of a tag or digest, unread, or None. Raises RegistryError for those of another digest."""
        request = HttpRequest("GET", self.client.path(f"manifests/{name}"), headers={"Accept": ACCEPTED})
        response = self.client.request(request, (200, 404))
        if response.status_code == requests.codes.not_found:
            return None
        self._refuse_page(response)
        manifest = Manifest(response.content, response.headers.get("Content-Type", "").partition(";")[0].strip())
        if name.startswith("sha256:") and manifest.digest != name:
            raise RegistryError(f"{self.client.where}: {name}: the registry sent {manifest.digest} instead")
        return manifest

    def _refuse_page(self, response: requests.Response) -> None:
        """Raise RegistryError for a page that people read: of a login, or of a proxy before the registry."""
        if response.headers.get("Content-Type", "").lower().startswith("text/html"):
            text = f"{self.client.where}: a web page came instead of an answer of a registry, perhaps to log in"
            hint = f"run `docker login {self.client.where.host}`; or this is not a registry's address, or needs a proxy"
            raise RegistryError(text, hint=hint)

    def read(self, received: Manifest, name: str) -> Manifest:
        """Return received bytes as a manifest. Raises RegistryError if other clients could read it in another way."""
        _, media_type = strict.read_strict_manifest(received.data, received.media_type, f"{self.client.where}: {name}")
        return received._replace(media_type=media_type)

    def delete(self, digest: str) -> None:
        """Delete a manifest, with the tags that name it. Raises RefusedError if the registry does not delete."""
        request = HttpRequest("DELETE", self.client.path(f"manifests/{digest}"), "delete,pull")
        self.client.request(request, (200, 202, 204, 404))

    def listed(self, entry: Mapping[str, Any]) -> Manifest:
        """Return the image that an entry of an index names. Raises RegistryError if it is missing, or not as listed."""
        manifest = self.find(entry["digest"])
        where = f"{self.client.where}: {entry['digest']}"
        if manifest is None:
            raise RegistryError(f"{where}: listed in the index, but the registry does not have it")
        if manifest.descriptor() != {name: entry[name] for name in manifest.descriptor()}:
            raise RegistryError(f"{where}: the index states another type or size than the image has")
        return manifest

    def digest(self, tag: str) -> str | None:
        """Return the digest that a tag names now, or None. It is computed from the bytes, not read from a header."""
        manifest = self.find(tag)
        return manifest.digest if manifest else None

    def push(self, manifest: Manifest, name: str = "") -> bool:
        """Put a manifest under its digest or a tag; return whether the registry itself lists it as a referrer."""
        request = HttpRequest(
            "PUT",
            self.client.path(f"manifests/{name or manifest.digest}"),
            "pull,push",
            {"Content-Type": manifest.media_type},
            lambda: manifest.data,
        )
        try:
            response = self._put(request)
        except (RefusedError, CredentialsError) as error:
            old = self.receive(name) if name else None
            if old and old.digest == manifest.digest:
                return False  # ECR refuses an immutable tag also if it names this manifest already
            if old:
                text = f"{self.client.where}:{name}: the registry does not let this tag move away from {old.digest}"
                raise RegistryError(text, *error.problems, hint=IMMUTABLE_HINT) from error
            raise
        reported = response.headers.get("Docker-Content-Digest", manifest.digest)
        if reported != manifest.digest:
            raise RegistryError(f"{self.client.where}: pushed {manifest.digest}, but the registry reports {reported}")
        return "OCI-Subject" in response.headers

    def _put(self, request: HttpRequest) -> requests.Response:
        """Put a manifest, and retry if the registry reports an error in it: the digest is computed from these bytes.

        docker-registry 2.8 on a disk answers DIGEST_INVALID while another client puts the same manifest.
        """
        for failures in range(1, PUT_ATTEMPTS):
            try:
                return self.client.request(request, STORED)
            except RefusedError as refused:
                if refused.status not in (400, 404):
                    raise
                self.client.pause(failures, TransientRequestError(str(refused)))
        return self.client.request(request, STORED)

    def tags(self) -> tuple[str, ...]:
        """Return the repository's tags, sorted; none if the repository does not exist."""
        lists = (page.get("tags") for page in self._pages("tags/list?n=1000"))
        return tuple(sorted(str(tag) for tags in lists if isinstance(tags, list) for tag in tags))

    # --- referrers --------------------------------------------------------------------------------------------------

    def refer(self, manifest: Manifest) -> None:
        """Put a manifest that has a `subject`, and ensure that the subject's referrers list it."""
        try:
            if not self.push(manifest):
                self._list_under_tag(manifest)
        except RefusedError as refused:
            raise RegistryError(*refused.problems, hint=refused.hint or NO_ARTIFACTS_HINT) from refused

    def _list_under_tag(self, manifest: Manifest) -> None:
        """Add a manifest to the list under its subject's fallback tag, unless it is there."""
        content = manifest.content
        entry = {**manifest.descriptor(), "artifactType": content.get("artifactType") or content["config"]["mediaType"]}
        if content.get("annotations"):
            entry["annotations"] = content["annotations"]
        subject = content["subject"]["digest"]
        tag = fallback_tag(subject)
        with hold_lock_file(self._state / f"{tag}.lock"):
            for _ in range(REFERRER_ATTEMPTS):
                listed = self._list_by_tag(subject)
                if any(item.get("digest") == manifest.digest for item in listed):
                    return
                self.push(_make_referrers_index([*listed, entry]), tag)
        raise RegistryError(
            f"{self.client.where}:{tag}: other clients keep changing this tag", hint="run the same command again"
        )

    def referrers(self, digest: str) -> tuple[dict[str, Any], ...]:
        """Return the descriptors of a digest's referrers, from the API and from the fallback tag."""
        pages = self._pages(f"referrers/{digest}", absent=NO_REFERRERS_API)
        referrers = {item["digest"]: item for page in pages for item in _list_index_entries(page)}
        referrers |= {item["digest"]: item for item in self._list_by_tag(digest)}
        return tuple(sorted(referrers.values(), key=lambda item: (str(item.get("artifactType")), item["digest"])))

    def _list_by_tag(self, subject: str) -> list[dict[str, Any]]:
        """Return what the fallback tag of a digest lists; nothing if the tag names no list.

        GitLab answers the subject itself: it reads `sha256-HEX` as `sha256:HEX`.
        """
        tag = fallback_tag(subject)
        received = self.receive(tag)
        if received is None or received.digest == subject or not strict.is_index(received.data, received.media_type):
            return []
        return _list_index_entries(self.read(received, tag).content)

    def _pages(self, rest: str, absent: tuple[int, ...] = (404,)) -> list[dict[str, Any]]:
        """Return all pages of a list; none if the registry answers that it does not have it, by a status in `absent`.

        Raises RegistryError for endless lists.
        """
        pages: list[dict[str, Any]] = []
        url, size, end = self.client.path(rest), 0, time.monotonic() + self.client.access.patience
        for _ in range(MOST_PAGES):
            response = self.client.request(
                HttpRequest("GET", url, headers={"Accept": f"{INDEX}, application/json"}), (200, *absent)
            )
            if response.status_code in absent:
                return pages
            if absent != NO_REFERRERS_API:  # a registry without that API may answer with its own page
                self._refuse_page(response)
            with contextlib.suppress(ValueError):
                page = parse_any_json(response.content)
                pages += [page] if isinstance(page, dict) else []
            size += len(response.content)
            following = response.links.get("next", {}).get("url", "")
            if not following:
                return pages
            url = self.client.absolute(following, url)
            if size > LARGEST_LIST or time.monotonic() > end:
                break
        raise RegistryError(f"{self.client.where}: the list {rest.partition('?')[0]} does not end")


def fallback_tag(digest: str) -> str:
    """Return the tag that lists the referrers of a digest in a registry without a referrers API."""
    return digest.replace(":", "-")


def _make_referrers_index(entries: list[dict[str, Any]]) -> Manifest:
    return to_manifest(
        {"schemaVersion": 2, "mediaType": INDEX, "manifests": sorted(entries, key=lambda item: item["digest"])}
    )


def _list_index_entries(page: Mapping[str, Any]) -> list[dict[str, Any]]:
    items = page.get("manifests")
    if not isinstance(items, list):
        return []
    return [item for item in items if isinstance(item, dict) and DIGEST.fullmatch(str(item.get("digest")))]
