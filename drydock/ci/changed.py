"""Which variants changed since a commit, by which of their image's inputs, and which of them `build` takes. IO: git.

They are the inputs that `verify` and records compare: lock, Dockerfile, profile, entrypoint, tools, compression. A
comment in a stack, a test or a page changes no image; a change to the entrypoint changes every image.
"""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drydock.build.build_job import Job, choose_platform
from drydock.build.many import Outcome
from drydock.ci.ci_rows import ARCHITECTURES, HOSTED_DISK, CiRow, LeftOut, list_ci_rows
from drydock.ci.workflow import REQUIREMENTS
from drydock.config.matrix import read_matrix
from drydock.core.console import log
from drydock.core.differences import find_differences
from drydock.core.errors import DrydockError, FetchError, InputError, suggest_nearest
from drydock.core.files import measure_free_bytes
from drydock.core.paths import cache_home
from drydock.core.project import Project
from drydock.core.tar import open_tar, unpack_tar
from drydock.inputs import git
from drydock.lock import lockfile
from drydock.model.record import Record
from drydock.model.variant import Variant

FOLDERS = ("matrix.yaml", "templates", "entrypoints", "images")
"""What the checksums of drydock's own rows cover; a project is read whole, as its additions may be in any folder."""
LARGE_HINT = (
    "for a variant that needs more disk, use runners of your own: set DRYDOCK_RUNNER_AMD64 and"
    " DRYDOCK_RELEASE_RUNNER_AMD64 on GitHub, DRYDOCK_LARGE_RUNNERS on GitLab (docs/ci.md)"
)
Inputs = Mapping[str, Any]
"""What an image's digest depends on, as `Job.inputs` has it."""
NO_COMMIT = "0" * 40
"""What CI servers pass as the parent of the first commit."""


class ChangedVariant(Record):
    """A variant to build, and why."""

    variant: str
    platform: str
    arch: str
    why: str


class Changes(Record):
    """The output of `ci changed --json`."""

    since: str
    changed: tuple[ChangedVariant, ...]
    unchanged: tuple[str, ...]
    left_out: tuple[LeftOut, ...]


def compare_with_commit(
    project: Project, variants: Sequence[Variant], since: str, large: Collection[str] = tuple(ARCHITECTURES.values())
) -> Changes:
    """Compare every variant that CI builds with its state at a commit.

    A changed variant is left out if it does not fit a hosted runner and its architecture is not in `large`.
    """
    built, left_out = list_ci_rows(project, variants)
    variants_by_id = {variant.id: variant for variant in variants}
    try:
        old, reason = _read_inputs_at(project, since), "new, or its earlier inputs are incomplete"
    except DrydockError as error:
        old, reason = {}, f"cannot compare with an earlier commit: {error.problems[0]}"
    new = {row.variant: collect_row_inputs(project, variants_by_id[row.variant], row) for row in built}
    row_reasons = [(row, explain_rebuild(old.get(row.variant), new[row.variant], reason)) for row in built]
    too_large = [row for row, text in row_reasons if text and not (row.fits or row.arch in large)]
    return Changes(
        since=since,
        changed=tuple(
            ChangedVariant(variant=row.variant, platform=row.platform, arch=row.arch, why=text)
            for row, text in row_reasons
            if text and row not in too_large
        ),
        unchanged=tuple(row.variant for row, text in row_reasons if not text),
        left_out=(*left_out, *(LeftOut(variant=row.variant, why=_too_large(row)) for row in too_large)),
    )


def _too_large(row: CiRow) -> str:
    return f"disk: it needs {row.needs}, and a hosted runner has {HOSTED_DISK / 1e9:.0f} GB"


def parse_architectures(text: str) -> Collection[str]:
    """Return the architectures in a text. Raises InputError for an unknown one."""
    architectures = text.replace(",", " ").split()
    for unknown in sorted(set(architectures) - set(ARCHITECTURES.values())):
        raise InputError(f"--large {unknown}: unknown", hint=suggest_nearest(unknown, ARCHITECTURES.values()))
    return architectures


SHOWN_INPUTS = 4
"""Inputs that a reason names; an edit of many files is known by the first ones."""


def explain_rebuild(old: Inputs | None, new: Inputs, unknown: str) -> str:
    """Return why a variant must be built, by the names of its changed inputs; empty if it has not changed. Pure."""
    if not old:
        return unknown
    names = [name for name, _, _ in find_differences(flatten_inputs(old), flatten_inputs(new))]
    more = f" and {len(names) - SHOWN_INPUTS} more" if len(names) > SHOWN_INPUTS else ""
    return f"inputs changed: {', '.join(names[:SHOWN_INPUTS])}{more}" if names else ""


def flatten_inputs(inputs: Inputs) -> dict[str, Any]:
    """Return the inputs of an image by name: files, parts of the lock (pins.layers), settings. Pure."""
    pins = {f"pins.{name}": value for name, value in inputs["pins"].items()}
    return {**inputs, **inputs["files"], **pins, "files": None, "pins": None}


def collect_row_inputs(project: Project, variant: Variant, row: CiRow) -> Inputs:
    """Return the inputs of a variant's image."""
    pins = lockfile.read_lock(lockfile.path_of_lock(project, variant.id))
    return Job(variant=variant, lock=pins, platform=row.platform, project=project).inputs


def _read_inputs_at(project: Project, since: str) -> Mapping[str, Inputs]:
    """Return variant → inputs at a commit, for variants that CI built then. Raises FetchError or InputError."""
    if since in ("", NO_COMMIT):
        raise InputError("no earlier commit was given")
    if project.below and git.in_checkout(project.root, "diff", "--name-only", since, "--", REQUIREMENTS):
        raise InputError(f"{REQUIREMENTS} changed, and with it drydock")
    with tempfile.TemporaryDirectory(prefix="drydock-since-") as folder:
        _unpack_inputs(project, since, Path(folder))
        then = replace(project, root=Path(folder))
        return dict(pair for variant in read_matrix(then) for pair in _list_old_inputs(then, variant))


def _list_old_inputs(then: Project, variant: Variant) -> list[tuple[str, Inputs]]:
    """Return one variant's inputs at the commit; none if its files were incomplete or did not match."""
    try:
        built, _ = list_ci_rows(then, [variant])
        return [(row.variant, collect_row_inputs(then, variant, row)) for row in built]
    except (DrydockError, OSError):
        return []  # so it is built, and `explain_rebuild` says so


def resolve_commit(project: Project, revision: str) -> str:
    """Return the commit of a revision; that of none, which CI servers pass for a first commit. Raises InputError."""
    if revision == NO_COMMIT:
        return revision
    try:
        whole = git.in_checkout(project.root, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
        return whole.strip()
    except FetchError as error:
        raise InputError(
            f"--changed-since {revision}: {error.problems[0]}",
            hint="name a commit, a tag or a branch that git knows here",
        ) from error


def _unpack_inputs(project: Project, since: str, folder: Path) -> None:
    """Write the inputs as they were at a commit into a folder. Raises FetchError; InputError for a link out of it."""
    there = git.in_checkout(project.root, "ls-tree", "--name-only", f"{since}^{{commit}}").split("\n")
    names = there if project.below else [name for name in FOLDERS if name in there]
    words = ("archive", "--format=tar", since, "--", *filter(None, names))
    archive = git.run_limited_git(words, "git archive", git.network_environment(os.environ), cwd=project.root)
    try:
        with open_tar(io.BytesIO(archive), "r:") as tar:
            unpack_tar(tar, folder)
    except tarfile.TarError as error:
        raise InputError(f"{since}: {error}") from error


def select_locked_rows(
    project: Project, variants: Sequence[Variant], since: str | None
) -> tuple[list[Variant], list[Outcome]]:
    """Return the locked rows, all or those that changed since a commit, and why the others were left out."""
    built, left_out = list_ci_rows(project, variants)
    reasons = {row.variant: row.why for row in left_out}
    if since is not None:
        commit = resolve_commit(project, since)
        changed_rows = {row.variant: row.why for row in compare_with_commit(project, variants, commit).changed}
        for name, why in changed_rows.items():
            log(f"{name}: {why}")
        built, reasons = tuple(row for row in built if row.variant in changed_rows), {}
    reasons |= dict(_list_too_large(built, measure_free_bytes(cache_home())))
    variants_by_id = {variant.id: variant for variant in variants}
    return [variants_by_id[row.variant] for row in built if row.variant not in reasons], [
        Outcome(variant=name, platform=choose_platform(variants_by_id[name], None), state="left out", why=why)
        for name, why in sorted(reasons.items())
    ]


def _list_too_large(built: Iterable[CiRow], free: int) -> Iterator[tuple[str, str]]:
    """Yield each row that does not fit the free disk with the smaller ones, and why."""
    for row in sorted(built, key=lambda row: row.disk or free):
        if row.disk is None or row.disk > free:
            yield row.variant, f"disk: it needs {row.needs}, and {max(free, 0) / 1e9:.0f} GB are free for it"
        else:
            free -= row.disk
