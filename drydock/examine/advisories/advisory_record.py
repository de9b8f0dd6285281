"""What is asked about, what the databases answer, and the result, as data and as text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from drydock.core.console import as_lines
from drydock.model.record import Record

PYPI = "PyPI"
LONGEST = 120
"""Characters of a summary that are shown."""


class PinnedPackage(NamedTuple):
    """A package to look up: a Python distribution, or a source package of a Debian release."""

    ecosystem: str
    """As OSV names it: PyPI, Debian:12."""
    name: str
    version: str

    def __str__(self) -> str:
        return " ".join(self)

    @property
    def key(self) -> tuple[str, str]:
        """Return what advisories are listed under."""
        return self.ecosystem, self.name


class Advisory(Record):
    """One vulnerability that a database lists for a version."""

    id: str
    aliases: tuple[str, ...] = ()
    fixed_in: tuple[str, ...] = ()
    """Versions without it, oldest first; empty if there is none."""
    summary: str = ""
    because: str = ""
    """Why it needs no action, by the user's or the database's own judgement; empty if it does."""


class KnownVulnerability(Record):
    """A vulnerability of a pinned package."""

    ecosystem: str
    """PyPI, Debian:12."""
    package: str
    version: str
    advisory: Advisory
    variants: tuple[str, ...]
    """Variants whose locks pin it; of an image in a registry, its platforms."""


class NotChecked(Record):
    """Something that was not compared with a database. It may have vulnerabilities."""

    what: str
    why: str
    variants: tuple[str, ...]


class Advisories(Record):
    """What `audit --advisories --json` prints."""

    findings: tuple[KnownVulnerability, ...]
    """Vulnerabilities that need a new version."""
    settled: tuple[KnownVulnerability, ...]
    """Vulnerabilities that the user or the database itself settles, with the reason."""
    not_asked: tuple[NotChecked, ...]
    """What a database could have answered, if one had been reachable."""
    not_covered: tuple[NotChecked, ...]
    """What no database is asked about: contents of base images, source trees, files."""
    checked: int
    """Number of package versions that a database was asked about and answered."""
    sources: tuple[str, ...]
    """The databases that answered."""


def format_advisories(advisories: Advisories) -> str:
    """Return a line for each result, and a summary that counts what was not checked."""
    lines = [line for item in advisories.findings for line in _list_vulnerability_lines(item)]
    lines += [line for item in advisories.settled for line in _list_vulnerability_lines(item, "settled: ")]
    lines += _format_reasons("not asked", advisories.not_asked)
    lines += _format_reasons("not covered", advisories.not_covered)
    lines += [f"asked: {source}" for source in advisories.sources]
    lines.append(
        f"{advisories.checked} package versions checked: {len(advisories.findings)} known vulnerabilities, "
        f"{len(advisories.settled)} settled; "
        f"{len(advisories.not_asked)} not asked, {len(advisories.not_covered)} not covered"
    )
    return as_lines(lines)


def format_advisory_changes(before: Advisories, after: Advisories) -> str:
    """Return what new locks do to known vulnerabilities, for each variant: those that they end, and those that remain.

    One whose package has a new version that was not checked counts as neither.
    """
    old, new = _by_variant(before), _by_variant(after)
    ended = {key: text for key, text in old.items() if key not in new}
    unknown = {key: text for key, text in ended.items() if _is_unchecked(key, after)}
    fixed = [text for key, text in ended.items() if key not in unknown]
    counts = f"{len(fixed)} fixed, {len(new)} remain, {len(unknown)} with a new version that was not checked"
    lines = [f"Known vulnerabilities: {counts}; {len(after.not_asked)} package versions were not checked"]
    lines += [f"  fixed: {text}" for text in sorted(fixed)]
    lines += [f"  remains, see `./inv outdated` for the bound: {text}" for text in sorted(new.values())]
    lines += [f"  not checked again: {text}" for text in sorted(unknown.values())]
    return as_lines(lines)


Key = tuple[str, str, str, str]
"""Variant, ecosystem, package, advisory: what a new version leaves as it is."""


def _by_variant(advisories: Advisories) -> dict[Key, str]:
    return {
        (variant, item.ecosystem, item.package, item.advisory.id): format_vulnerability(item, (variant,))
        for item in advisories.findings
        for variant in item.variants
    }


def _is_unchecked(key: Key, after: Advisories) -> bool:
    """Return whether the package's version in the new lock was not checked."""
    variant, ecosystem, package, _ = key
    return any(variant in gap.variants and gap.what.startswith(f"{ecosystem} {package} ") for gap in after.not_asked)


def format_vulnerability(item: KnownVulnerability, variants: tuple[str, ...] = ()) -> str:
    """Return a vulnerability in one line, for some of its variants or all of them."""
    fixed = f"fixed in {', '.join(item.advisory.fixed_in[:3])}" if item.advisory.fixed_in else "no fixed version"
    aliases = f" ({', '.join(item.advisory.aliases[:3])})" if item.advisory.aliases else ""
    return (
        f"{item.package} {item.version}: {item.advisory.id}{aliases}: {fixed}: {', '.join(variants or item.variants)}"
    )


def clean_outside_text(summary: str) -> str:
    """Return a text from outside, on one line, shortened, without control characters."""
    return "".join(mark if mark.isprintable() else " " for mark in summary)[:LONGEST].strip()


def _list_vulnerability_lines(item: KnownVulnerability, prefix: str = "") -> Iterator[str]:
    yield prefix + format_vulnerability(item)
    if item.advisory.summary:
        yield f"  {item.advisory.summary}"
    if item.advisory.because:
        yield f"  {item.advisory.because}"


def _format_reasons(title: str, items: Iterable[NotChecked]) -> list[str]:
    """Return a line for each reason, with what it concerns."""
    reasons: dict[str, list[str]] = {}
    for item in items:
        several = f" ({len(item.variants)} variants)" if len(item.variants) > 1 else ""
        reasons.setdefault(item.why, []).append(f"{item.what}{several}")
    return [
        f"{title}: {why}: {len(names)}: {', '.join(names[:5])}{_mark_more(names)}" for why, names in reasons.items()
    ]


def _mark_more(names: list[str]) -> str:
    return ", …" if len(names) > 5 else ""  # noqa: PLR2004 - as many as are listed
