"""The verb `image inspect`."""

from __future__ import annotations

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.files import format_json
from drydock.model.record import dump_record
from drydock.model.shared_options import InsecureOption, JsonOption


class ImageOptions(InsecureOption, JsonOption):
    """An image in a registry."""

    reference: str
    """HOST/REPOSITORY[:TAG][@DIGEST]"""


@Verb
def inspect_image(options: ImageOptions) -> None:
    """Show the contents, age, variant and attestations of an image in a registry."""
    from drydock.examine import image
    from drydock.examine.remote_image import refuse_row_name

    refuse_row_name(here(), options.reference)
    inspected = image.inspect_image(options.reference, insecure=options.insecure)
    write_output(format_json(dump_record(inspected)) if options.json else image.format_inspected(inspected))
