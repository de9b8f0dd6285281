"""The verb `audit`."""

from __future__ import annotations

from drydock.cli.task_helpers import choose_variants, here, require_target, write_result
from drydock.cli.verb import Verb
from drydock.model.shared_options import AdvisoryOptions, JsonOption, PlatformOption


class AuditOptions(AdvisoryOptions, PlatformOption, JsonOption):
    """What is audited."""

    target: str = ""
    """row, alias or accelerator; --advisories alone covers every variant"""


@Verb
def audit_row(options: AuditOptions) -> None:
    """Search an image for secrets, build tools, unneeded privileges and writable paths, or for vulnerabilities."""
    from drydock.build.build_job import BuildOptions, prepare_job
    from drydock.examine import audit
    from drydock.examine.advisories.advisory_record import format_advisories
    from drydock.examine.advisories.advisory_search import choose_database, look_up, raise_if_found, read_pinned

    if options.advisories or options.database:
        pinned = read_pinned(here(), choose_variants(options.target))
        advisories = look_up(pinned, choose_database(options.database), options.ignore)
        write_result(advisories, format_advisories(advisories), json=options.json)
        raise_if_found(advisories)
        return
    target = require_target("audit", options.target, "--advisories alone covers every variant")
    audited = audit.audit_job(prepare_job(here(), target, BuildOptions(platform=options.platform or None)))
    write_result(audited, audit.format_audit(audited), json=options.json)
    audit.enforce_hardening(audited)
