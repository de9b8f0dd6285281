"""The verb `foundations push`."""

from __future__ import annotations

from drydock.cli.task_helpers import choose_variants, foundations_of, here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.files import format_json
from drydock.model.record import dump_record
from drydock.model.shared_options import SharedFoundations, SignOptions


class FoundationsPushOptions(SharedFoundations, SignOptions):
    """Which foundations are pushed."""

    target: str = ""
    """variant id, alias or accelerator [default: every row whose foundation is kept]"""


@Verb
def push_foundations(options: FoundationsPushOptions) -> None:
    """Push foundations that `build` keeps, for `build --foundations` on other machines."""
    from drydock.attest.cosign import choose_signer
    from drydock.publish import foundations

    where = foundations_of(options.registry, "--registry")
    signer = choose_signer(options, insecure=options.insecure)
    pushed = foundations.push_foundations(
        here(), choose_variants(options.target), where, signer, insecure=options.insecure
    )
    if options.json:
        write_output(format_json({"pushed": [dump_record(foundation) for foundation in pushed]}))
    else:
        write_output(foundations.format_pushed_foundations(pushed))
