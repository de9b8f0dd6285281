"""Which variants changed since a commit, by the checksum of what goes into their images. IO: git.

The checksum is what `verify` and proofs go by: lock, Dockerfile, profile, entrypoint, tools, compression. A comment in
a stack, a test or a page changes no image, and a changed entrypoint changes all of them.
"""

from __future__ import annotations

import io
import json as js
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from drydock.build.job import Job
from drydock.config.matrix import find, read_matrix
from drydock.core.console import log
from drydock.core.errors import DrydockError, FetchError, InputError
from drydock.core.files import dumps
from drydock.lock import lockfile
from drydock.model.record import Record, dump
from drydock.model.variant import Variant
from drydock.repo.ci.rows import CiRow, LeftOut, rows

FOLDERS = ("matrix.yaml", "templates", "entrypoints", "images")
"""What the checksums are of."""
CHANGED, ALL = "changed", "all"
NOBODY = "0" * 40
"""What CI servers give for the commit before the first one."""


class ChangedVariant(Record):
    """A row that is to be built."""

    variant: str
    platform: str
    arch: str
    why: str


class Changes(Record):
    """What `ci.changed --json` prints."""

    since: str
    changed: tuple[ChangedVariant, ...]
    unchanged: tuple[str, ...]
    left_out: tuple[LeftOut, ...]


class Selection(NamedTuple):
    """What is asked for beside a commit."""

    target: str = ""
    """One variant of all."""
    only: str = CHANGED
    """changed, all, or a variant that is built whether it changed or not."""


def report(root: Path, since: str, asked: Selection, *, json: bool, github: bool) -> str:
    """Return what changed: variants a line each, a JSON object, or what a step of GitHub's writes into its output."""
    variants = read_matrix(root)
    one = asked.target or (asked.only if asked.only not in (CHANGED, ALL) else "")
    found = changes(root, [find(variants, one)] if one else variants, "" if asked.only != CHANGED else since)
    for row in found.changed:
        log(f"{row.variant}: {row.why}")
    if github:
        return f"variants={js.dumps([dump(row) for row in found.changed])}\n"
    return dumps(dump(found)) if json else "".join(f"{row.variant}\n" for row in found.changed)


def changes(root: Path, variants: Sequence[Variant], since: str) -> Changes:
    """Compare every variant that CI builds with how it was at a commit."""
    built, left_out = rows(root, variants)
    known = {variant.id: variant for variant in variants}
    try:
        old, reason = _at(root, since), "new, or its earlier inputs are not whole"
    except DrydockError as error:
        old, reason = {}, f"nothing is known of before: {error.problems[0]}"
    found = [(row, why(old.get(row.variant, ""), sums(root, known[row.variant], row), reason)) for row in built]
    return Changes(
        since=since,
        changed=tuple(
            ChangedVariant(variant=row.variant, platform=row.platform, arch=row.arch, why=text)
            for row, text in found
            if text
        ),
        unchanged=tuple(row.variant for row, text in found if not text),
        left_out=left_out,
    )


def why(old: str, new: str, unknown: str) -> str:
    """Say why a variant is to be built; nothing where it is what it was. Pure."""
    if old == new:
        return ""
    return f"its inputs were {old[:12]}, now {new[:12]}" if old else unknown


def sums(root: Path, variant: Variant, row: CiRow) -> str:
    """Return the checksum of all that goes into a variant's image."""
    pins = lockfile.read_lock(lockfile.path_of(root, variant.id))
    return Job(variant=variant, lock=pins, platform=row.platform, root=root).inputs_sha256


def _at(root: Path, since: str) -> Mapping[str, str]:
    """Return variant → checksum at a commit, for those that were built then. Raises FetchError or InputError."""
    if since in ("", NOBODY):
        raise InputError("no earlier commit was named")
    with tempfile.TemporaryDirectory(prefix="drydock-since-") as folder:
        _unpack(root, since, Path(folder))
        variants = read_matrix(Path(folder))
        return dict(pair for variant in variants for pair in _old(Path(folder), variant))


def _old(folder: Path, variant: Variant) -> list[tuple[str, str]]:
    """Return one variant's checksum at the commit; none where its files were not whole, or were not of one piece."""
    try:
        built, _ = rows(folder, [variant])
        return [(row.variant, sums(folder, variant, row)) for row in built]
    except (DrydockError, OSError):
        return []  # it is built then, and `why` says so


def _unpack(root: Path, since: str, folder: Path) -> None:
    """Write the inputs as they were at a commit into a folder."""
    there = _git(root, "ls-tree", "--name-only", f"{since}^{{commit}}").decode().split("\n")
    archive = _git(root, "archive", "--format=tar", since, "--", *(name for name in FOLDERS if name in there))
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def _git(root: Path, *words: str) -> bytes:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise FetchError(f"git {words[0]}: {said[-1] if said else f'exit {done.returncode}'}")
    return done.stdout
