"""Verbs that show whether an image is to be trusted: verify, audit, and those of an image in a registry."""

from __future__ import annotations

from typing import Literal

from drydock.cli.options import (
    AdvisoryOptions,
    BuilderOption,
    InsecureOption,
    JsonOption,
    PlatformOption,
    TrustOptions,
    Verb,
    VerbOptions,
    VerboseOption,
)
from drydock.cli.task_helpers import choose_variants, here, require_target
from drydock.core.console import write_output
from drydock.core.errors import InputError
from drydock.core.files import format_json
from drydock.model.record import dump_record


class StatementOptions(VerbOptions):
    """What `prove` saw of the image."""

    statement: str = ""
    """signed file that `prove` wrote: check that it is about this image, and show what it says"""
    root: str = ""
    """with --statement: recorded host (facts --record host.json) that it must be about"""
    max_age: int = 0
    """refuse a channel that was last published, and with --statement a statement that ended, more days ago than this"""

    def check_statement(self) -> None:
        """Raise InputError for a host that nothing is compared with, or an age that cannot be."""
        if self.root and not self.statement:
            raise InputError("--root: requires --statement, which is compared with the host")
        if self.max_age < 0:
            raise InputError(f"--max-age {self.max_age}: expected a number of days, 1 or more")


class RebuildOptions(StatementOptions, BuilderOption, VerboseOption, JsonOption):
    """How a row is built again."""

    target: str
    """variant id, alias or accelerator to build again and compare"""
    record: bool = False
    """if both builds have the same digest, write it into the lock"""
    from_foundation: bool = False
    """do not build the kept foundation again, if it has the lock's digest"""
    verify_key: str = ""
    """with --statement: accept a signature made with this public key"""

    def check_statement(self) -> None:
        """Raise InputError for options of one of the two that are given with the other."""
        super().check_statement()
        if self.verify_key and not self.statement:
            raise InputError("--verify-key: requires --statement; `image verify` checks an image in a registry")
        if self.max_age and not self.statement:
            raise InputError("--max-age: requires --statement; `image verify` compares the age of a channel")
        if self.record and self.statement:
            raise InputError("--record and --statement exclude each other: a statement is read, and nothing is built")


@Verb
def rebuild_row(options: RebuildOptions) -> None:
    """Build again without cache or network and compare the digests, or verify what `prove` saw."""
    from drydock.build import rebuild
    from drydock.build.build_job import prepare_job

    options.check_statement()
    if options.statement:
        _print_row_statement(options)
        return
    job = prepare_job(here(), options.target)
    builder = options.builder or None
    verified = rebuild.verify_build(
        job, builder=builder, recording=options.record, from_foundation=options.from_foundation
    )
    write_output(format_json(dump_record(verified)) if options.json else f"{verified.first}\n{verified.second}\n")
    rebuild.settle_verification(job, verified, recording=options.record, builder=builder)


def _print_row_statement(options: RebuildOptions) -> None:
    """Print what `prove` saw of the image that a row's lock or proof records."""
    from drydock.prove import served_statement

    words = (options.target, options.statement, options.verify_key, options.root, options.max_age)
    shown = served_statement.verify_row_statement(here(), *words)
    write_output(served_statement.format_shown_statement(shown, json=options.json))


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


class ImageOptions(InsecureOption, JsonOption):
    """An image in a registry."""

    reference: str
    """HOST/REPOSITORY[:TAG][@DIGEST]"""


class ImageVerifyOptions(StatementOptions, TrustOptions, BuilderOption, VerboseOption, JsonOption):
    """How an image in a registry is verified."""

    reference: str
    """HOST/REPOSITORY[:TAG][@DIGEST]: its blobs, signatures and attestations are verified, and it is rebuilt"""
    registry_only: bool = False
    """do not rebuild the image"""
    mirror_of: str = ""
    """HOST/REPOSITORY that the image was published to, if this is a mirror of it"""
    unsigned: bool = False
    """check no signature, only to look; the documents may come from anyone"""


@Verb
def verify_image(options: ImageVerifyOptions) -> None:
    """Verify an image in a registry: blobs, signatures, attestations, and a rebuild that gives the same digest."""
    from drydock.examine import examine_tasks

    options.check_statement()
    tag_age = examine_tasks.choose_tag_age(options.reference, options.max_age, with_statement=bool(options.statement))
    settings = examine_tasks.verify_options(
        options.signers,
        options.builder,
        rebuild=not options.registry_only,
        insecure=options.insecure,
        mirror_of=options.mirror_of,
        max_age=tag_age,
        unsigned=options.unsigned,
    )
    if not options.statement:
        write_output(examine_tasks.report_verification(here(), options.reference, settings, json=options.json))
        return
    from drydock.prove import served_statement

    trusted = examine_tasks.verify_published_image(here(), options.reference, settings)
    words = (options.statement, settings.trust, options.root, options.max_age)
    shown = served_statement.verify_image_statement(here(), trusted, *words)
    write_output(served_statement.format_shown_statement(shown, trusted, json=options.json))


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


@Verb
def inspect_image(options: ImageOptions) -> None:
    """Show the contents, age, variant and attestations of an image in a registry."""
    from drydock.examine import examine_tasks

    write_output(
        examine_tasks.report_inspection(here(), options.reference, json=options.json, insecure=options.insecure)
    )


class ImageDiffOptions(InsecureOption, JsonOption):
    """Two images in registries."""

    old: str
    """HOST/REPOSITORY[:TAG][@DIGEST] of the older image"""
    new: str
    """HOST/REPOSITORY[:TAG][@DIGEST] of the newer image"""
    platform: str = ""
    """platform to compare [default: first in common]"""


@Verb
def compare_images(options: ImageDiffOptions) -> None:
    """Show the differences between two images in registries: packages, files, sizes, flags."""
    from drydock.examine import examine_tasks

    compared = (options.old, options.new, options.platform)
    write_output(examine_tasks.report_differences(here(), *compared, json=options.json, insecure=options.insecure))


class PolicyOptions(VerbOptions):
    """Which policy is printed, and what it admits."""

    kind: Literal["kyverno", "sigstore"]
    """kyverno or sigstore"""
    reference: str
    """HOST/REPOSITORY of the images that the policy is about"""
    verify_key: str
    """file with the public key whose signatures are admitted"""


@Verb
def print_policy(options: PolicyOptions) -> None:
    """Print the admission policy of a cluster that admits only what a key signed."""
    from drydock.examine import admission

    write_output(admission.make_admission_policy(options.kind, options.reference, options.verify_key))
