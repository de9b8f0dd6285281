"""What `lock --outdated` finds. Pure data, and how it reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drydock.model.record import Record


class DriftedPin(Record):
    """Something newer, or elsewhere, than what a lock pins."""

    variant: str
    platform: str
    kind: str
    """wheel, build, tool, deb, bootstrap, base, source or sdist."""
    name: str
    old: str | None
    """Version, digest or commit in the lock; null: it is not in it."""
    new: str | None
    """The same today; null: it would no longer be in it."""
    origin: str = ""
    """Which of pip's indexes has it, where that is a matter of one."""
    detail: str = ""
    command: str
    """What takes it over."""


class NotAsked(Record):
    """A source that gave no answer: nothing is known of it, also not that nothing has drifted."""

    variant: str
    platform: str
    source: str
    why: str


class Drift(Record):
    """What `lock --outdated --json` prints."""

    drifted: tuple[DriftedPin, ...]
    """What locking anew would change."""
    beyond: tuple[DriftedPin, ...]
    """Newer than the stack's bounds allow: no drift, since a stack is what ships together."""
    not_asked: tuple[NotAsked, ...]
    asked: int
    """Number of sources that gave an answer."""


def text(drift: Drift) -> str:
    """Return what people read: a paragraph for each variant, with the commands under what they mend."""
    lines = [line for name in _variants(drift) for line in _paragraph(name, drift)]
    lines.append(
        f"{len(drift.drifted)} drifted, {len(drift.beyond)} newer beyond the stack's bounds, "
        f"{drift.asked} sources asked, {len(drift.not_asked)} not asked"
    )
    return "\n".join(lines) + "\n"


def _variants(drift: Drift) -> list[str]:
    changed = {change.variant for change in (*drift.drifted, *drift.beyond)}
    return sorted(changed | {item.variant for item in drift.not_asked})


def _paragraph(variant: str, drift: Drift) -> Iterator[str]:
    yield variant
    yield from _changes("drifted", (change for change in drift.drifted if change.variant == variant))
    yield from _changes("beyond its bounds", (change for change in drift.beyond if change.variant == variant))
    for item in drift.not_asked:
        if item.variant == variant:
            yield f"  not asked: {item.source} ({item.platform}): {item.why}"
    yield ""


def _changes(title: str, changes: Iterable[DriftedPin]) -> Iterator[str]:
    commands: dict[str, list[str]] = {}
    for change in changes:
        commands.setdefault(change.command, []).append(_line(change))
    for command, lines in commands.items():
        yield f"  {title}:"
        yield from lines
        yield f"    → {command}"


def _line(change: DriftedPin) -> str:
    where = ", ".join(filter(None, (change.kind, change.platform, change.origin, change.detail)))
    return f"    {change.name} {short(change.old) or '(new)'} → {short(change.new) or '(gone)'} ({where})"


def short(value: str | None) -> str:
    """Return a version as it is, a digest or a commit by its first twelve digits, and nothing for none."""
    bare = (value or "").removeprefix("sha256:")
    return bare[:12] if len(bare) in (40, 64) and not set(bare) - set("0123456789abcdef") else (value or "")
