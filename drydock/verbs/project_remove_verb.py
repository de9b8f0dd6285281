"""The verb `project remove`."""

from __future__ import annotations

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.model.shared_options import ContentOptions


@Verb
def remove_from_row(options: ContentOptions) -> None:
    """Remove Python packages, Debian packages or certificates from a row of your project: locked and rendered."""
    from drydock.projects import project_contents

    project = here()
    with project.hold_files():
        row = project_contents.choose_row(project, options.target)
        texts = project_contents.plan_removals(project, row, options)
        change = project_contents.apply_texts(project, row, texts, dry_run=options.dry_run)
    project_contents.report_change(change, options)
