"""The verb `model push`."""

from __future__ import annotations

from pathlib import Path

from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.files import format_json
from drydock.model.record import dump_record
from drydock.model.shared_options import InsecureOption, JsonOption, SignOptions


class ModelPushOptions(SignOptions, InsecureOption, JsonOption):
    """Which model is pushed, and where."""

    folder: str
    """folder with the model, such as one of `model pull`"""
    name: str
    """REGISTRY/NAME, with or without :TAG"""


@Verb
def push_model(options: ModelPushOptions) -> None:
    """Push a model as an image that containers mount, and print the address for `run --model`. Resumes."""
    from drydock.attest.cosign import choose_signer
    from drydock.publish import model_push

    signer = choose_signer(options, insecure=options.insecure)
    pushed = model_push.push_model(Path(options.folder), options.name, signer, insecure=options.insecure)
    write_output(format_json(dump_record(pushed)) if options.json else model_push.format_pushed_model(pushed))
