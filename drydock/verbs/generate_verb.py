"""The verb `generate`."""

from __future__ import annotations

from drydock.cli.verb import Verb
from drydock.core.paths import ROOT
from drydock.model.shared_options import CheckOption


class GenerateOptions(CheckOption):
    """What is generated."""

    only: str = ""
    """one part, such as hosts, docs or dockerfiles [default: all]"""


@Verb
def write_generated(options: GenerateOptions) -> None:
    """Write all files that are generated and committed, except for those that need an engine or the network."""
    from drydock.development import quality

    quality.write_generated_files(ROOT, options.only, check=options.check)
