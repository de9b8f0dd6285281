"""The verb `publish`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from drydock.cli.task_helpers import here, registry_of, write_result
from drydock.cli.verb import Verb
from drydock.core.errors import InputError
from drydock.core.project import Project
from drydock.model.shared_options import InsecureOption, JsonOption, RowOption, SignOptions

if TYPE_CHECKING:
    from drydock.publish.push import Published

LONGEST = 36500
"""Days after which a tag may expire."""


class PublishOptions(RowOption, SignOptions, InsecureOption, JsonOption):
    """What is published, where, and how it is signed."""

    registry: str = ""
    """host and path of the repositories, such as ghcr.io/acme [default: drydock.yaml's]"""
    release: str = ""
    """version such as 1.4.0, for tags that never move"""
    channel: str = ""
    """name for tags that move [default: edge, unless --release is given]"""
    dry_run: bool = False
    """print what would be pushed and tagged; change nothing"""
    signing_config: str = ""
    """signing config file for --keyless (cosign signing-config create)"""
    expires: int = 0
    """number of days after which `image verify` refuses the tags [default: never]"""
    allow_rollback: bool = False
    """let a channel move to an older release"""
    signature_tags: bool = False
    """with --sign-key: also write signatures as tags sha256-….sig, which admission policies read"""

    def check(self) -> None:
        """Raise InputError for options that do not go together."""
        if self.signing_config and not self.keyless:
            raise InputError("--signing-config requires --sign-keyless")
        if self.signature_tags and not self.sign_key:
            raise InputError("--signature-tags requires --sign-key")
        if self.expires > LONGEST:
            raise InputError(f"--expires {self.expires}: expected a number of days, at most {LONGEST}")


@Verb
def publish_images(options: PublishOptions) -> None:
    """Push the built images and their attestations by digest, then the tags."""
    from drydock.publish import push

    published = publish_row(here(), registry_of(options.registry), options)
    write_result(published, push.format_published_image(published), json=options.json)


def publish_row(project: Project, registry: str, options: PublishOptions) -> Published:
    """Push the built images of a row with their documents, sign both, and set the tags last: each names a whole image.

    Raises InputError, TagError, RegistryError or CredentialsError; LicenceError or UntrustedError if the image may not
    be published: its digest must be recorded for the current inputs.
    """
    from drydock.attest import cosign
    from drydock.config.matrix import find_variant, read_matrix
    from drydock.publish import bindings, push

    started = time.monotonic()
    signer = cosign.choose_signer(options, insecure=options.insecure, signing_config=options.signing_config)
    options.check()
    variant = find_variant(read_matrix(project), options.target)
    repository = push.open_row_repository(registry, variant, insecure=options.insecure)
    tags = push.name_tags(variant, options.release, options.channel)
    cosign.require_signer(signer)

    layouts = push.list_built_layouts(project, variant)
    push.require_recorded(layouts)
    image = push.combine_manifests(layouts)
    published_tags = [repository.plan_tag(image.digest, tag) for tag in tags]
    earlier = bindings.read_channel_bindings(repository, published_tags, signer)
    subject = push.name_subject(repository, layouts, image)
    terms = bindings.Terms(options.release, options.expires, options.allow_rollback)
    bound = [bindings.bind_tag(subject, tag, terms, earlier) for tag in tags]
    # Refuses an image whose licences forbid it, and one whose statements do not fit.
    documents = push.make_row_documents(repository.where, layouts, image, bound)

    if options.dry_run:
        pushed = push.plan_blobs(repository, layouts)
    else:
        pushed = push.push_blobs(repository, layouts)
        push.push_manifests(repository, layouts, image)
        manifests = [*(layout.manifest for layout in layouts), image]
        push.attach_documents(repository, manifests, documents, signer, signature_tags=options.signature_tags)
        published_tags = [repository.tag(image, tag) for tag in tags]
    return push.Published(
        variant=variant.id,
        image=str(repository.where.at(image.digest)),
        digest=image.digest,
        platforms=subject.platforms,
        tags=tuple(published_tags),
        blobs={how: sum(blob.how == how for blob in pushed) for how in ("uploaded", "mounted", "present")},
        bytes_sent=sum(blob.size for blob in pushed if blob.how == "uploaded"),
        referrers={digest: tuple(item.name for item in items) for digest, items in documents.items()},
        signed=signer is not None and not options.dry_run,
        dry_run=options.dry_run,
        seconds=round(time.monotonic() - started, 1),
    )
