"""The verb `audit`."""

from __future__ import annotations

from drydock.cli.task_helpers import choose_variants, here, require_target
from drydock.cli.verb import Verb
from drydock.model.shared_options import AdvisoryOptions, JsonOption, PlatformOption


class AuditOptions(AdvisoryOptions, PlatformOption, JsonOption):
    """What is audited."""

    target: str = ""
    """variant id, alias or accelerator; --advisories alone covers every variant"""


@Verb
def audit_row(options: AuditOptions) -> None:
    """Search an image for secrets, build tools, unneeded privileges and writable paths, or for vulnerabilities."""
    from drydock.build.build_job import BuildOptions, prepare_job
    from drydock.examine import examine_tasks

    if options.advisories or options.database:
        examine_tasks.print_lock_advisories(
            here(), choose_variants(options.target), options.database, options.ignore, json=options.json
        )
    else:
        target = require_target("audit", options.target, "--advisories alone covers every variant")
        examine_tasks.audit_build(
            prepare_job(here(), target, BuildOptions(platform=options.platform or None)), json=options.json
        )
