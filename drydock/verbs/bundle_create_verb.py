"""The verb `bundle create`."""

from __future__ import annotations

from pathlib import Path

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.model.shared_options import JsonOption


class BundleCreateOptions(JsonOption):
    """What a bundle contains."""

    output: str
    """file to write"""
    target: tuple[str, ...] = ()
    """variant id, alias or accelerator; repeatable"""
    model: tuple[str, ...] = ()
    """folder of a model to include, such as one of `model pull`; repeatable"""
    sign_key: str = ""
    """sign with this cosign private key: a file, env://NAME, or a key service URI"""


@Verb
def create_bundle(options: BundleCreateOptions) -> None:
    """Write images, their attestations, the inputs to rebuild them, and models into one file."""
    from drydock.bundle import bundle_tasks

    what = (options.target, Path(options.output))
    write_output(
        bundle_tasks.create_and_report(here(), *what, key=options.sign_key, models=options.model, json=options.json)
    )
