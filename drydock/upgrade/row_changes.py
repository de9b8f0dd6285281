"""What this drydock changes in the rows that an older one made for a project, before it is written. IO.

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
from drydock.ci.ci_requirements import NAME
from drydock.cli import version
from drydock.core.console import as_lines, log, spell_commands
from drydock.core.differences import find_differences
from drydock.core.errors import DrydockError
from drydock.core.files import format_json
from drydock.core.project import Project
from drydock.lock import following, image_record, lock_diff, lockfile
from drydock.model.locked import Lock
from drydock.model.row_record import FILE, HostPlan, RowRecord
from drydock.model.variant import Variant
from drydock.pages import changelog
from drydock.pages.changelog import UpgradeNote
from drydock.topology.plan_diff import split_command_options
from drydock.upgrade import row_record_file

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
    files: tuple[str, ...]
    """CI files and schemas that this drydock writes otherwise."""

    @property
    def changed(self) -> list[str]:
        """Return the rows that change, and the files of the whole project that do."""
        rows = [row.row for row in self.rows if not row.is_empty]
        return [*rows, *([NAME] if self.requirements else []), *self.files]


# --- comparing ------------------------------------------------------------------------------------------------------


def list_project_notes(project: Project) -> tuple[UpgradeNote, ...]:
    """Return what to do before an upgrade from the oldest drydock that made a row of the project.

    What is unreleased is left out: it is no release yet. Raises InputError.
    """
    versions = [
        record.drydock.version
        for row in _list_row_names(project)
        if (record := row_record_file.read_row_record(project, row))
    ]
    oldest = min(versions, key=Version, default="")
    newer_notes = changelog.list_upgrade_notes(changelog.read_changelog(), oldest) if oldest else ()
    return tuple(note for note in newer_notes if note.version)


def compare_rows(project: Project, variants: Sequence[Variant]) -> Iterator[RowChange]:
    """Yield what changes in each row of which the project has files. Raises InputError."""
    for variant in variants:
        if row_record_file.has_files(project, variant.id):
            yield _compare_row(project, variant)


def _list_row_names(project: Project) -> list[str]:
    """Return the rows of which a project has files, whether they are still in its matrix or not."""
    folders = sorted((project.root / "images").glob("*/"))
    return [folder.name for folder in folders if row_record_file.has_files(project, folder.name)]


def find_gone_rows(project: Project, variants: Sequence[Variant]) -> dict[str, str]:
    """Return folder in images/ without a row → the row that replaces it; empty if none does."""
    variant_ids = {variant.id for variant in variants}
    replaced = {old: variant.id for variant in variants for old in variant.replaces}
    return {row: replaced.get(row, "") for row in _list_row_names(project) if row not in variant_ids}


def _compare_row(project: Project, variant: Variant) -> RowChange:
    record = row_record_file.read_row_record(project, variant.id)
    old = lockfile.read_previous(lockfile.path_of_lock(project, variant.id))
    new = make_expected_lock(project, variant, old, record) if old else None
    packages = lock_diff.dump_lock_diff(old, new) if old and new else {"packages": [], "other": {}}
    pins = {name: pair for name, pair in packages["other"].items() if name != "inputs_sha256"}
    return RowChange(
        row=variant.id,
        made_by=record.drydock.version if record else "",
        support=variant.support.summary if variant.support else "",
        packages=tuple(packages["packages"]),
        pins=pins,
        lock=lock_diff.describe_changes(old, new) if old and new and (packages["packages"] or pins) else "",
        about_lock=tuple(_about_lock(project, variant, old, new, record)),
        dockerfile=_compare_dockerfile(project, variant),
        profile=tuple(_list_profile_changes(record, variant)) if record else (),
        plans=dict(_compare_host_plans(record.plans, row_record_file.plan_on_hosts(project, variant)))
        if record
        else {},
    )


def _list_profile_changes(record: RowRecord, variant: Variant) -> Iterator[ValueChange]:
    """Return what a program reads in the profile, and reads otherwise now."""
    recorded = {path: value for path, value in record.profile.items() if not row_record_file.is_prose(path)}
    return _list_value_changes(recorded, row_record_file.flatten_profile(variant))


def make_expected_lock(project: Project, variant: Variant, lock: Lock, record: RowRecord | None) -> Lock:
    """Return a row's lock as this drydock makes it, as far as that is known without resolving."""
    parent = row_record_file.parent_lock(project, variant)
    before = record.follows if record and record.inherits == (variant.inherits or "") else {}
    return following.follow_parent_lock(variant, lock, parent or lock, before)


def _about_lock(
    project: Project, variant: Variant, old: Lock | None, new: Lock | None, record: RowRecord | None
) -> Iterator[str]:
    if image_record.find_earlier_files(project, variant.id):
        yield "--write moves its digest of the image, and what proof.json has, to record.json"
    if old is None or new is None:
        yield "there is none that can be read: --write makes one"
    elif not lock_diff.is_same(old, new):
        yield "--write resolves it again, which may change more"
        yield from following.list_unmet_inputs(variant, new)
    elif record and record.inherits != (variant.inherits or ""):
        yield f"the row follows {variant.inherits or 'no other'} now, and {record.inherits or 'no other'} before"
    elif (
        record
        and record.lock != lockfile.locked_sha256(old)
        and not project.is_own(lockfile.path_of_lock(project, variant.id))
    ):
        now = following.pins_of(old)
        pins = {
            name for platform in now for name, *_ in find_differences(record.follows.get(platform, {}), now[platform])
        }
        more = f" and {len(pins) - NAMES} more" if len(pins) > NAMES else ""
        yield f"the lock is drydock's own, which pins otherwise now: {', '.join(sorted(pins)[:NAMES])}{more}"


def _compare_dockerfile(project: Project, variant: Variant) -> tuple[str, ...]:
    path = render.dockerfile_path(project, variant)
    if not path.is_file():
        return (f"+ {render.DOCKERFILE}: there is none yet",)
    old_text = path.read_bytes().decode(errors="replace")
    return tuple(render.excerpt_difference(old_text, render.render_dockerfile(project, variant), sys.maxsize))


def _compare_host_plans(
    old: Mapping[str, HostPlan], new: Mapping[str, HostPlan]
) -> Iterator[tuple[str, tuple[ValueChange, ...]]]:
    for host, before, after in find_differences(old, new):
        if before and after and not (before.error or after.error):
            yield host, tuple(_list_value_changes(_flatten_host_plan(before), _flatten_host_plan(after)))
        else:
            yield host, (ValueChange("plan", _describe_plan(before), _describe_plan(after)),)


def _describe_plan(plan: HostPlan | None) -> str | None:
    return (plan.error or "a command") if plan else None


def _flatten_host_plan(plan: HostPlan) -> dict[str, str]:
    """Return a plan as settings: each flag, variable and finding."""
    env = {f"env {name}": shlex.quote(value) for name, value in plan.env.items()}
    return {
        **split_command_options(plan.argv),
        **env,
        **{f"check {name}": severity for name, severity in plan.findings.items()},
    }


def _list_value_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[ValueChange]:
    return (ValueChange(*difference) for difference in find_differences(old, new))


# --- writing --------------------------------------------------------------------------------------------------------


def write_upgraded_row(project: Project, variant: Variant, errors: list[DrydockError]) -> list[Path]:
    """Write lock, Dockerfile and record of a row; return the files that changed, and add to the errors.

    The lock is resolved only if something of it changes.
    """
    changed_paths = image_record.move_earlier_files(project, variant.id)
    old = lockfile.read_previous(lockfile.path_of_lock(project, variant.id))
    record = row_record_file.read_row_record(project, variant.id)
    new = make_expected_lock(project, variant, old, record) if old else None
    if old and new and lock_diff.is_same(old, new):
        return changed_paths + row_record_file.write_row_files(project, variant, old, upgraded=True)
    again = {variant.id: new.model_copy(update={"inputs_sha256": following.UNKNOWN})} if new else {}
    changed_paths += row_record_file.lock_and_render(project, variant, errors, again, upgraded=True)
    locked = lockfile.read_lock(lockfile.path_of_lock(project, variant.id))
    if new and not lock_diff.is_same(new, locked):
        log(f"{variant.id}: resolving changed more than was shown:\n{lock_diff.describe_changes(new, locked).rstrip()}")
    return changed_paths


# --- what is printed ------------------------------------------------------------------------------------------------


def format_notes(notes: Sequence[UpgradeNote]) -> str:
    """Format what to do before an upgrade."""
    lines: list[str] = []
    for note in notes:
        lines.append(f"Before you upgrade to drydock {note.version}:")
        lines += [line for entry in note.entries for line in _wrap_entry(entry)]
        lines.append("")
    return as_lines(lines)


def _wrap_entry(entry: str) -> list[str]:
    return textwrap.wrap(spell_commands(f"- {entry}"), WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def format_row_changes(compared: Compared) -> str:
    """Format what changes in each row, and which rows stay as they are."""
    lines = [line for row in compared.rows if not row.is_empty for line in _row_lines(row)]
    unchanged_rows = [row for row in compared.rows if row.is_empty]
    lines += (
        [f"drydock {version.read_own_version()} changes nothing in {', '.join(row.row for row in unchanged_rows)}"]
        if unchanged_rows
        else []
    )
    if any(row.made_by not in ("", version.read_own_version()) for row in unchanged_rows):
        lines.append("`./inv project upgrade --write` records that, so that notes of older releases are not repeated")
    lines += [f"{row.row}: rebuilt {row.support}" for row in compared.rows if row.support]
    lines += [_gone_line(row, instead) for row, instead in compared.gone.items()]
    lines += compared.requirements
    lines += [f"{name}: outdated" for name in compared.files]
    return as_lines(lines or ["this project has no files of rows: `./inv lock` and `./inv render` make them"])


def _gone_line(row: str, instead: str) -> str:
    use = f"drydock retired it: use {instead}, and" if instead else "no row has this id:"
    return f"images/{row}: {use} remove this folder"


def _row_lines(change: RowChange) -> Iterator[str]:
    origin = f"made by drydock {change.made_by}" if change.made_by else f"without {FILE}: plans not compared"
    yield f"{change.row} ({origin})"
    parts = {
        "lock.json": [*change.lock.splitlines(), *change.about_lock],
        render.DOCKERFILE: change.dockerfile,
        render.PROFILE: [line for value_change in change.profile for line in _change_lines(value_change)],
    }
    parts |= {
        f"plan on {host}": [line for value_change in changes for line in _change_lines(value_change)]
        for host, changes in change.plans.items()
    }
    for name, part_lines in parts.items():
        if part_lines:
            yield f"  {name}"
            yield from (f"    {line}" for line in part_lines[:LINES])
            yield from (
                [f"    … {len(part_lines) - LINES} more lines: --json has all"] if len(part_lines) > LINES else []
            )
    yield ""


def _change_lines(change: ValueChange) -> Iterator[str]:
    if change.old is None:
        yield f"+ {change.name} {_shorten_change(change.new)}".rstrip()
    elif change.new is None:
        yield f"- {change.name} {_shorten_change(change.old)}".rstrip()
    else:
        yield f"~ {change.name}: {_shorten_change(change.old)} → {_shorten_change(change.new)}"


def _shorten_change(value: Any) -> str:
    text = value if isinstance(value, str) else format_json(value)
    return textwrap.shorten(text, WIDTH, placeholder=" …")
