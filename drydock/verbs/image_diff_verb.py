"""The verb `image diff`."""

from __future__ import annotations

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
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
    from drydock.examine import examine_tasks

    compared = (options.old, options.new, options.platform)
    write_output(examine_tasks.report_differences(here(), *compared, json=options.json, insecure=options.insecure))
