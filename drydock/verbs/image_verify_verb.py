"""The verb `image verify`."""

from __future__ import annotations

from drydock.cli.task_helpers import here, write_result
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
    from drydock.attest.cosign import trust_of
    from drydock.examine import verify_published
    from drydock.examine.remote_image import refuse_row_name
    from drydock.examine.signatures import require_trust
    from drydock.examine.tag_binding import choose_tag_age

    options.check_statement()
    tag_age = choose_tag_age(options.reference, options.max_age, with_statement=bool(options.statement))
    trust = trust_of(options)
    refuse_row_name(here(), options.reference)
    require_trust(trust, "verify", unsigned=options.unsigned)
    settings = verify_published.VerifyOptions(
        trust, not options.registry_only, options.builder, options.mirror_of, tag_age, unsigned=options.unsigned
    )
    trusted = verify_published.verify_reference(here(), options.reference, settings)
    if not options.statement:
        write_result(trusted, verify_published.format_trusted(trusted), json=options.json)
        return
    from drydock.prove import served_statement

    shown = served_statement.verify_image_statement(
        here(), trusted, options.statement, trust, options.root, options.max_age
    )
    write_output(served_statement.format_shown_statement(shown, trusted, json=options.json))
