"""Verbs that change what is in an image: lock, outdated, bump, recipes, project; and a project's own rows."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from drydock.core.console import emit, spelled
from drydock.core.files import dumps
from drydock.model.record import dump
from drydock.repo.options import Check, Contexts, EachTarget, Insecure, Json, Supplied, Target, Verb
from drydock.repo.task_helpers import chosen, here, report


class LockOptions(EachTarget, Check, Contexts, Supplied, Json):
    """Which locks are made, and what may move."""

    upgrade: bool = False
    """take the newest of everything that the stack allows; without it, valid pins stay"""
    upgrade_package: tuple[str, ...] = ()
    """take the newest of one distribution, of one source, or of `base`; repeatable"""


@Verb
def lock_rows(options: LockOptions) -> None:
    """Pin all inputs of an image by hash in images/VARIANT/lock.json. Valid pins stay."""
    from drydock.lock import lockfile

    if options.check:
        lockfile.read_current(here(), chosen(options.target))
        return
    from drydock.repo import locking

    settings = locking.options(
        options.target, options.context, options.supplied, options.upgrade_package, every=options.upgrade
    )
    locking.lock(here(), chosen(options.target), settings, json=options.json)


class LockDiffOptions(Json):
    """Two locks."""

    old: str
    """variant, lock file or REVISION:VARIANT"""
    new: str
    """variant, lock file or REVISION:VARIANT"""


@Verb
def compare_locks(options: LockDiffOptions) -> None:
    """Show the differences between two locks: packages, versions, sizes."""
    from drydock.lock.lock_diff import diff

    emit(diff(here(), options.old, options.new, json=options.json))


class OutdatedOptions(EachTarget, Json):
    """Which locks are compared with their sources."""


@Verb
def list_outdated(options: OutdatedOptions) -> None:
    """List what a new lock would change, and newer versions outside the stack's bounds. Writes nothing."""
    from drydock.lock.drift import tasks as drift

    drift.outdated(here(), chosen(options.target), json=options.json)


class BumpOptions(Target, Json):
    """Which row takes which version."""

    vllm: str = ""
    """first write this version of vLLM into the stack, such as 0.32.1"""


@Verb
def bump_row(options: BumpOptions) -> None:
    """Lock and render a variant and those that inherit its stack, and write docs and CI files: after a new version."""
    from drydock.repo import update

    written, errors = update.update(here(), options.target, options.vllm)
    report(written, json=options.json)
    update.settle(errors)


class RecipesOptions(Json):
    """Where recipes are taken from."""

    from_: str = ""
    """REPOSITORY@COMMIT, a FOLDER of recipes, or FOLDER@COMMIT for a clone [default: drydock.yaml's]"""
    root: str = ""
    """folder of recorded hosts whose plans are compared [default: those that come with drydock]"""


@Verb
def take_recipes(options: RecipesOptions) -> None:
    """Take the newest published recipes of vLLM, and show which plans of recorded hosts change."""
    from drydock.repo import recipes

    update = recipes.update_recipes(here(), options.from_, options.root)
    emit(dumps(recipes.as_json(update, here())) if options.json else recipes.format_update(update, here()))


class InitOptions(Json):
    """Where a project is made."""

    folder: str
    """folder of the project, which is made if it is missing"""
    ci: Literal["github", "gitlab", "none"] = "github"
    """CI files: github, gitlab or none"""


@Verb
def make_project(options: InitOptions) -> None:
    """Write a small project of your own, whose rows and settings lie over drydock's."""
    from drydock.repo import init

    project = init.init(Path(options.folder), options.ci)
    if options.json:
        files = [str(path) for path in project.files]
        emit(dumps({"wrote": files, "next": [*map(spelled, project.commands)]}))
    else:
        emit(spelled(init.report_project(project)))


class UpgradeOptions(Json):
    """What an upgrade does."""

    write: bool = False
    """write it: locks, Dockerfiles and upgrade.json of these rows"""


@Verb
def upgrade_project(options: UpgradeOptions) -> None:
    """Show what this drydock changes in the rows of a project that an older one made: pins, Dockerfile, plans."""
    from drydock.repo import upgrade

    upgrade.upgrade(here(), write=options.write, json=options.json)


class ProjectPushOptions(Insecure, Json):
    """Where a project is published."""

    name: str
    """REGISTRY/NAME, with or without :TAG"""


@Verb
def push_project(options: ProjectPushOptions) -> None:
    """Publish your project's rows and files, and print the line with which other projects take them by digest."""
    from drydock.publish import project

    pushed = project.push(here(), options.name, insecure=options.insecure)
    emit(dumps(dump(pushed)) if options.json else project.report(pushed))
