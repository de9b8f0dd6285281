"""Known vulnerabilities of everything that locks pin, less what statements settle. Reads locks; databases do the IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from drydock.attest import vex
from drydock.core.console import emit
from drydock.core.errors import AdvisoryError, NotAskedError
from drydock.core.files import dumps
from drydock.examine.advisories.record import (
    Advisories,
    Advisory,
    KnownVulnerability,
    NotChecked,
    PinnedPackage,
    line,
    text,
)
from drydock.examine.advisories.sources import Database, FileDatabase, LiveDatabase
from drydock.examine.advisories.subjects import not_covered, subjects
from drydock.lock import lockfile
from drydock.model.record import dump
from drydock.model.variant import Variant
from drydock.model.vex import VexFile, VexStatement


def audit(root: Path, variants: Sequence[Variant], databases: Sequence[str], *, json: bool) -> None:
    """Print the known vulnerabilities of locks. Raises AdvisoryError or NotAskedError."""
    database = FileDatabase([Path(name) for name in databases]) if databases else LiveDatabase()
    found = find(root, variants, database)
    emit(dumps(dump(found)) if json else text(found))
    raise_if_found(found)


def raise_if_found(found: Advisories) -> None:
    """Raise AdvisoryError if there are findings, else NotAskedError if something was not checked."""
    if found.findings:
        raise AdvisoryError(
            f"{len(found.findings)} known vulnerabilities",
            hint=f"lock again for fixed versions within the stack's bounds; state what does not apply in {vex.FILE}",
        )
    unchecked = len(found.not_asked) + len(found.not_covered)
    if unchecked:
        raise NotAskedError(
            f"no known vulnerability found, but {unchecked} inputs were not checked",
            hint="see above for each; `--database` takes the data as files",
        )


def find(root: Path, variants: Iterable[Variant], database: Database, file: VexFile | None = None) -> Advisories:
    """Look up what the locks of variants pin. Raises StaleError, and InputError for a damaged database."""
    pinned = read_pinned(root, variants)
    statements = (file or vex.read_statements(root)).statements
    answers = database.ask(tuple(pinned.subjects))
    known = [
        item
        for subject, answer in answers.items()
        for advisory in (() if isinstance(answer, str) else answer)
        for item in judged(subject, advisory, pinned.subjects[subject], statements)
    ]
    known.sort(key=line)
    return Advisories(
        findings=tuple(item for item in known if not item.settled),
        settled=tuple(item for item in known if item.settled),
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
    """What several locks pin."""

    subjects: Mapping[PinnedPackage, tuple[str, ...]]
    """PinnedPackage version → the variants that pin it."""
    not_covered: tuple[NotChecked, ...]


def read_pinned(root: Path, variants: Iterable[Variant]) -> PinnedPackages:
    """Read the locks of variants. Raises StaleError."""
    packages: dict[PinnedPackage, dict[str, None]] = {}
    rest: dict[tuple[str, str], dict[str, None]] = {}
    for variant in variants:
        lock = lockfile.read_lock(lockfile.path_of(root, variant.id))
        for pins in lock.platforms.values():
            for subject in subjects(variant, pins):
                packages.setdefault(subject, {})[variant.id] = None
            for item in not_covered(pins):
                rest.setdefault(item, {})[variant.id] = None
    return PinnedPackages(
        {subject: tuple(ids) for subject, ids in packages.items()},
        tuple(NotChecked(what=what, why=why, variants=tuple(ids)) for (what, why), ids in rest.items()),
    )


def judged(
    subject: PinnedPackage, advisory: Advisory, variants: Sequence[str], statements: Sequence[VexStatement]
) -> list[KnownVulnerability]:
    """Return a vulnerability once for each statement about it, with the variants that the statement is about. Pure."""
    reasons: dict[tuple[bool, str], list[str]] = {}
    for variant in variants:
        reasons.setdefault(_reason(subject, advisory, variant, statements), []).append(variant)
    return [
        KnownVulnerability(
            kind=subject.kind,
            package=subject.name,
            version=subject.version,
            suite=subject.suite,
            advisory=advisory,
            variants=tuple(ids),
            settled=settled,
            because=why,
        )
        for (settled, why), ids in reasons.items()
    ]


def _reason(
    subject: PinnedPackage, advisory: Advisory, variant: str, statements: Sequence[VexStatement]
) -> tuple[bool, str]:
    """Return whether something settles a vulnerability in a variant, and the newest statement about it."""
    about = [
        statement
        for statement in statements
        if statement.vulnerability in (advisory.id, *advisory.aliases)
        and vex.applies(statement, variant, subject.purl, subject.version)
    ]
    if about:
        newest = max(about, key=lambda statement: statement.date)
        return newest.settles, vex.because(newest)
    return bool(advisory.because), advisory.because
