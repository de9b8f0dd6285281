"""The verb `publish`."""

from __future__ import annotations

from drydock.cli.task_helpers import here, registry_of
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.files import format_json
from drydock.model.record import dump_record
from drydock.model.shared_options import InsecureOption, JsonOption, RowOption, SignOptions


class PublishVerbOptions(RowOption, SignOptions, InsecureOption, JsonOption):
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


@Verb
def publish_images(options: PublishVerbOptions) -> None:
    """Push the built images and their attestations by digest, then the tags."""
    from drydock.publish import push

    settings = push.PublishOptions(
        registry_of(options.registry),
        options.release,
        options.channel,
        options.dry_run,
        options.insecure,
        options.sign_key,
        options.keyless,
        options.signing_config,
        options.expires,
        options.allow_rollback,
        options.signature_tags,
    )
    published = push.publish_image(here(), options.target, settings)
    write_output(format_json(dump_record(published)) if options.json else push.format_published_image(published))
