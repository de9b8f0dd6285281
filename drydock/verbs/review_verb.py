"""The verb `review`."""

from __future__ import annotations

from typing import Literal

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.model.shared_options import OfflineOption


class ReviewOptions(OfflineOption):
    """What is reviewed, and for which image."""

    folder: str
    """folder with charts, samples, Compose files, scripts and pages"""
    to: str = ""
    """say what breaks if this image came instead of those of the same name; or a row or version, instead of all"""
    format: Literal["text", "json", "sarif", "github", "gitlab"] = "text"
    """what is printed: github are annotations of a job, gitlab is a code quality report"""


@Verb
def review_commands(options: ReviewOptions) -> None:
    """Judge every vLLM command below a folder by the vLLM of its image. Nothing of the folder is executed."""
    from drydock.review.review_output import FORMATS, raise_refused
    from drydock.review.review_tree import review_folder

    review = review_folder(here(), options.folder, options.to, offline=options.offline)
    write_output(FORMATS[options.format](review))
    raise_refused(review)
