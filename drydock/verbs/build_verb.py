"""The verb `build`."""

from __future__ import annotations

from drydock.cli.task_helpers import foundations_of, here
from drydock.cli.verb import Verb
from drydock.model.shared_options import (
    BuilderOption,
    ContextOption,
    JsonOption,
    LockedOptions,
    NoCacheOption,
    OfflineOption,
    PlatformOption,
    TrustOptions,
    VerboseOption,
)


class BuildVerbOptions(
    LockedOptions,
    ContextOption,
    PlatformOption,
    OfflineOption,
    NoCacheOption,
    BuilderOption,
    TrustOptions,
    VerboseOption,
    JsonOption,
):
    """How to build rows."""

    TAKES_AUTO = True
    WORDS = ("target",)
    target: tuple[str, ...] = ()
    """variant id, alias or accelerator; auto: what fits this machine's devices and driver; several, with commas between
    or repeated, are built at once"""
    root: str = ""
    """with --target auto: fit a recorded host (facts --record host.json) instead of this machine"""
    all_locked: bool = False
    """build each row that is locked, builds without network and fits the free disk"""
    changed_since: str | None = None
    """build each of these rows whose inputs changed since this commit, tag or branch"""
    builder: str = ""
    """use this buildx builder instead of the engine's default; several, with commas between, share the rows"""
    stand_ins: bool = False
    """replace what only vendors have by stubs: nothing is downloaded but Debian packages and uv"""
    foundations: str = ""
    """HOST/REPOSITORY to take the foundation from, if its digest is the lock's [default: drydock.yaml's]"""
    verify_key: str = ""
    """also accept foundations signed with this public key"""
    identity: str = ""
    """also accept foundations signed by this identity; requires --issuer"""


@Verb
def build_rows(options: BuildVerbOptions) -> None:
    """Build an image without network, load it into the engine and print its digest. Inputs without a pin get one."""
    from drydock.build import build_job
    from drydock.inputs import overrides
    from drydock.projects import build_verb

    settings = build_job.BuildOptions(
        options.platform or None, options.offline, overrides.parse_contexts(options.context)
    )
    pull = build_verb.make_foundation_pull(
        foundations_of(options.foundations), options.signers, insecure=options.insecure
    )
    builders = build_verb.parse_builders(options.builder)
    how = build_verb.RowOptions(
        settings, builders, options.no_cache, options.locked, options.supplied, options.stand_ins, pull
    )
    which = build_verb.Which(options.target, options.root, options.all_locked, options.changed_since)
    build_verb.build_rows(here(), which, how, json=options.json)
