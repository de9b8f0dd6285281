"""The formats of three databases: OSV records, an index's JSON API, Debian's security tracker. Pure.

Each comes from outside: what is used is validated, the rest is ignored, and a version that cannot be compared is an
error, never "not affected".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import orjson
from debian.debian_support import Version as DebianVersion
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from drydock.core.errors import InputError
from drydock.examine.advisories.record import Advisory, PinnedPackage, shown
from drydock.model.vex import VersionText, VulnerabilityId

R = TypeVar("R", bound=BaseModel)
ECOSYSTEM = "PyPI"
RANGE = "ECOSYSTEM"
"""The kind of range that is in the ecosystem's own versions; others are in commits."""
START = "0"
"""In a range, before every version (https://ossf.github.io/osv-schema/)."""
UNIMPORTANT = "unimportant"
RESOLVED = "resolved"
LONG, SHORT = 1_000_000, 200
"""Characters that a text and a version may have."""
Text = Annotated[str, StringConstraints(max_length=LONG)]
Short = Annotated[str, StringConstraints(max_length=SHORT)]


class Outside(BaseModel):
    """Immutable; fields that drydock does not use are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class OsvPackage(Outside):
    """A package of an ecosystem."""

    ecosystem: Text
    name: Text


class OsvRange(Outside):
    """Where a vulnerability begins and ends: each event is {introduced, fixed or last_affected: version}."""

    type: Text
    events: list[Mapping[str, Short]]


class OsvAffected(Outside):
    """The affected versions of a package: those listed, and those within a range."""

    package: OsvPackage | None = None
    ranges: list[OsvRange] = []
    versions: list[Short] = []


class OsvRecord(Outside):
    """One vulnerability, https://ossf.github.io/osv-schema/."""

    id: VulnerabilityId
    aliases: list[VulnerabilityId] = []
    summary: Text = ""
    modified: Text = ""
    withdrawn: Text | None = None
    affected: list[OsvAffected] = []


class IndexVulnerability(Outside):
    """One entry of `vulnerabilities` of the JSON API of package indexes."""

    id: VulnerabilityId
    aliases: list[VulnerabilityId] = []
    summary: Text | None = None
    fixed_in: list[VersionText] = []
    withdrawn: Text | None = None


class IndexAnswer(Outside):
    """An index's answer about one version."""

    vulnerabilities: list[IndexVulnerability]


class TrackerRelease(Outside):
    """The state of a vulnerability in one suite."""

    status: Text
    fixed_version: VersionText | None = None
    urgency: Text = ""
    repositories: Mapping[str, VersionText] = {}


class TrackerEntry(Outside):
    """One vulnerability of a source package, https://security-tracker.debian.org/tracker/data/json."""

    description: Text = ""
    releases: Mapping[str, TrackerRelease] = {}


def parse(record: type[R], data: Any, name: str) -> R:
    """Return a record of plain data. Raises InputError, which names the first field that is not as expected."""
    try:
        return record.model_validate(data)
    except (ValidationError, RecursionError) as error:
        where, said = _first(error) if isinstance(error, ValidationError) else ("", "nested too deep")
        raise InputError(f"{shown(name)}: {shown(where)}: {shown(said)}") from None


def _first(error: ValidationError) -> tuple[str, str]:
    """Return the key path and the message of the first problem."""
    first = error.errors(include_url=False)[0]
    return ".".join(map(str, first["loc"])), first["msg"]


def load(data: bytes, name: str) -> Any:
    """Return JSON as plain data; its depth is bounded by orjson (1,024). Raises InputError."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InputError(f"{shown(name)}: not JSON: {error}") from None


# --- OSV ------------------------------------------------------------------------------------------------------------


def names(record: OsvRecord) -> Iterator[str]:
    """Yield the Python distributions that a record is about."""
    for item in record.affected:
        if item.package and item.package.ecosystem == ECOSYSTEM:
            yield canonicalize_name(item.package.name)


def of_osv(record: OsvRecord, subject: PinnedPackage) -> Advisory | None:
    """Return the advisory if a version is affected. Raises InputError for a version that cannot be compared."""
    version = public(subject.version, record.id)
    affected = [
        item
        for item in record.affected
        if item.package and item.package.ecosystem == ECOSYSTEM and canonicalize_name(item.package.name) == subject.name
    ]
    if record.withdrawn or not any(_affects(item, version, record.id) for item in affected):
        return None
    events = [event for item in affected for kind in item.ranges if kind.type == RANGE for event in kind.events]
    fixed = {public(event["fixed"], record.id) for event in events if "fixed" in event}
    return Advisory(
        id=record.id,
        aliases=tuple(record.aliases),
        fixed_in=tuple(str(item) for item in sorted(fixed) if item > version),
        summary=shown(record.summary),
    )


def public(text: str, name: str) -> Version:
    """Return a version without its local part: 2.13.0+cpu is a build of 2.13.0. Raises InputError."""
    try:
        return Version(Version(text).public)
    except ValueError:  # InvalidVersion is one, and so is a number of more than 4,300 digits
        raise InputError(f"{name}: cannot compare version {shown(text)!r}") from None


def _affects(item: OsvAffected, version: Version, name: str) -> bool:
    listed = any(text == str(version) or _same(text, version) for text in item.versions)
    return listed or any(_within(kind.events, version, name) for kind in item.ranges if kind.type == RANGE)


def _same(text: str, version: Version) -> bool:
    """Return whether a listed version is this one; a list may contain versions that are older than their rules."""
    try:
        return Version(text) == version
    except ValueError:
        return False


def _within(events: Sequence[Mapping[str, str]], version: Version, name: str) -> bool:
    """Return whether a range contains a version, by the schema's own algorithm."""
    found = False
    ordered = [(_at(text, name), kind) for event in events for kind, text in event.items()]
    for at, kind in sorted(ordered, key=lambda pair: (pair[0] is not None, pair[0] or version)):
        if kind == "introduced" and (at is None or version >= at):
            found = True
        elif at is not None and ((kind == "fixed" and version >= at) or (kind == "last_affected" and version > at)):
            found = False
    return found


def _at(text: str, name: str) -> Version | None:
    return None if text == START else public(text, name)


# --- index ----------------------------------------------------------------------------------------------------------


def of_index(answer: IndexAnswer) -> tuple[Advisory, ...]:
    """Return the advisories of an index's answer about one version."""
    return tuple(
        Advisory(
            id=item.id, aliases=tuple(item.aliases), fixed_in=tuple(item.fixed_in), summary=shown(item.summary or "")
        )
        for item in answer.vulnerabilities
        if not item.withdrawn
    )


# --- Debian ---------------------------------------------------------------------------------------------------------


def of_tracker(entries: Mapping[str, Any], subject: PinnedPackage) -> tuple[Advisory, ...]:
    """Return the advisories of a source package's entries. Raises InputError, also for a version from elsewhere."""
    found = []
    for name, data in entries.items():
        entry = parse(TrackerEntry, data, f"{subject.name}: {name}")
        release = entry.releases.get(subject.suite)
        if release and _open(release, subject):
            found.append(_debian_advisory(name, entry, release))
    return tuple(found)


def _open(release: TrackerRelease, subject: PinnedPackage) -> bool:
    version, known = debian(subject.version, subject.name), _versions(release, subject)
    if known and version > max(known):
        raise InputError(
            f"{subject.name}: {subject.version} is newer than {max(known)}, the newest source in {subject.suite}: "
            "the package has a version of its own, or the database is old"
        )
    if release.status == RESOLVED:
        return bool(release.fixed_version) and version < debian(release.fixed_version or START, subject.name)
    return True


def _debian_advisory(name: str, entry: TrackerEntry, release: TrackerRelease) -> Advisory:
    fixed = (release.fixed_version,) if release.status == RESOLVED and release.fixed_version else ()
    because = "Debian's security team rates it unimportant" if release.urgency == UNIMPORTANT else ""
    return Advisory(id=shown(name), fixed_in=fixed, summary=shown(entry.description), because=because)


def debian(text: str, name: str) -> Any:
    """Return a Debian version, which compares as dpkg does. Raises InputError."""
    try:
        return DebianVersion(text)
    except ValueError:
        raise InputError(f"{name}: cannot compare version {shown(text)!r}") from None


def _versions(release: TrackerRelease, subject: PinnedPackage) -> list[Any]:
    return [debian(text, subject.name) for text in release.repositories.values()]
