"""The verb `image inspect`."""

from __future__ import annotations

from drydock.cli.task_helpers import here, write_result
from drydock.cli.verb import Verb
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
    inspected = image.inspect_image(here(), options.reference, insecure=options.insecure)
    write_result(inspected, image.format_inspected(inspected), json=options.json)
