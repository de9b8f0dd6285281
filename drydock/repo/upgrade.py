"""`upgrade`: what this drydock changes in the rows that an older one made for a project, before it is written. IO.

Compared is what is committed: lock, Dockerfile and upgrade.json of each row. Nothing is resolved, without network: pins
follow those of the row that is inherited, and what only resolving can tell is said.
"""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import Version

from drydock.build import render
from drydock.config.matrix import read_matrix
from drydock.core.console import as_lines, emit, log, spelled
from drydock.core.differences import differences
from drydock.core.errors import DrydockError, InputError, StaleError
from drydock.core.files import dumps
from drydock.core.project import Project
from drydock.lock import following, lock_diff, lockfile
from drydock.model.locked import Lock
from drydock.model.row_record import HostPlan, RowRecord
from drydock.model.variant import Variant
from drydock.repo import changelog, ci_requirements, locking, own_wheel, row_record, update, version
from drydock.repo.changelog import UpgradeNote
from drydock.repo.ci_requirements import NAME
from drydock.topology.plan_diff import options

LINES = 60
"""Lines of each part of a row that are shown."""
NAMES = 10
"""Pins that are named where no versions are known."""
WIDTH = 100
"""Characters of a note's lines, and of a value that is shown."""


class ValueChange(NamedTuple):
    """A value that differs; None: one side does not have it."""

    name: str
    old: Any
    new: Any


class RowChange(NamedTuple):
    """What this drydock changes in a row."""

    row: str
    made_by: str
    """Version of the drydock that made it; empty if that is not recorded."""
    support: str
    """Until when the row is rebuilt, and what to use then; empty without such a date."""
    packages: tuple[Mapping[str, Any], ...]
    """Pins that differ, as `lock diff --json` prints them."""
    pins: Mapping[str, Any]
    """Every other field of the lock that differs, with both values."""
    lock: str
    """The same as text, as `lock diff` prints it."""
    about_lock: tuple[str, ...]
    """Why it is resolved again, which may change more than is shown, or that it is drydock's own."""
    dockerfile: tuple[str, ...]
    profile: tuple[ValueChange, ...]
    plans: Mapping[str, tuple[ValueChange, ...]]

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes, and what made the row is recorded."""
        changed = self.lock or self.about_lock or self.dockerfile or self.profile or self.plans
        return bool(self.made_by) and not changed


class Compared(NamedTuple):
    """What a newer drydock changes in a project."""

    notes: tuple[UpgradeNote, ...]
    rows: tuple[RowChange, ...]
    gone: Mapping[str, str]
    """Folder in images/ without a row → the row that replaces it; empty if none does."""
    requirements: tuple[str, ...]
    """Why the project's CI installs another drydock than this one, or whatever an index has."""

    @property
    def changed(self) -> list[str]:
        """Return the rows that change, and requirements.txt if that does."""
        return [each.row for each in self.rows if not each.is_empty] + ([NAME] if self.requirements else [])


# --- comparing ------------------------------------------------------------------------------------------------------


def upgrade(project: Project, *, write: bool = False, json: bool = False) -> None:
    """Print what this drydock changes in a project's rows, or write it.

    Raises StaleError if something changes and is not written, InputError for a project of a newer drydock.
    """
    if not project.below:
        text = f"upgrade: {project.root} is drydock itself, which has no rows that an older drydock made"
        raise InputError(text, hint="run it in a project, or name one: `./inv --project DIR upgrade`")
    found = notes(project)
    if not json:
        emit(notes_text(found))  # before the rows: a note may say why these cannot be read any more
    variants = read_matrix(project)
    rows = tuple(compare(project, variants))
    compared = Compared(found, rows, _gone(project, variants), ci_requirements.find_problems(project))
    written, errors = _write(project, variants) if write else ([], [])
    if write and compared.requirements:
        written += _write_requirements(project, errors)
    if json:
        emit(dumps(as_json(compared) | ({"wrote": [project.name_of(path) for path in written]} if write else {})))
    else:
        emit(spelled(rows_text(compared)))
    if write:
        log("\n".join(f"wrote {project.name_of(path)}" for path in written) or "nothing to do")
        update.settle(errors)
    elif changed := compared.changed:
        raise StaleError(f"this drydock changes {', '.join(changed)}", hint="`./inv project upgrade --write` writes it")


def notes(project: Project) -> tuple[UpgradeNote, ...]:
    """Return what to do before an upgrade from the oldest drydock that made a row of the project.

    What is unreleased is left out: it is no release yet. Raises InputError.
    """
    made = [record.drydock.version for row in _rows(project) if (record := row_record.read(project, row))]
    oldest = min(made, key=Version, default="")
    found = changelog.notes(changelog.read_changelog(), oldest) if oldest else ()
    return tuple(note for note in found if note.version)


def compare(project: Project, variants: Sequence[Variant]) -> Iterator[RowChange]:
    """Yield what changes in each row of which the project has files. Raises InputError."""
    for variant in variants:
        if row_record.has_files(project, variant.id):
            yield _compare(project, variant)


def _rows(project: Project) -> list[str]:
    """Return the rows of which a project has files, whether they are still in its matrix or not."""
    folders = sorted((project.root / "images").glob("*/"))
    return [folder.name for folder in folders if row_record.has_files(project, folder.name)]


def _gone(project: Project, variants: Sequence[Variant]) -> dict[str, str]:
    known = {variant.id for variant in variants}
    replaced = {old: variant.id for variant in variants for old in variant.replaces}
    return {row: replaced.get(row, "") for row in _rows(project) if row not in known}


def _compare(project: Project, variant: Variant) -> RowChange:
    record = row_record.read(project, variant.id)
    old = lockfile.read_previous(lockfile.path_of(project, variant.id))
    new = expected(project, variant, old, record) if old else None
    packages = lock_diff.as_json(old, new) if old and new else {"packages": [], "other": {}}
    pins = {name: pair for name, pair in packages["other"].items() if name != "inputs_sha256"}
    return RowChange(
        row=variant.id,
        made_by=record.drydock.version if record else "",
        support=variant.support.summary if variant.support else "",
        packages=tuple(packages["packages"]),
        pins=pins,
        lock=lock_diff.changes(old, new) if old and new and (packages["packages"] or pins) else "",
        about_lock=tuple(_about_lock(project, variant, old, new, record)),
        dockerfile=_dockerfile(project, variant),
        profile=tuple(_changes(record.profile, row_record.profile(variant))) if record else (),
        plans=dict(_plans(record.plans, row_record.plans(project, variant))) if record else {},
    )


def expected(project: Project, variant: Variant, lock: Lock, record: RowRecord | None) -> Lock:
    """Return a row's lock as this drydock makes it, as far as that is known without resolving."""
    parent = row_record.parent_lock(project, variant)
    before = record.follows if record and record.inherits == (variant.inherits or "") else {}
    return following.follow(variant, lock, parent or lock, before)


def _about_lock(
    project: Project, variant: Variant, old: Lock | None, new: Lock | None, record: RowRecord | None
) -> Iterator[str]:
    if old is None or new is None:
        yield "there is none that can be read: --write makes one"
    elif not lock_diff.is_same(old, new):
        yield "--write resolves it again, which may change more"
        yield from following.unmet(variant, new)
    elif record and record.inherits != (variant.inherits or ""):
        yield f"the row follows {variant.inherits or 'no other'} now, and {record.inherits or 'no other'} before"
    elif (
        record
        and record.lock != lockfile.locked_sha256(old)
        and not project.is_own(lockfile.path_of(project, variant.id))
    ):
        now = following.pins_of(old)
        pins = {name for each in now for name, *_ in differences(record.follows.get(each, {}), now[each])}
        more = f" and {len(pins) - NAMES} more" if len(pins) > NAMES else ""
        yield f"the lock is drydock's own, which pins otherwise now: {', '.join(sorted(pins)[:NAMES])}{more}"


def _dockerfile(project: Project, variant: Variant) -> tuple[str, ...]:
    path = render.path_of(project, variant)
    if not path.is_file():
        return (f"+ {render.DOCKERFILE}: there is none yet",)
    found = path.read_bytes().decode(errors="replace")
    return tuple(render.excerpt(found, render.dockerfile(project, variant), sys.maxsize))


def _plans(old: Mapping[str, HostPlan], new: Mapping[str, HostPlan]) -> Iterator[tuple[str, tuple[ValueChange, ...]]]:
    for host, before, after in differences(old, new):
        if before and after and not (before.error or after.error):
            yield host, tuple(_changes(_settings(before), _settings(after)))
        else:
            yield host, (ValueChange("plan", _outcome(before), _outcome(after)),)


def _outcome(plan: HostPlan | None) -> str | None:
    return (plan.error or "a command") if plan else None


def _settings(plan: HostPlan) -> dict[str, str]:
    """Return a plan as settings: each flag, variable and finding."""
    env = {f"env {name}": shlex.quote(value) for name, value in plan.env.items()}
    return {**options(plan.argv), **env, **{f"check {name}": severity for name, severity in plan.findings.items()}}


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[ValueChange]:
    return (ValueChange(*each) for each in differences(old, new))


# --- writing --------------------------------------------------------------------------------------------------------


def _write(project: Project, variants: Sequence[Variant]) -> tuple[list[Path], list[DrydockError]]:
    """Write lock, Dockerfile and record of each row; return the files that changed, and the errors.

    A row's lock is resolved only if something of it changes.
    """
    written: list[Path] = []
    errors: list[DrydockError] = []
    for variant in variants:
        if not row_record.has_files(project, variant.id):
            continue
        try:
            written += _write_row(project, variant, errors)
        except DrydockError as error:
            errors.append(error)
    locking.say_stale(project)
    return written, errors


def _write_requirements(project: Project, errors: list[DrydockError]) -> list[Path]:
    """Write the wheel of this drydock and requirements.txt; return the files that changed, and add an error to them."""
    try:
        return ci_requirements.write_requirements(project, own_wheel.find_own_wheel())
    except DrydockError as error:
        errors.append(error)
        return []


def _write_row(project: Project, variant: Variant, errors: list[DrydockError]) -> list[Path]:
    old = lockfile.read_previous(lockfile.path_of(project, variant.id))
    record = row_record.read(project, variant.id)
    new = expected(project, variant, old, record) if old else None
    if old and new and lock_diff.is_same(old, new):
        return row_record.write(project, variant, old, upgraded=True)
    again = {variant.id: new.model_copy(update={"inputs_sha256": following.UNKNOWN})} if new else {}
    written = update.lock_and_render(project, variant, errors, again, upgraded=True)
    locked = lockfile.read_lock(lockfile.path_of(project, variant.id))
    if new and not lock_diff.is_same(new, locked):
        log(f"{variant.id}: resolving changed more than was shown:\n{lock_diff.changes(new, locked).rstrip()}")
    return written


# --- what is printed ------------------------------------------------------------------------------------------------


def as_json(compared: Compared) -> dict[str, Any]:
    """Return the comparison as plain JSON values."""
    rows = [
        each._asdict()
        | {"profile": _plain(each.profile), "plans": {host: _plain(changes) for host, changes in each.plans.items()}}
        for each in compared.rows
    ]
    found = {"notes": [note._asdict() for note in compared.notes], "rows": rows, "gone": compared.gone}
    return {"version": version.number(), **found, "requirements": compared.requirements}


def _plain(changes: Sequence[ValueChange]) -> list[dict[str, Any]]:
    return [change._asdict() for change in changes]


def notes_text(found: Sequence[UpgradeNote]) -> str:
    """Format what to do before an upgrade."""
    lines: list[str] = []
    for note in found:
        lines.append(f"Before you upgrade to drydock {note.version}:")
        lines += [line for entry in note.entries for line in _wrapped(entry)]
        lines.append("")
    return as_lines(lines)


def _wrapped(entry: str) -> list[str]:
    return textwrap.wrap(spelled(f"- {entry}"), WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def rows_text(compared: Compared) -> str:
    """Format what changes in each row, and which rows stay as they are."""
    lines = [line for each in compared.rows if not each.is_empty for line in _row_lines(each)]
    same = [each for each in compared.rows if each.is_empty]
    lines += [f"drydock {version.number()} changes nothing in {', '.join(each.row for each in same)}"] if same else []
    if any(each.made_by not in ("", version.number()) for each in same):
        lines.append("`./inv project upgrade --write` records that, so that notes of older releases are not repeated")
    lines += [f"{each.row}: rebuilt {each.support}" for each in compared.rows if each.support]
    lines += [_gone_line(row, instead) for row, instead in compared.gone.items()]
    lines += compared.requirements
    return as_lines(lines or ["this project has no files of rows: `./inv lock` and `./inv render` make them"])


def _gone_line(row: str, instead: str) -> str:
    use = f"drydock retired it: use {instead}, and" if instead else "no row has this id:"
    return f"images/{row}: {use} remove this folder"


def _row_lines(change: RowChange) -> Iterator[str]:
    made = f"made by drydock {change.made_by}" if change.made_by else f"without {row_record.FILE}: plans not compared"
    yield f"{change.row} ({made})"
    parts = {
        "lock.json": [*change.lock.splitlines(), *change.about_lock],
        render.DOCKERFILE: change.dockerfile,
        render.PROFILE: [line for each in change.profile for line in _change_lines(each)],
    }
    parts |= {
        f"plan on {host}": [line for each in changes for line in _change_lines(each)]
        for host, changes in change.plans.items()
    }
    for name, found in parts.items():
        if found:
            yield f"  {name}"
            yield from (f"    {line}" for line in found[:LINES])
            yield from [f"    … {len(found) - LINES} more lines: --json has all"] if len(found) > LINES else []
    yield ""


def _change_lines(change: ValueChange) -> Iterator[str]:
    if change.old is None:
        yield f"+ {change.name} {_shown(change.new)}".rstrip()
    elif change.new is None:
        yield f"- {change.name} {_shown(change.old)}".rstrip()
    else:
        yield f"~ {change.name}: {_shown(change.old)} → {_shown(change.new)}"


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else dumps(value)
    return textwrap.shorten(text, WIDTH, placeholder=" …")
