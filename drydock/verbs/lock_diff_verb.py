"""The verb `lock diff`."""

from __future__ import annotations

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.files import format_json
from drydock.core.project import Project
from drydock.model.shared_options import JsonOption


class LockDiffOptions(JsonOption):
    """Two locks."""

    old: str
    """variant, lock file or REVISION:VARIANT"""
    new: str
    """variant, lock file or REVISION:VARIANT"""


@Verb
def compare_locks(options: LockDiffOptions) -> None:
    """Show the differences between two locks: packages, versions, sizes."""
    write_output(format_difference(here(), options))


def format_difference(project: Project, options: LockDiffOptions) -> str:
    """Return what differs between two locks, as text or JSON. Raises InputError for what is no lock."""
    from drydock.lock import lock_diff

    old, new = (lock_diff.load_named_lock(project, name) for name in (options.old, options.new))
    if options.json:
        return format_json({"old": options.old, "new": options.new, **lock_diff.dump_lock_diff(old, new)})
    packages, fields = lock_diff.compare_packages(old, new), lock_diff.compare_other_fields(old, new)
    return lock_diff.format_lock_diff(packages, fields)
