"""The verb `image diff`."""

from __future__ import annotations

from drydock.cli.task_helpers import here, write_result
from drydock.cli.verb import Verb
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
    write_result(difference, image_diff.format_image_diff(difference), json=options.json)
