"""The verb `images`."""

from __future__ import annotations

import datetime as dt

from drydock.cli.task_helpers import here, write_result
from drydock.cli.verb import Verb
from drydock.model.shared_options import JsonOption, PruneOptions


class ImagesOptions(PruneOptions, JsonOption):
    """Which images of the engine are listed or removed."""

    prune: bool = False
    """list only what no checkout keeps and no container uses"""
    yes: bool = False
    """with --prune: remove it"""


@Verb
def list_images(options: ImagesOptions) -> None:
    """List drydock's images in the engine, and which checkouts keep them."""
    from drydock.build import engine_images

    options.check_prune()
    images = engine_images.list_engine_images(here())
    images = engine_images.prune_images(images, yes=options.yes) if options.prune else images
    write_result({"images": images}, engine_images.format_images(images, dt.datetime.now(dt.UTC)), json=options.json)
