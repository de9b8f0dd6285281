"""The verb `release`."""

from __future__ import annotations

from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.verb_options import VerbOptions


class ReleaseOptions(VerbOptions):
    """Which release is tagged."""

    version: str
    """such as 1.4.0; what changed since the last release decides which versions may follow"""
    dry_run: bool = False
    """check, and say what would be written; write nothing"""
    no_verify: bool = False
    """do not run the linters and the tests; all else is checked"""


@Verb
def tag_release(options: ReleaseOptions) -> None:
    """Check everything, write version, changelog and surface, commit and tag. Pushes nothing."""
    from drydock.config.project_choice import DRYDOCK
    from drydock.development import release

    how = release.HowToRelease(verify=not options.no_verify, dry_run=options.dry_run)
    write_output(release.make_release(DRYDOCK, options.version, how))
