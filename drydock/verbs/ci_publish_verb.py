"""The verb `ci publish`."""

from __future__ import annotations

from drydock.cli.task_helpers import foundations_of, here, write_result
from drydock.cli.verb import Verb
from drydock.model.shared_options import DryRunOption, JsonOption, RowOption
from drydock.verbs.publish_verb import PublishOptions, publish_row


class CiPublishOptions(DryRunOption, RowOption, JsonOption):
    """What a CI job publishes."""

    registry: str
    """host and path of the repositories"""
    ref: str
    """refs/heads/main or refs/tags/vN.N.N; decides the tags"""
    sign_key: str = ""
    """sign with this cosign key [default: DRYDOCK_COSIGN_KEY, else keyless]"""


@Verb
def publish_from_ci(options: CiPublishOptions) -> None:
    """Log in with credentials of the environment, publish and sign the built image, and push its foundation."""
    from drydock.ci import publishing
    from drydock.publish import push

    release, channel = publishing.tags_of(options.ref)
    publishing.login_to_registry(options.registry)
    signing = publishing.choose_ci_signing(options.sign_key)
    publish_options = vars(signing) | {"quiet": options.quiet, "dry_run": options.dry_run}
    what = PublishOptions(target=options.target, release=release, channel=channel, **publish_options)
    published = publish_row(here(), options.registry.lower(), what)
    foundations = foundations_of("")
    if foundations and not options.dry_run:
        publishing.push_foundation(here(), options.target, foundations, options.sign_key)
    write_result(published, push.format_published_image(published), json=options.json)
