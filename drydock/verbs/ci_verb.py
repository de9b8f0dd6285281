"""The verb `ci`."""

from __future__ import annotations

from typing import Literal

from drydock.cli.task_helpers import here, report_checked, report_written
from drydock.cli.verb import Verb
from drydock.model.shared_options import CheckOption, DryRunInCopyOption, JsonOption


class CiOptions(DryRunInCopyOption, CheckOption, JsonOption):
    """Which workflows are written."""

    format: Literal["", "github", "gitlab"] = ""
    """github or gitlab [default: both]"""


@Verb
def write_workflows(options: CiOptions) -> None:
    """Write the CI workflows from the matrix: test, build what changed, verify, publish, check for drift."""
    from drydock.ci import ci_requirements, workflow
    from drydock.config.matrix import read_matrix

    variants = read_matrix(here())
    if options.check:
        workflow.check_workflows(here(), variants, options.format)
        ci_requirements.check_requirements(here())
        report_checked(json=options.json)
    else:
        report_written(workflow.write(here(), variants, options.format), json=options.json)
