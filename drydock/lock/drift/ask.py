"""Looks up the newest versions: pip's indexes through uv, Debian's mirrors through apt, registries, git hosts. IO.

Only lists are downloaded. Answers and failures are remembered, so each is requested once for all variants.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name

from drydock.config.mirrors import read_mirrors
from drydock.core.errors import DrydockError, GoneError, InputError
from drydock.core.paths import cache_home
from drydock.inputs import debs, indexes, sources, wheels
from drydock.inputs.image_digests import at_mirror, open_manifests
from drydock.inputs.indexes import Indexes
from drydock.inputs.uv import Candidate, Environment, ResolveRequest
from drydock.model.locked import LockedDeb
from drydock.model.variant import SourceCode
from drydock.oci.manifest import Manifest
from drydock.oci.reference import Reference, parse_reference
from drydock.registry.blobs import Blobs
from drydock.registry.manifests import Manifests
from drydock.registry.platform_images import PlatformImages

ABSENT = re.compile(
    r"[Bb]ecause (?:all versions of |only \S+ is available and )?([\w.-]{1,200})\S{0,200} (?:was not found|has no )"
)
"""How uv names a distribution that no index has, or for which no wheel fits."""

T = TypeVar("T")


class Offer(NamedTuple):
    """A distribution as an index has it today."""

    version: str
    sha256: str
    origin: str


class Tag(NamedTuple):
    """What a registry's tag names today."""

    digest: str
    layers: tuple[str, ...]
    """Digests of the layers of one platform, the lowest first."""


class Upstream(Protocol):
    """Where the newest versions come from. Raises DrydockError if there is no answer, GoneError if nothing exists."""

    def allowed(self, request: ResolveRequest, target: Environment) -> Mapping[str, Offer]:
        """Return what requirements mean today, by name."""

    def newest(self, names: tuple[str, ...], target: Environment, *, sdist: bool = False) -> Mapping[str, Offer]:
        """Return the newest of each distribution that an index has, without regard to what else requires."""

    def debs(self, suite: str, packages: tuple[str, ...], platform: str) -> tuple[LockedDeb, ...]:
        """Return a suite's packages today, with what they depend on."""

    def tag(self, reference: str, platform: str) -> Tag:
        """Return what a reference names today."""

    def commit(self, source: SourceCode) -> str:
        """Return the commit of a tag or branch."""


class LiveUpstream:
    """Upstream sources as this machine's configuration reaches them."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self._env = env
        self._known: dict[Any, Any] = {}

    def allowed(self, request: ResolveRequest, target: Environment) -> Mapping[str, Offer]:
        """Return what requirements mean today, by name. Raises InputError."""
        return self._once((request, target), lambda: self._offers(request, target))

    def newest(self, names: tuple[str, ...], target: Environment, *, sdist: bool = False) -> Mapping[str, Offer]:
        """Return the newest of each distribution, without those that no index has. Raises InputError."""
        return self._once((names, target, sdist), lambda: self._newest(names, target, sdist=sdist))

    def debs(self, suite: str, packages: tuple[str, ...], platform: str) -> tuple[LockedDeb, ...]:
        """Return a suite's packages today. Raises InputError or FetchError."""
        key = (suite, packages, platform)
        return self._once(key, lambda: debs.resolve_packages(suite, packages, platform, self._env))

    def tag(self, reference: str, platform: str) -> Tag:
        """Return what a reference names today.

        Raises RegistryError, at once for a host that did not answer before; GoneError if the image does not exist.
        """
        where = parse_reference(at_mirror(reference, read_mirrors(self._env)))
        self._once(("host", where.host), lambda: self._reach(where))
        return self._once((reference, platform), lambda: self._tag(where, platform))

    def commit(self, source: SourceCode) -> str:
        """Return the commit of a tag or branch. Raises FetchError; GoneError if the ref does not exist."""
        return self._once((source.repository, source.ref), lambda: self._commit(source))

    def _once(self, key: Any, ask: Callable[[], T]) -> T:
        """Return the remembered answer, or ask; raise the remembered failure again."""
        if key not in self._known:
            try:
                self._known[key] = ask()
            except DrydockError as error:
                self._known[key] = error
        answer: T | DrydockError = self._known[key]
        if isinstance(answer, DrydockError):
            raise answer
        return answer

    # --- indexes ----------------------------------------------------------------------------------------------------

    def _offers(self, request: ResolveRequest, target: Environment) -> dict[str, Offer]:
        configured = indexes.read_indexes(self._env)
        candidates = wheels.list_offered_wheels(request, target, self._env)
        return {item.name: Offer(item.version, item.sha256, find_origin_index(item, configured)) for item in candidates}

    def _newest(self, names: tuple[str, ...], target: Environment, *, sdist: bool) -> dict[str, Offer]:
        remaining = names
        while remaining:
            try:
                return self._offers(ResolveRequest(remaining, no_deps=True, sdist=sdist), target)
            except InputError as error:
                fewer = tuple(
                    name for name in remaining if canonicalize_name(name) not in find_absent_names(str(error))
                )
                if fewer == remaining:
                    raise
                remaining = fewer
        return {}

    def _commit(self, source: SourceCode) -> str:
        try:
            return sources.find_ref_commit(source, self._env)
        except InputError as error:
            raise GoneError(*error.problems, hint=error.hint) from error

    # --- registries -------------------------------------------------------------------------------------------------

    def _reach(self, where: Reference) -> bool:
        """Ask a host once, so that many images of an unreachable registry cost one wait."""
        open_manifests(where, self._env).find(where.name)
        return True

    def _tag(self, where: Reference, platform: str) -> Tag:
        repository = open_manifests(where, self._env)
        manifest = repository.find(where.name)
        if manifest is None:
            raise GoneError(f"{where}: the registry has no such image")
        image = manifest if not manifest.is_index else self._of(platform, manifest, repository)
        return Tag(manifest.digest, tuple(layer["digest"] for layer in image.content["layers"]) if image else ())

    def _of(self, platform: str, index: Manifest, repository: Manifests) -> Manifest | None:
        blobs = Blobs(repository.client, cache_home(self._env) / "uploads")
        return PlatformImages(repository, blobs, index, only=platform).images.get(platform)


def find_absent_names(uv_message: str) -> set[str]:
    """Return the distributions for which, as uv reports, no index has a matching file. Pure."""
    return {canonicalize_name(name) for name in ABSENT.findall(" ".join(uv_message.split()))}


def find_origin_index(candidate: Candidate, configured: Indexes) -> str:
    """Return which of pip's indexes a file comes from, without its host: the one with the most similar address."""
    labelled_urls = [(f"find-links {number}", url) for number, url in enumerate(configured.find_links, 1)]
    labelled_urls += [(f"extra index {number}", url) for number, url in enumerate(configured.extra, 1)]
    best = max(((_count_common_parts(url, candidate.url), name) for name, url in labelled_urls), default=(0, ""))
    return best[1] if best[0] > _count_common_parts(configured.main or "", candidate.url) else "main index"


def _count_common_parts(index: str, url: str) -> int:
    """Return the number of parts that two addresses begin with in common: 0 for different hosts."""
    count = 0
    for mine, theirs in zip(_split_url_parts(index), _split_url_parts(url), strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def _split_url_parts(url: str) -> tuple[str, ...]:
    parts = urlsplit(url if "://" in url else f"file://{url}")
    return (
        (f"{parts.scheme}://{parts.hostname or ''}", *(part for part in parts.path.split("/") if part)) if url else ()
    )
