"""Implement the verbs about published images, `inspect`, `diff`, `image verify`, and `audit --advisories`. IO.

The modules behind them are imported in the functions: they import spdx-tools, which takes a few tenths of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from drydock.core.console import write_output
from drydock.core.files import format_json
from drydock.core.project import Project
from drydock.model.record import dump_record

if TYPE_CHECKING:
    from drydock.build.build_job import Job
    from drydock.examine.remote_image import Image
    from drydock.examine.signatures import Signatures
    from drydock.examine.verify_published import Trusted, VerifyOptions
    from drydock.model.variant import Variant


def report_inspection(project: Project, reference: str, *, json: bool = False, insecure: bool = False) -> str:
    """Return the contents of an image and its attached documents."""
    from drydock.examine import image
    from drydock.examine.remote_image import refuse_row_name

    refuse_row_name(project, reference)
    inspected = image.inspect_image(reference, insecure=insecure)
    return format_json(dump_record(inspected)) if json else image.format_inspected(inspected)


def print_lock_advisories(
    project: Project, variants: Sequence[Variant], databases: Sequence[str], ignored: Sequence[str], *, json: bool
) -> None:
    """Print the known vulnerabilities of what locks pin. Raises AdvisoryError or NotAskedError."""
    from drydock.examine.advisories import advisory_search

    advisory_search.audit_pinned(advisory_search.read_pinned(project, variants), databases, ignored, json=json)


class ReferenceOptions(NamedTuple):
    """Which image of a reference `audit` reads, and whose signatures count."""

    trust_in: Sequence[str]
    """Key, identity, issuer and trusted root."""
    unsigned: bool
    insecure: bool
    platform: str
    """Empty for each."""


def audit_build(job: Job, *, json: bool) -> None:
    """Print the audit of a built image. Raises InputError if it is not built, HardeningError for findings."""
    from drydock.examine import audit

    audited = audit.audit_job(job)
    write_output(format_json(dump_record(audited)) if json else audit.format_audit(audited))
    audit.enforce_hardening(audited)


def audit_reference(project: Project, reference: str, options: ReferenceOptions, *, json: bool) -> None:
    """Print the audit of an image in a registry, as a list for its platforms if as JSON.

    Raises InputError, RegistryError, UntrustedError or HardeningError.
    """
    from drydock.examine import audit

    image, platforms, _ = _open_trusted(project, reference, options)
    results = [audit.examine_published(project, image, platform) for platform in platforms]
    text = "".join(map(audit.format_audit, results))
    write_output(format_json({"images": [dump_record(result) for result in results]}) if json else text)
    for result in results:
        audit.enforce_hardening(result)


def reference_advisories(
    project: Project,
    reference: str,
    options: ReferenceOptions,
    databases: Sequence[str],
    ignored: Sequence[str],
    *,
    json: bool,
) -> None:
    """Print the known vulnerabilities of what the bill of materials of an image in a registry lists.

    Raises InputError, RegistryError, UntrustedError, AdvisoryError or NotAskedError.
    """
    from drydock.examine.advisories import advisory_search, bill

    advisory_search.audit_pinned(
        bill.read_listed(*_open_trusted(project, reference, options)), databases, ignored, json=json
    )


def _open_trusted(
    project: Project, reference: str, options: ReferenceOptions
) -> tuple[Image, tuple[str, ...], Signatures]:
    """Return an image whose signatures are valid, and those of the chosen platforms."""
    from drydock.attest.cosign import trust_of
    from drydock.examine.remote_image import choose_platforms, open_image, refuse_row_name
    from drydock.examine.signatures import Signatures, require_trust
    from drydock.oci.reference import parse_reference

    refuse_row_name(project, reference)
    trust = trust_of(options.trust_in, insecure=options.insecure)
    require_trust(trust, "audit", unsigned=options.unsigned)
    signatures = Signatures(trust, parse_reference(reference))
    image = open_image(reference, insecure=options.insecure, accept=signatures.check_image)
    platforms = choose_platforms(image, options.platform)
    for platform in platforms:
        if image.platforms[platform].digest != image.digest:
            signatures.check(image.where.at(image.platforms[platform].digest), platform)
    return image, platforms, signatures


def report_differences(
    project: Project, old: str, new: str, platform: str = "", *, json: bool = False, insecure: bool = False
) -> str:
    """Return the changes between two images."""
    from drydock.examine import image_diff
    from drydock.examine.remote_image import refuse_row_name

    for reference in (old, new):
        refuse_row_name(project, reference)
    difference = image_diff.diff_images(old, new, platform=platform, insecure=insecure)
    return format_json(dump_record(difference)) if json else image_diff.format_image_diff(difference)


def verify_options(
    trust_in: Sequence[str],
    builder: str,
    *,
    rebuild: bool,
    insecure: bool,
    mirror_of: str = "",
    max_age: int = 0,
    unsigned: bool = False,
) -> VerifyOptions:
    """Return the options of a verification; `trust_in` is key, identity, issuer and trusted root.

    Raises InputError if options that require each other are incomplete.
    """
    from drydock.attest.cosign import trust_of
    from drydock.examine import verify_published

    trust = trust_of(trust_in, insecure=insecure)
    return verify_published.VerifyOptions(trust, rebuild, builder, mirror_of, max_age, unsigned=unsigned)


def choose_tag_age(reference: str, max_age: int, *, with_statement: bool) -> int:
    """Return the age that the tag may have: with a statement, which has an age too, none if the tag has no age."""
    from drydock.examine.tag_binding import is_channel
    from drydock.oci.reference import parse_reference

    return max_age if not with_statement or is_channel(parse_reference(reference)) else 0


def report_verification(project: Project, reference: str, options: VerifyOptions, *, json: bool = False) -> str:
    """Return the result of a verification. Raises what `verify_published_image` does."""
    from drydock.examine import verify_published

    verified = verify_published_image(project, reference, options)
    return format_json(dump_record(verified)) if json else verify_published.format_trusted(verified)


def verify_published_image(project: Project, reference: str, options: VerifyOptions) -> Trusted:
    """Verify an image in a registry.

    Raises InputError, also if nothing says whose signatures count; UntrustedError or NotReproducibleError.
    """
    from drydock.examine import verify_published
    from drydock.examine.remote_image import refuse_row_name
    from drydock.examine.signatures import require_trust

    refuse_row_name(project, reference)
    require_trust(options.trust, "verify", unsigned=options.unsigned)
    return verify_published.verify_reference(project, reference, options)
