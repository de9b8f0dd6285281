"""The verb `prove`."""

from __future__ import annotations

from pathlib import Path

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.model.shared_options import RowOption, SignOptions


class ProveOptions(RowOption, SignOptions):
    """What is proved, and who signs what was seen."""

    model: str = ""
    """folder or hub id of the model [default: SmolLM2-135M-Instruct]"""
    output: str = ""
    """with a signature: file for the statement [default: build/statements/TARGET.sigstore.json]"""


@Verb
def prove_row(options: ProveOptions) -> None:
    """Build an image, serve a model on this machine's device and record the proof."""
    from drydock.attest.cosign import choose_signer
    from drydock.prove import prove
    from drydock.run import container

    request = container.RunRequest(model=options.model) if options.model else None
    signed = choose_signer(options)
    file = Path(options.output or here().root / f"build/statements/{options.target}.sigstore.json")
    prove.prove_image(here(), options.target, request, statement=prove.StatementFile(signed, file) if signed else None)
