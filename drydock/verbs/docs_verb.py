"""The verb `docs`."""

from __future__ import annotations

from pathlib import Path

from drydock.cli.task_helpers import here, report_checked, report_written
from drydock.cli.verb import Verb
from drydock.cli.verb_table import COMMANDS
from drydock.core.paths import ROOT
from drydock.model.shared_options import CheckOption, JsonOption


class DocsOptions(CheckOption, JsonOption):
    """What is written of the pages."""

    serve: bool = False
    """serve the site of all pages on http://localhost:8000"""
    site: str = ""
    """build the site, of this checkout and of each release, into this folder"""


@Verb
def write_docs(options: DocsOptions) -> None:
    """Write docs/reference/ and what else is generated in README.md and docs/, or make the site of all pages."""
    from bench import bench_page
    from drydock.config.matrix import read_matrix
    from drydock.pages import commands_page, docs, site

    if options.serve:
        site.serve_site(ROOT)
    elif options.site:
        report_written(site.publish_site(ROOT, Path(options.site)), json=options.json)
    elif options.check:
        docs.check_pages(
            here(),
            read_matrix(here()),
            [*bench_page.find_stale_files(ROOT), *commands_page.find_stale_page(ROOT, COMMANDS)],
        )
        report_checked(json=options.json)
    else:
        written = docs.write(here(), read_matrix(here()))
        report_written(
            [*written, *bench_page.write_page(ROOT), *commands_page.write_commands_page(ROOT, COMMANDS)],
            json=options.json,
        )
