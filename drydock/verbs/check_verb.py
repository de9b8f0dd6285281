"""The verb `check`."""

from __future__ import annotations

from drydock.cli.verb import Verb
from drydock.verbs.entrypoint_verb import ModelOfRowOptions, exec_image_verb, list_image_words


@Verb
def check_row(options: ModelOfRowOptions) -> None:
    """Check this machine's tuning, or a recorded host's, for a row. Flags of the image's check follow --."""
    exec_image_verb(options, "check", *list_image_words(options))
