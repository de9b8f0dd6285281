"""Checks the documents in a bundle that only the machine that built the image can make: lock and provenance.

`publish` makes every other document from the layers and this repository. Source: SLSA provenance v1, "Verifying
artifacts": expected subject, predicate type and external parameters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from drydock.attest import provenance
from drydock.core.errors import DrydockError, UntrustedError
from drydock.core.files import checksum, loads
from drydock.lock import lockfile
from drydock.model.locked import LockedPlatform
from drydock.model.record import dump

LOCK = "application/vnd.drydock.lock.v1+json"
PROVENANCE = "application/vnd.in-toto+json"
TYPES: Mapping[str, str] = {LOCK: "lock.json", PROVENANCE: "provenance.json"}
"""Artifact type → file name."""


class About(NamedTuple):
    """The image that the documents must be about."""

    variant: str
    platform: str
    digest: str
    inputs_sha256: str


def check(found: Mapping[str, bytes], about: About, pins: LockedPlatform | None = None) -> None:
    """Raise UntrustedError unless documents (artifact type → content) are about this image and these inputs.

    With `pins`, the lock among them must pin the same.
    """
    if not found:
        return
    where = f"{about.variant} ({about.platform}): attached documents"
    if found.keys() != TYPES.keys():
        raise UntrustedError(f"{where}: found {', '.join(sorted(found))}, expected {', '.join(sorted(TYPES))}")
    try:
        problems = (*_lock_problems(found[LOCK], about, pins), *_statement_problems(found, about))
    except (DrydockError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UntrustedError(f"{where}: unexpected content: {error}") from error
    if problems:
        raise UntrustedError(
            *(f"{where}: {problem}" for problem in problems), hint="get the bundle again from its maker"
        )


def _lock_problems(data: bytes, about: About, pins: LockedPlatform | None) -> tuple[str, ...]:
    lock = lockfile.parse_lock(data.decode(), "lock.json")
    if lock.variant != about.variant or about.platform not in lock.platforms:
        return (f"lock.json is for {lock.variant} ({', '.join(lock.platforms)})",)
    if pins and pins_sha256(lock.platforms[about.platform]) != pins_sha256(pins):
        return ("lock.json pins other inputs than this repository's lock",)
    return ()


def pins_sha256(pins: LockedPlatform) -> str:
    """Return the checksum of a lock's pins for a platform, without the recorded digest of the image."""
    return checksum(dump(pins.model_copy(update={"image": None})))


def _statement_problems(found: Mapping[str, bytes], about: About) -> tuple[str, ...]:
    statement = loads(found[PROVENANCE])
    definition = statement["predicate"]["buildDefinition"]
    locks = [
        item["digest"] for item in definition["resolvedDependencies"] if item.get("uri", "").endswith("/lock.json")
    ]
    expected = {
        "_type": (statement["_type"], provenance.STATEMENT),
        "predicateType": (statement["predicateType"], provenance.PREDICATE),
        "subject": ([item["digest"] for item in statement["subject"]], [{"sha256": about.digest[7:]}]),
        "buildType": (definition["buildType"], provenance.BUILD_TYPE),
        "inputsSha256": (definition["internalParameters"]["inputsSha256"], about.inputs_sha256),
        "variant": (definition["externalParameters"]["variant"], about.variant),
        "platform": (definition["externalParameters"]["platform"], about.platform),
        "lock": (locks, [{"sha256": hashlib.sha256(found[LOCK]).hexdigest()}]),
    }
    return tuple(
        f"provenance.json: {name} is {value!r}, expected {wanted!r}"
        for name, (value, wanted) in expected.items()
        if value != wanted
    )
