"""The verb `render`."""

from __future__ import annotations

from drydock.cli.task_helpers import choose_variants, here, report_checked, report_written
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.model.shared_options import CheckOption, DryRunInCopyOption, JsonOption, RowOrAllOption


class RenderRowOptions(DryRunInCopyOption, RowOrAllOption, CheckOption, JsonOption):
    """What is rendered."""

    profile: bool = False
    """write nothing; print the profile.json of --target's image"""


@Verb
def render_rows(options: RenderRowOptions) -> None:
    """Write images/VARIANT/Dockerfile from the matrix and the templates; in a project upgrade.json of its rows too."""
    from drydock.build import render
    from drydock.config.matrix import find_variant, read_matrix
    from drydock.lock import lockfile
    from drydock.upgrade import row_record_file

    if options.profile:
        write_output(render.profile_text(find_variant(read_matrix(here()), options.target)))
        return
    locked = lockfile.read_current(here(), choose_variants(options.target))
    if options.check:
        for variant, lock in locked:
            row_record_file.check_row_files(here(), variant, lock)
        report_checked(json=options.json)
    else:
        report_written(row_record_file.write_rows(here(), locked), json=options.json)
