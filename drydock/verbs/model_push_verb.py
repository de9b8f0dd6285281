"""The verb `model push`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.files import format_json
from drydock.model.record import dump_record
from drydock.model.shared_options import InsecureOption, JsonOption, SharedFoundations, SignOptions

if TYPE_CHECKING:
    from drydock.publish.push import PublishOptions


class FoundationsPushOptions(SharedFoundations, SignOptions):
    """Which foundations are pushed."""

    target: str = ""
    """variant id, alias or accelerator [default: every row whose foundation is kept]"""


def _make_signing(options: FoundationsPushOptions | ModelPushOptions) -> PublishOptions:
    """Return how something is signed that no release names."""
    from drydock.publish.push import PublishOptions

    return PublishOptions("", insecure=options.insecure, key=options.sign_key, keyless=options.keyless)


class ModelPushOptions(SignOptions, InsecureOption, JsonOption):
    """Which model is pushed, and where."""

    folder: str
    """folder with the model, such as one of `model pull`"""
    name: str
    """REGISTRY/NAME, with or without :TAG"""


@Verb
def push_model(options: ModelPushOptions) -> None:
    """Push a model as an image that containers mount, and print the address for `run --model`. Resumes."""
    from drydock.publish import model_push

    pushed = model_push.push_model(Path(options.folder), options.name, _make_signing(options))
    write_output(format_json(dump_record(pushed)) if options.json else model_push.format_pushed_model(pushed))
