"""Verbs that change what is in an image: lock, outdated, bump, recipes, project; and a project's own rows."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from drydock.cli.options import (
    CheckOption,
    ContextOption,
    InsecureOption,
    JsonOption,
    PlatformOption,
    RowOption,
    RowOrAllOption,
    SignOptions,
    SuppliedOption,
    TrustOptions,
    Verb,
)
from drydock.cli.task_helpers import choose_variants, here, report_checked, report_written
from drydock.core.console import spell_commands, write_output
from drydock.core.files import format_json
from drydock.model.record import dump_record


class LockVerbOptions(RowOrAllOption, CheckOption, ContextOption, SuppliedOption, JsonOption):
    """Which locks are made, and what may move."""

    upgrade: bool = False
    """take the newest of everything that the stack allows; without it, valid pins stay"""
    upgrade_package: tuple[str, ...] = ()
    """take the newest of one distribution, of one source, or of `base`; repeatable"""


@Verb
def lock_rows(options: LockVerbOptions) -> None:
    """Pin all inputs of an image by hash in images/VARIANT/lock.json. Valid pins stay."""
    from drydock.lock import lockfile

    if options.check:
        lockfile.read_current(here(), choose_variants(options.target))
        report_checked(json=options.json)
        return
    from drydock.projects import locking

    settings = locking.parse_lock_options(
        options.target, options.context, options.supplied, options.upgrade_package, every=options.upgrade
    )
    locking.lock_variants(here(), choose_variants(options.target), settings, json=options.json)


class LockDiffOptions(JsonOption):
    """Two locks."""

    old: str
    """variant, lock file or REVISION:VARIANT"""
    new: str
    """variant, lock file or REVISION:VARIANT"""


@Verb
def compare_locks(options: LockDiffOptions) -> None:
    """Show the differences between two locks: packages, versions, sizes."""
    from drydock.lock.lock_diff import diff_locks

    write_output(diff_locks(here(), options.old, options.new, json=options.json))


class OutdatedOptions(RowOrAllOption, JsonOption):
    """Which locks are compared with their sources."""


@Verb
def list_outdated(options: OutdatedOptions) -> None:
    """List what a new lock would change, and newer versions outside the stack's bounds. Writes nothing."""
    from drydock.lock.drift import drift_tasks as drift

    drift.print_outdated_pins(here(), choose_variants(options.target), json=options.json)


class BumpOptions(RowOption, JsonOption):
    """Which row takes which version."""

    vllm: str = ""
    """first write this version of vLLM into the stack, such as 0.32.1"""


@Verb
def bump_row(options: BumpOptions) -> None:
    """Lock and render a variant and those that inherit its stack, and write docs and CI files: after a new version."""
    from drydock.projects import update

    written, errors = update.update_row(here(), options.target, options.vllm)
    report_written(written, json=options.json)
    update.raise_all_errors(errors)


class RecipesOptions(JsonOption):
    """Where recipes are taken from."""

    from_: str = ""
    """REPOSITORY@COMMIT, a FOLDER of recipes, or FOLDER@COMMIT for a clone [default: drydock.yaml's]"""
    root: str = ""
    """folder of recorded hosts whose plans are compared [default: those that come with drydock]"""


@Verb
def take_recipes(options: RecipesOptions) -> None:
    """Take the newest published recipes of vLLM, and show which plans of recorded hosts change."""
    from drydock.projects import recipes_update

    update = recipes_update.update_recipes(here(), options.from_, options.root)
    write_output(
        format_json(recipes_update.dump_recipes_update(update, here()))
        if options.json
        else recipes_update.format_update(update, here())
    )


class AdoptVerbOptions(SignOptions, PlatformOption, TrustOptions, JsonOption):
    """Which image is adopted, and what it does not say of itself."""

    WORDS = ("to",)
    image: str
    """image of others, such as docker.io/vllm/vllm-openai:v0.33.0; a tag is pinned by its digest"""
    to: str = ""
    """REGISTRY/NAME, with or without :TAG, that the adopted image is written to [default: as before]"""
    load: bool = False
    """put the image into the engine too; without --to only there"""
    from_engine: bool = False
    """the image is in this machine's engine, and perhaps in no registry; with --load"""
    facts: str = ""
    """JSON file that says what is in the image, as --json prints it; its layers are not read then"""
    row: str = ""
    """id of its row in matrix.yaml [default: the image's name and tag]"""
    accelerator: str = ""
    """which accelerator its vLLM is for, such as cuda [default: as its variables say]"""
    vllm: str = ""
    """its vLLM's version, such as 0.33.0 [default: as VLLM_VERSION in it says]"""
    python: str = ""
    """path of the Python in it that has vLLM [default: that of its VIRTUAL_ENV]"""
    python_version: str = ""
    """version of that Python, such as 3.12 [default: as PYTHON_VERSION in it says]"""
    release: str = ""
    """its distribution, such as ubuntu:22.04 [default: as its labels say]"""
    glibc: str = ""
    """version of its glibc, for a distribution that drydock does not know"""
    read_layers: bool = False
    """read the image's layers as a stream, to see what is in it; stores nothing"""
    platform: str = ""
    """only this platform, such as linux/arm64 [default: each of the image's]"""
    check: bool = False
    """write nothing; fail unless the image in the registry is the one that this would write"""


@Verb
def adopt_image(options: AdoptVerbOptions) -> None:
    """Make an image of others one of drydock's in a registry: two more layers and a row. No layer of it is pulled."""
    from drydock.attest import cosign
    from drydock.projects import adopt_verb
    from drydock.publish import adopt as adopted_images
    from drydock.publish.base_image import BaseFacts
    from drydock.publish.push import PublishOptions

    facts = BaseFacts(options.vllm, options.python_version, options.python, options.release, options.accelerator)
    signed = PublishOptions("", insecure=options.insecure, key=options.sign_key, keyless=options.keyless)
    settings = adopt_verb.AdoptOptions(
        options.image,
        options.to,
        options.row,
        facts,
        glibc=options.glibc,
        platform=options.platform,
        read_layers=options.read_layers,
        facts_file=options.facts,
        load=options.load,
        from_engine=options.from_engine,
        trust=cosign.trust_of(options.signers, insecure=options.insecure),
        check=options.check,
        publish=signed,
    )
    adopted = adopt_verb.adopt_image(here(), settings)
    write_output(format_json(dump_record(adopted)) if options.json else adopted_images.format_adopted(adopted))


class ProjectInitOptions(JsonOption):
    """Where a project is made."""

    folder: str
    """folder of the project, which is made if it is missing"""
    ci: Literal["github", "gitlab", "none"] = "github"
    """CI files: github, gitlab or none"""


@Verb
def make_project(options: ProjectInitOptions) -> None:
    """Write a small project of your own, whose rows and settings lie over drydock's."""
    from drydock.projects import init_verb

    project = init_verb.init_project(Path(options.folder), options.ci)
    if options.json:
        files = [str(path) for path in project.files]
        write_output(format_json({"wrote": files, "next": [*map(spell_commands, project.commands)]}))
    else:
        write_output(spell_commands(init_verb.report_project(project)))


class ProjectUpgradeOptions(JsonOption):
    """What an upgrade does."""

    write: bool = False
    """write it: locks, Dockerfiles and upgrade.json of these rows"""


@Verb
def upgrade_project(options: ProjectUpgradeOptions) -> None:
    """Show what this drydock changes in the rows of a project that an older one made: pins, Dockerfile, plans."""
    from drydock.projects import upgrade

    upgrade.upgrade_project(here(), write=options.write, json=options.json)


class ProjectPushOptions(SignOptions, InsecureOption, JsonOption):
    """Where a project is published."""

    name: str
    """REGISTRY/NAME, with or without :TAG"""


@Verb
def push_project(options: ProjectPushOptions) -> None:
    """Publish your project's rows and files, and print the line with which other projects take them by digest."""
    from drydock.publish import project_push
    from drydock.publish.push import PublishOptions

    signing = PublishOptions("", insecure=options.insecure, key=options.sign_key, keyless=options.keyless)
    pushed = project_push.push_project(here(), options.name, signing)
    write_output(format_json(dump_record(pushed)) if options.json else project_push.format_from_line(pushed))
