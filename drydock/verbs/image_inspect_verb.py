"""The verb `image inspect`."""

from __future__ import annotations

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.model.shared_options import InsecureOption, JsonOption


class ImageOptions(InsecureOption, JsonOption):
    """An image in a registry."""

    reference: str
    """HOST/REPOSITORY[:TAG][@DIGEST]"""


@Verb
def inspect_image(options: ImageOptions) -> None:
    """Show the contents, age, variant and attestations of an image in a registry."""
    from drydock.examine import examine_tasks

    write_output(
        examine_tasks.report_inspection(here(), options.reference, json=options.json, insecure=options.insecure)
    )
