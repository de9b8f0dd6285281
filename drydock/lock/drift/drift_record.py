"""What `outdated` finds, as data and as text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drydock.model.record import Record


class DriftedPin(Record):
    """A pin that is no longer what would be locked today, or not the newest."""

    variant: str
    platform: str
    kind: str
    """wheel, build, tool, deb, bootstrap, base, source or sdist."""
    name: str
    old: str | None
    """Version, digest or commit in the lock; null: not in the lock."""
    new: str | None
    """The same today; null: locking again would remove it."""
    origin: str = ""
    """Which of pip's indexes has it, for a Python distribution."""
    detail: str = ""
    command: str
    """The command that updates the lock."""


class NotAsked(Record):
    """A source that did not answer, so that its pins may or may not have drifted."""

    variant: str
    platform: str
    source: str
    why: str


class Drift(Record):
    """What `outdated --json` prints."""

    drifted: tuple[DriftedPin, ...]
    """What locking again would change."""
    beyond: tuple[DriftedPin, ...]
    """Newer than the stack's bounds allow. This is not drift: a stack sets the versions that ship together."""
    not_asked: tuple[NotAsked, ...]
    asked: int
    """Number of sources that gave an answer."""


def format_drift(drift: Drift) -> str:
    """Return a paragraph for each variant, with the command to run below each group of changes."""
    lines = [line for name in _list_drifted_variants(drift) for line in _format_variant_drift(name, drift)]
    lines.append(
        f"{len(drift.drifted)} drifted, {len(drift.beyond)} newer beyond the stack's bounds, "
        f"{drift.asked} sources asked, {len(drift.not_asked)} not asked"
    )
    return "\n".join(lines) + "\n"


def _list_drifted_variants(drift: Drift) -> list[str]:
    changed = {change.variant for change in (*drift.drifted, *drift.beyond)}
    return sorted(changed | {item.variant for item in drift.not_asked})


def _format_variant_drift(variant: str, drift: Drift) -> Iterator[str]:
    yield variant
    yield from _format_drifted_pins("drifted", (change for change in drift.drifted if change.variant == variant))
    yield from _format_drifted_pins(
        "beyond its bounds", (change for change in drift.beyond if change.variant == variant)
    )
    for item in drift.not_asked:
        if item.variant == variant:
            yield f"  not asked: {item.source} ({item.platform}): {item.why}"
    yield ""


def _format_drifted_pins(title: str, changes: Iterable[DriftedPin]) -> Iterator[str]:
    commands: dict[str, list[str]] = {}
    for change in changes:
        commands.setdefault(change.command, []).append(_format_drifted_pin(change))
    for command, lines in commands.items():
        yield f"  {title}:"
        yield from lines
        yield f"    → {command}"


def _format_drifted_pin(change: DriftedPin) -> str:
    where = ", ".join(filter(None, (change.kind, change.platform, change.origin, change.detail)))
    return f"    {change.name} {shorten_hash(change.old) or '(new)'} → {shorten_hash(change.new) or '(gone)'} ({where})"


def shorten_hash(value: str | None) -> str:
    """Return a version unchanged, a digest or commit cut to twelve digits, and an empty text for None."""
    bare = (value or "").removeprefix("sha256:")
    return bare[:12] if len(bare) in (40, 64) and not set(bare) - set("0123456789abcdef") else (value or "")
