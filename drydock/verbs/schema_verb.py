"""The verb `schema`."""

from __future__ import annotations

from drydock.cli.task_helpers import report_checked, report_written
from drydock.cli.verb import Verb
from drydock.core.paths import ROOT
from drydock.model.shared_options import CheckOption, JsonOption


class SchemaOptions(CheckOption, JsonOption):
    """What happens to the schemas."""


@Verb
def write_schemas(options: SchemaOptions) -> None:
    """Write the JSON Schemas of matrix, stacks, locks and other files."""
    from drydock.pages import schema

    if options.check:
        schema.check_schemas(ROOT)
        report_checked(json=options.json)
    else:
        report_written(schema.write_schemas(ROOT), json=options.json)
