"""Base images: their names at a registry's mirror, and the digests behind their tags. IO."""

from __future__ import annotations

import os
from collections.abc import Mapping

from drydock.config.mirrors import Mirrors, read_mirrors, rewrite_url
from drydock.config.validation import make_record
from drydock.core.console import log
from drydock.core.errors import InputError, RegistryError
from drydock.core.paths import cache_home
from drydock.inputs import indexes
from drydock.model.bases import ImageBase
from drydock.model.locked import LockedImageBase
from drydock.oci import strict
from drydock.oci.reference import Reference, parse_reference
from drydock.registry.manifests import Manifests
from drydock.registry.registry_client import Client

PATIENCE = 15.0
"""Seconds to wait for a registry; short, since one of many variants' registries may not answer."""
PAUSE = 0.05
"""Seconds before a registry is asked again; doubled each time."""


def at_mirror(reference: str, mirrors: Mirrors) -> str:
    """Return an image's reference at its registry's mirror; the same reference if there is no mirror."""
    where = parse_reference(reference)
    full = f"{where.host}/{where.repository}"
    mirrored = rewrite_url(full, {_normalize_hub(name): place for name, place in mirrors.registries.items()})
    if mirrored == full:
        return reference
    return f"{mirrored}{f':{where.tag}' if where.tag else ''}{f'@{where.digest}' if where.digest else ''}"


def resolve_image(base: ImageBase, env: Mapping[str, str] = os.environ) -> LockedImageBase:
    """Return the base with the digest that its registry or mirror gives.

    If neither answers, return the digest recorded in the matrix, marked as unverified, or none. An adopted base keeps
    the recorded digest, also after its tag has moved. Raises InputError if it names something else than an image, such
    as a Helm chart.
    """
    name = f"{base.reference}@{base.digest}" if base.adopted else base.reference
    where = at_mirror(name, read_mirrors(env))
    digest, server = (
        _ask_registry(where, env),
        "the registry" if where == name else "a mirror of the registry",
    )
    values = {
        "kind": "image",
        "reference": base.reference,
        "digest": digest or base.digest,
        "verified": digest is not None,
        "source": server if digest else base.source,
    }
    return make_record(LockedImageBase, where, values)


def open_manifests(where: Reference, env: Mapping[str, str]) -> Manifests:
    """Return the manifests of an image's repository, asked for without much patience."""
    access = indexes.make_index_access(indexes.read_indexes(env), env)
    patient = access._replace(timeout=min(access.timeout, PATIENCE), pause=PAUSE)
    return Manifests(Client(where._replace(tag="", digest=""), patient, env=env), cache_home(env) / "uploads")


def _ask_registry(reference: str, env: Mapping[str, str]) -> str | None:
    """Return the digest of a tag; None, after logging why, if its registry does not say."""
    where = parse_reference(reference)
    try:
        manifest = open_manifests(where, env).find(where.name)
    except RegistryError as error:
        log(f"{reference}: cannot look up the digest: {error}")
        return None
    if manifest is None:
        log(f"{reference}: cannot look up the digest: {where.host} has no such image")
        return None
    if problem := strict.not_image(manifest.content):
        raise InputError(f"{reference}: not an image, but {problem}", hint="`base` of a stack names an image")
    return manifest.digest


def _normalize_hub(name: str) -> str:
    return {"index.docker.io": "docker.io"}.get(name, name)
