"""Base images: their names at a registry's mirror, and the digests behind their tags. IO."""

from __future__ import annotations

import json
import subprocess

from drydock.config.mirrors import Mirrors, read_mirrors, rewritten
from drydock.config.validation import made
from drydock.core.console import log
from drydock.model.bases import ImageBase
from drydock.model.locked import LockedImageBase
from drydock.oci.reference import parse

REGISTRY_TIMEOUT = 30
"""Seconds."""


def at_mirror(reference: str, mirrors: Mirrors) -> str:
    """Return an image's reference at its registry's mirror; the same reference if there is no mirror."""
    where = parse(reference)
    full = f"{where.host}/{where.repository}"
    found = rewritten(full, {_hub(name): place for name, place in mirrors.registries.items()})
    if found == full:
        return reference
    return f"{found}{f':{where.tag}' if where.tag else ''}{f'@{where.digest}' if where.digest else ''}"


def resolve_image(base: ImageBase) -> LockedImageBase:
    """Return the base with the digest that its registry or mirror gives.

    If neither answers, return the digest recorded in the matrix, marked as unverified, or none.
    """
    where = at_mirror(base.reference, read_mirrors())
    digest, asked = _ask_registry(where), "the registry" if where == base.reference else "a mirror of the registry"
    values = {
        "kind": "image",
        "reference": base.reference,
        "digest": digest or base.digest,
        "verified": digest is not None,
        "source": asked if digest else base.source,
    }
    return made(LockedImageBase, where, values)


def _ask_registry(reference: str) -> str | None:
    """Return the digest of a tag; None if its registry cannot be reached."""
    command = ["docker", "buildx", "imagetools", "inspect", "--format", "{{json .Manifest}}", reference]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=REGISTRY_TIMEOUT)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        log(f"{reference}: cannot look up the digest: {error}")
        return None
    if result.returncode:
        log(f"{reference}: cannot look up the digest: {result.stderr.strip().splitlines()[-1]}")
        return None
    return str(json.loads(result.stdout)["digest"])


def _hub(name: str) -> str:
    return {"index.docker.io": "docker.io"}.get(name, name)
