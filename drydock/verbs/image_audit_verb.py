"""The verb `image audit`."""

from __future__ import annotations

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.model.shared_options import AdvisoryOptions, JsonOption, TrustOptions


class ImageAuditOptions(AdvisoryOptions, TrustOptions, JsonOption):
    """Which image in a registry is audited, and whose signatures count."""

    reference: str
    """HOST/REPOSITORY[:TAG][@DIGEST]; with --advisories, what its attached bill of materials lists"""
    platform: str = ""
    """target platform, such as linux/arm64 [default: each]"""
    unsigned: bool = False
    """check no signature, only to look; the documents may come from anyone"""


@Verb
def audit_image(options: ImageAuditOptions) -> None:
    """Search an image in a registry for secrets, build tools, privileges and writable paths, or for vulnerabilities."""
    from drydock.examine import examine_tasks

    trusted = examine_tasks.ReferenceOptions(options.signers, options.unsigned, options.insecure, options.platform)
    if options.advisories or options.database:
        words = (options.reference, trusted, options.database, options.ignore)
        examine_tasks.reference_advisories(here(), *words, json=options.json)
    else:
        examine_tasks.audit_reference(here(), options.reference, trusted, json=options.json)
