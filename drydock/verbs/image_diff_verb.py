"""The verb `image diff`."""

from __future__ import annotations

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.files import format_json
from drydock.model.record import dump_record
from drydock.model.shared_options import InsecureOption, JsonOption


class ImageDiffOptions(InsecureOption, JsonOption):
    """Two images in registries."""

    old: str
    """HOST/REPOSITORY[:TAG][@DIGEST] of the older image"""
    new: str
    """HOST/REPOSITORY[:TAG][@DIGEST] of the newer image"""
    platform: str = ""
    """platform to compare [default: first in common]"""


@Verb
def compare_images(options: ImageDiffOptions) -> None:
    """Show the differences between two images in registries: packages, files, sizes, flags."""
    from drydock.examine import image_diff
    from drydock.examine.remote_image import refuse_row_name

    for reference in (options.old, options.new):
        refuse_row_name(here(), reference)
    difference = image_diff.diff_images(options.old, options.new, platform=options.platform, insecure=options.insecure)
    write_output(format_json(dump_record(difference)) if options.json else image_diff.format_image_diff(difference))
