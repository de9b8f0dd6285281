"""The verb `lock diff`."""

from __future__ import annotations

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
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
    from drydock.lock.lock_diff import diff_locks

    write_output(diff_locks(here(), options.old, options.new, json=options.json))
