"""The verb `entrypoint`."""

from __future__ import annotations

from drydock.cli.task_helpers import after_dashes, here
from drydock.cli.verb import Verb
from drydock.model.shared_options import JsonOption, RowOrAutoOption


class PlannedRowOptions(RowOrAutoOption):
    """A row whose verb is run here, on this machine or a recorded host."""

    root: str = ""
    """recorded host instead of this machine; also after --"""
    env: tuple[str, ...] = ()
    """a variable that the container would have: NAME=VALUE, or NAME to pass it from your shell; repeatable"""


class ModelOfRowOptions(PlannedRowOptions, JsonOption):
    """A row, and the model that it would serve."""

    model: str = ""
    """hub id of the model, oci://…@sha256:…, or a folder with its config.json"""


@Verb
def run_image_verb(options: PlannedRowOptions) -> None:
    """Run a verb of an image on this machine, without the image: plan, check, facts, explain, version; after --."""
    exec_image_verb(options)


def list_image_words(options: ModelOfRowOptions) -> tuple[str, ...]:
    """Return the options that the image's verb has too, as its words."""
    model = ("--model", options.model) if options.model else ()
    return (*model, *(("--json",) if options.json else ()))


def exec_image_verb(options: PlannedRowOptions, *words: str) -> None:
    """Become the image's entrypoint, with these words and those after --."""
    from drydock.inputs import model_images
    from drydock.run import auto, entrypoint

    words = model_images.replace_model_address((*words, *after_dashes()))
    entrypoint.check_verb(options.target, words)
    variant = auto.resolve_target(here(), options.target, options.root or entrypoint.recorded_host(words))
    words = entrypoint.with_root(words, options.root)
    entrypoint.exec_entrypoint(here(), variant, words, options.env)
