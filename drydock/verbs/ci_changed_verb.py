"""The verb `ci changed`."""

from __future__ import annotations

import json

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import log, write_output
from drydock.core.errors import InputError
from drydock.core.files import format_json
from drydock.core.project import Project
from drydock.model.shared_options import JsonOption, RowOrAllOption


class CiChangedOptions(RowOrAllOption, JsonOption):
    """What counts as changed."""

    since: str
    """compare with this commit; if it is empty or unknown, everything counts as changed"""
    only: str = "changed"
    """changed, all, or a variant to build whether it changed or not"""
    github: bool = False
    """print a line for $GITHUB_OUTPUT"""
    large: str = ""
    """architectures whose runners have disk for every variant, such as amd64 [default: none]"""


@Verb
def list_changed_rows(options: CiChangedOptions) -> None:
    """Print the variants whose inputs changed since a commit, of those that CI builds."""
    write_output(format_changed_rows(here(), options))


def format_changed_rows(project: Project, options: CiChangedOptions) -> str:
    """Return what changed: one variant per line, a JSON object, or a line for $GITHUB_OUTPUT.

    Raises InputError if `only` names a variant that cannot be built, or for both forms at once.
    """
    from drydock.ci import changed
    from drydock.config.matrix import find_variant, read_matrix
    from drydock.model.record import dump_record

    if options.github and options.json:
        raise InputError("--github and --json exclude each other: each is the result in another form")
    variants = read_matrix(project)
    only_variant = options.only if options.only not in ("changed", "all") else ""
    one, large = options.target or only_variant, changed.parse_architectures(options.large)
    since = options.since if options.only == "changed" else ""
    changes = changed.compare_with_commit(project, [find_variant(variants, one)] if one else variants, since, large)
    if only_variant and changes.left_out:
        problems = (f"{row.variant}: {row.why}" for row in changes.left_out)
        raise InputError(*problems, hint=changed.LARGE_HINT)
    for row in changes.changed:
        log(f"{row.variant}: {row.why}")
    for too_large in changes.left_out:
        if "disk" in too_large.why:
            log(f"{too_large.variant}: not built: {too_large.why}")
    if options.github:
        return f"variants={json.dumps([dump_record(row) for row in changes.changed])}\n"
    return format_json(dump_record(changes)) if options.json else "".join(f"{row.variant}\n" for row in changes.changed)
