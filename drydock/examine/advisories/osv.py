"""OSV records, the one format of the service and of its files (https://ossf.github.io/osv-schema/). Pure.

They come from outside: what is used is validated, the rest is ignored, and a version that cannot be compared is an
error, never "not affected".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from debian.debian_support import Version as DebianVersion
from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import Version
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from drydock.core.errors import InputError
from drydock.examine.advisories.advisory_record import PYPI, Advisory, PinnedPackage, clean_outside_text

R = TypeVar("R", bound=BaseModel)
UNIMPORTANT = "unimportant"
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9]*-[A-Za-z0-9._:-]{1,80}$")]
"""CVE-2026-1234, GHSA-aaaa-bbbb-cccc, PYSEC-2026-7, DEBIAN-CVE-2026-1234."""
VersionText = Annotated[str, StringConstraints(max_length=200)]


class Outside(BaseModel):
    """Immutable; fields that drydock does not use are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class OsvPackage(Outside):
    """A package of an ecosystem: PyPI, Debian:12."""

    ecosystem: str
    name: str


class OsvRange(Outside):
    """Where a vulnerability begins and ends: each event is {introduced, fixed or last_affected: version}."""

    type: str
    events: list[Mapping[str, VersionText]]


class OsvAffected(Outside):
    """The affected versions of a package: those listed, and those within a range."""

    package: OsvPackage | None = None
    ranges: list[OsvRange] = []
    versions: list[VersionText] = []
    ecosystem_specific: Mapping[str, Any] | None = None
    """For Debian, with the urgency that its security team gives."""


class OsvRecord(Outside):
    """One vulnerability."""

    id: Identifier
    aliases: list[Identifier] = []
    upstream: list[Identifier] = []
    summary: str = ""
    details: str = ""
    modified: str = ""
    withdrawn: str | None = None
    affected: list[OsvAffected] = []


class OsvAnswer(BaseModel):
    """What the service answers about one version; without `vulns`, nothing is known (post-v1-query in its manual)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)  # JSON of another service is no answer
    vulns: list[OsvRecord] = []
    next_page_token: str = ""


def parse_osv(record: type[R], data: bytes, name: str) -> R:
    """Return a record from JSON. Raises InputError, which names the first field that is not as expected."""
    try:
        return record.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = clean_outside_text(".".join(map(str, first["loc"])))
        message = clean_outside_text(first["msg"])
        raise InputError(f"{clean_outside_text(name)}: {f'{where}: ' if where else ''}{message}") from None


def make_advisory(record: OsvRecord, package: PinnedPackage) -> Advisory:
    """Return what a record says about a package. Raises InputError for a version that cannot be compared."""
    affected, version = _select_affected(record, package), parse_comparable(package, package.version, record.id)
    events = [event for item in affected for version_range in _list_ranges(item) for event in version_range.events]
    fixed = {parse_comparable(package, event["fixed"], record.id) for event in events if "fixed" in event}
    urgencies = {(item.ecosystem_specific or {}).get("urgency") for item in affected}
    return Advisory(
        id=record.id,
        aliases=(*record.aliases, *record.upstream),
        fixed_in=tuple(str(item) for item in sorted(fixed) if item > version),
        summary=clean_outside_text(record.summary or record.details),
        because="Debian's security team rates it unimportant" if urgencies == {UNIMPORTANT} else "",
    )


def is_affected(record: OsvRecord, package: PinnedPackage) -> bool:
    """Return whether a record is about a package's version. Raises InputError for one that cannot be compared."""
    return not record.withdrawn and any(
        _lists_version(item, package)
        or any(_is_in_range(version_range, package, record.id) for version_range in _list_ranges(item))
        for item in _select_affected(record, package)
    )


def make_package_key(package: OsvPackage) -> tuple[str, str]:
    """Return a package's ecosystem, and its name as a lock writes it."""
    name = canonicalize_name(package.name) if package.ecosystem == PYPI else package.name
    return package.ecosystem, name


def parse_comparable(package: PinnedPackage, text: str, name: str) -> Any:
    """Return a version that compares as pip or dpkg does, without its local part: 2.13.0+cpu is a build of 2.13.0.

    Raises InputError.
    """
    try:
        return Version(Version(text).public) if package.ecosystem == PYPI else DebianVersion(text)
    except ValueError:  # InvalidVersion is one, and so is a number of more than 4,300 digits
        raise InputError(f"{name}: cannot compare version {clean_outside_text(text)!r}") from None


def _select_affected(record: OsvRecord, package: PinnedPackage) -> list[OsvAffected]:
    return [item for item in record.affected if item.package and make_package_key(item.package) == package.key]


def _list_ranges(item: OsvAffected) -> list[OsvRange]:
    return [
        version_range for version_range in item.ranges if version_range.type == "ECOSYSTEM"
    ]  # others are in commits


def _lists_version(item: OsvAffected, package: PinnedPackage) -> bool:
    if package.ecosystem != PYPI:
        return package.version in item.versions
    version = canonicalize_version(parse_comparable(package, package.version, package.name))
    return any(canonicalize_version(text) == version for text in item.versions)


def _is_in_range(version_range: OsvRange, package: PinnedPackage, name: str) -> bool:
    """Return whether the last event up to a version introduces the vulnerability; "0" is before every version."""
    version = parse_comparable(package, package.version, name)
    events = [
        (parse_comparable(package, text, name), kind, text)
        for event in version_range.events
        for kind, text in event.items()
    ]
    passed = [
        (at, kind == "introduced")
        for at, kind, text in events
        if at < version or text == "0" or (at == version and kind != "last_affected")
    ]
    return bool(passed) and max(passed)[1]
