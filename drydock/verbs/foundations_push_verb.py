"""The verb `foundations push`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drydock.cli.task_helpers import choose_variants, foundations_of, here
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


@Verb
def push_foundations(options: FoundationsPushOptions) -> None:
    """Push foundations that `build` keeps, for `build --foundations` on other machines."""
    from drydock.publish import foundations, push

    where = foundations_of(options.registry, "--registry")
    signer = push.signer_of(_make_signing(options))
    pushed = foundations.push_foundations(
        here(), choose_variants(options.target), where, signer, insecure=options.insecure
    )
    if options.json:
        write_output(format_json({"pushed": [dump_record(foundation) for foundation in pushed]}))
    else:
        write_output(foundations.format_pushed_foundations(pushed))


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
