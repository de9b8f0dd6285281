"""What was shown of a variant's image, in images/<variant>/record.json next to its lock: digests and evidence. IO.

The lock pins what goes in; the record says what came out. `verify --record`, `prove` and `test --record` write it.
drydock's own is committed by `release` alone, so that no other change has to rebuild an image; whoever runs `verify` in
a project of their own commits theirs. A record of other inputs than today's is old, and never wrong.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from packaging.version import Version
from pydantic import Field

from drydock.core.commit import read_commit
from drydock.core.errors import StaleError
from drydock.core.files import format_json, parse_any_json
from drydock.core.project import Project
from drydock.lock import lockfile
from drydock.lock.proof import Evidence, Proof, leave_out_tested_tiers, tested_digest
from drydock.model.names import OneLine
from drydock.model.record import Digest, Identifier, Platform, Record, Sha256, dump_record

FILE = "record.json"
RECORDS = (f"images/*/{FILE}", "tests/record.json")
"""Pathspecs of git: what a release records. A checkout in which only these differ has the files of its commit."""
_EARLIER_PROOF, _LOCK = "proof.json", "lock.json"
"""Until drydock 0.2.0, proof.json had the evidence, and the lock the digest."""


T = TypeVar("T")


class VerifiedFoundation(Record):
    """The image without the entrypoint, on which a build stands; two builds agreed on it too."""

    digest: Digest
    key: Sha256
    """Checksum of all inputs of the foundation. Other inputs give another digest."""


class VerifiedImage(Record):
    """The digest on which two builds agreed, and the tools that made it."""

    digest: Digest
    inputs_sha256: Sha256
    """Checksum of all inputs: lock, Dockerfile, profile, entrypoint. Other inputs give another digest."""
    buildkit: OneLine
    buildx: OneLine
    foundation: VerifiedFoundation | None = None
    commit: str = ""
    """Of the checkout that was built, with a + if its files differed from that commit; empty if unknown."""
    date: str = ""
    """Day of the second build, UTC: 2026-11-21; empty if unknown."""


class PlatformRecord(Proof):
    """What was shown of a variant's image for one platform."""

    verified: VerifiedImage | None = None
    """Null until `verify --record` has built the image twice."""
    releases: Mapping[OneLine, Digest] = {}
    """Version of drydock → the digest of its release. An image does not name it, since each would move its digest."""

    def find_verified_digest(self, inputs_sha256: str) -> str | None:
        """Return the digest on which two builds from these inputs agreed; None if they were not built twice."""
        is_same = self.verified is not None and self.verified.inputs_sha256 == inputs_sha256
        return self.verified.digest if self.verified and is_same else None

    def find_digest(self, inputs_sha256: str) -> str | None:
        """Return the digest of these inputs that two builds agreed on, or else that was tested; None without one."""
        return self.find_verified_digest(inputs_sha256) or tested_digest(self, inputs_sha256) or None

    def find_foundation(self, key: str) -> str | None:
        """Return the digest of the foundation with this key on which two builds agreed; None without one."""
        foundation = self.verified.foundation if self.verified else None
        return foundation.digest if foundation and foundation.key == key else None


class ImageRecord(Record):
    """images/<variant>/record.json: what was shown of one variant, per platform."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    platforms: Mapping[Platform, PlatformRecord] = {}


def name_of_record(variant: Identifier) -> str:
    """Return the name of a variant's record in a project."""
    return f"images/{variant}/{FILE}"


def read_record(project: Project, variant: str) -> ImageRecord:
    """Return what was shown of a variant, as the highest layer that says anything has it.

    Raises StaleError for an invalid record.
    """
    for layer in project.layers:
        folder = layer / "images" / variant
        if (folder / FILE).is_file():
            return _read_file(folder / FILE, ImageRecord.model_validate)
        if earlier := _read_earlier_files(folder):
            return earlier
    return ImageRecord()


def read_releases(project: Project) -> dict[str, tuple[str, ...]]:
    """Return digest → the releases of drydock that have it, the oldest first, of all rows and platforms.

    Raises StaleError for an invalid record.
    """
    rows = {path.parent.name for path in project.glob(f"images/*/{FILE}")}
    versions_by_digest: dict[str, set[str]] = {}
    for platform in (platform for row in rows for platform in read_record(project, row).platforms.values()):
        for version, digest in platform.releases.items():
            versions_by_digest.setdefault(digest, set()).add(version)
    return {digest: tuple(sorted(versions, key=Version)) for digest, versions in versions_by_digest.items()}


def name_releases(versions: Sequence[str]) -> str:
    """Return which releases an image is of, in words; empty for none."""
    return f"drydock {', '.join(versions)}" if versions else ""


def add_release(record: ImageRecord, version: str) -> ImageRecord:
    """Return a record that says of each verified digest that a release has it. Pure."""
    platforms = {
        name: platform.model_copy(update={"releases": {**platform.releases, version: platform.verified.digest}})
        if platform.verified
        else platform
        for name, platform in record.platforms.items()
    }
    return ImageRecord(platforms=platforms)


def read_platform_record(project: Project, variant: str, platform: str) -> PlatformRecord:
    """Return what was shown of a variant for a platform. Raises StaleError for an invalid record."""
    return read_record(project, variant).platforms.get(platform, PlatformRecord())


def write_platform_record(project: Project, variant: str, platform: str, record: PlatformRecord) -> Path | None:
    """Write what was shown of a variant for a platform; return the file if it changed.

    Raises InputError for an installed drydock, StaleError for an invalid record.
    """
    before = read_record(project, variant)
    return write_record(project, variant, ImageRecord(platforms={**before.platforms, platform: record}))


def write_record(project: Project, variant: str, record: ImageRecord) -> Path | None:
    """Write what was shown of a variant; return the file if it changed. Raises InputError for an installed drydock."""
    return project.write(name_of_record(variant), format_json(dump_record(record)))


def make_evidence(project: Project, digest: str, inputs_sha256: str, tests: Iterable[str]) -> Evidence:
    """Return evidence of today and of the commit of this checkout. Raises GitFailedError."""
    return Evidence(**stamp_today(project), digest=digest, inputs_sha256=inputs_sha256, tests=tuple(sorted(tests)))


def stamp_today(project: Project) -> dict[str, str]:
    """Return the day, UTC, and the commit of the project's files, of which records are none. Raises GitFailedError."""
    return {
        "commit": read_commit(project.root, ignored=RECORDS),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }


def find_earlier_files(project: Project, variant: str) -> ImageRecord | None:
    """Return what the project's own files of an earlier drydock have that is not in a record yet. Raises StaleError."""
    folder = project.root / "images" / variant
    return None if (folder / FILE).is_file() else _read_earlier_files(folder)


def move_earlier_files(project: Project, variant: str) -> list[Path]:
    """Move what an earlier drydock wrote into the project's proof.json and lock to a record; return what changed.

    Raises StaleError for an invalid file.
    """
    proof, lock = (project.root / "images" / variant / name for name in (_EARLIER_PROOF, _LOCK))
    earlier = find_earlier_files(project, variant)
    changed_paths = [write_record(project, variant, earlier)] if earlier else []
    if proof.is_file():
        proof.unlink()
        changed_paths.append(proof)
    if lock.is_file() and lockfile.write_lock(lock, lockfile.read_lock(lock)):
        changed_paths.append(lock)
    return [path for path in changed_paths if path]


def _read_earlier_files(folder: Path) -> ImageRecord | None:
    """Return what proof.json and the lock of an earlier drydock say; None if they say nothing.

    The evidence in proof.json names no platform: it counts for each whose inputs have its checksum.
    """
    proof, lock = folder / _EARLIER_PROOF, folder / _LOCK
    evidence = dump_record(leave_out_tested_tiers(_read_file(proof, Proof.model_validate))) if proof.is_file() else {}
    if not lock.is_file() or not (evidence or b'"image": {' in lock.read_bytes()):
        return None
    records = _read_file(
        lock,
        lambda content: {
            platform: PlatformRecord.model_validate({**evidence, "verified": pins.get("image")})
            for platform, pins in content["platforms"].items()
        },
    )
    shown = {platform: record for platform, record in records.items() if record != PlatformRecord()}
    return ImageRecord(platforms=shown) if shown else None


def _read_file(path: Path, parse: Callable[[Any], T]) -> T:
    """Return what a file holds. Raises StaleError."""
    try:
        return parse(parse_any_json(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise StaleError(
            f"{path}: invalid: {error}", hint=f"git checkout {path}, or remove it and run `./inv verify --record`"
        ) from error
