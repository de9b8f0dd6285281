"""The verb `image verify`."""

from __future__ import annotations

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.model.shared_options import BuilderOption, JsonOption, StatementOptions, TrustOptions, VerboseOption


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
