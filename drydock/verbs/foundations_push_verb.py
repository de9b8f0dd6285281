"""The verb `foundations push`."""

from __future__ import annotations

from drydock.cli.task_helpers import choose_variants, foundations_of, here, write_result
from drydock.cli.verb import Verb
from drydock.model.shared_options import DryRunOption, SharedFoundations, SignOptions


class FoundationsPushOptions(DryRunOption, SharedFoundations, SignOptions):
    """Which foundations are pushed."""

    target: str = ""
    """row, alias or accelerator [default: every row whose foundation is kept]"""


@Verb
def push_foundations(options: FoundationsPushOptions) -> None:
    """Push foundations that `build` keeps, for `build --foundations` on other machines."""
    from drydock.attest.cosign import choose_signer
    from drydock.publish import foundations

    where = foundations_of(options.registry, "--registry")
    signer = choose_signer(options, insecure=options.insecure)
    pushed = foundations.push_foundations(
        here(),
        choose_variants(options.target),
        where,
        signer,
        insecure=options.insecure,
        dry_run=options.dry_run,
    )
    write_result({"pushed": pushed}, foundations.format_pushed_foundations(pushed), json=options.json)
