"""The verb `model pull`."""

from __future__ import annotations

from pathlib import Path

from drydock.cli.task_helpers import write_result
from drydock.cli.verb import Verb
from drydock.model.shared_options import DryRunOption, JsonOption, VerboseOption


class ModelPullOptions(DryRunOption, VerboseOption, JsonOption):
    """Which model is downloaded, and from where."""

    name: str
    """hub id, or modelscope:ORG/NAME"""
    output: str = ""
    """folder to write"""
    revision: str = ""
    """branch, tag or commit [default: main, on ModelScope master]"""
    endpoint: str = ""
    """address of the hub or a mirror [default: HF_ENDPOINT, MODELSCOPE_DOMAIN, or the hub's own]"""
    everything: bool = False
    """also take weights in formats that vLLM does not read"""
    insecure: bool = False
    """send HF_TOKEN, or the address's password, over plain HTTP to another machine"""


@Verb
def pull_model(options: ModelPullOptions) -> None:
    """Download a model, each file checked by hash, for a host without network. Resumes if it was interrupted."""
    from drydock.inputs import models
    from drydock.inputs.hub import HubAddress

    where = HubAddress(options.endpoint, options.insecure)
    pulled = models.pull_model(
        options.name,
        Path(options.output),
        revision=options.revision,
        where=where,
        everything=options.everything,
        dry_run=options.dry_run,
    )
    write_result(pulled, models.format_pulled(pulled), json=options.json)
