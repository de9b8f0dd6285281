"""The verb `lint`."""

from __future__ import annotations

from drydock.cli.verb import Verb
from drydock.core.paths import ROOT
from drydock.core.verb_options import VerbOptions


class LintOptions(VerbOptions):
    """How much is checked."""

    quick: bool = False
    """leave out the check of generated files, which takes a minute"""


@Verb
def run_linters(options: LintOptions) -> None:
    """Run the linters and the type checker, and check that generated files are current."""
    from drydock.development import quality

    quality.run_linters(ROOT, quick=options.quick)
