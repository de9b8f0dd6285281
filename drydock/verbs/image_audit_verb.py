"""The verb `image audit`."""

from __future__ import annotations

from drydock.cli.task_helpers import here, write_result
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
    from drydock.attest.cosign import trust_of
    from drydock.examine import audit, remote_image
    from drydock.examine.advisories.advisory_record import format_advisories
    from drydock.examine.advisories.advisory_search import choose_database, look_up, raise_if_found
    from drydock.examine.advisories.bill import read_listed
    from drydock.examine.signatures import Signatures, require_trust
    from drydock.oci.reference import parse_reference

    remote_image.refuse_row_name(here(), options.reference)
    trust = trust_of(options)
    require_trust(trust, "audit", unsigned=options.unsigned)
    signatures = Signatures(trust, parse_reference(options.reference))
    image = remote_image.open_image(options.reference, insecure=options.insecure, accept=signatures.check_image)
    platforms = remote_image.choose_platforms(image, options.platform)
    signatures.check_platforms(image, platforms)
    if options.advisories or options.database:
        pinned = read_listed(image, platforms, signatures)
        advisories = look_up(pinned, choose_database(options.database), options.ignore)
        write_result(advisories, format_advisories(advisories), json=options.json)
        raise_if_found(advisories)
        return
    audits = [audit.examine_published(here(), image, platform) for platform in platforms]
    text = "".join(map(audit.format_audit, audits))
    write_result({"images": audits}, text, json=options.json)
    for audited in audits:
        audit.enforce_hardening(audited)
