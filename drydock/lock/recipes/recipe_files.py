"""Where recipes are read: a commit of a git repository, which git proves, or a folder. IO (reads, fetches)."""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from drydock.core.errors import FetchError, InputError
from drydock.core.files import read_bounded
from drydock.core.project import Project
from drydock.inputs import git, git_objects
from drydock.inputs.pinned_project import LIMITS
from drydock.inputs.store import Store, default_store
from drydock.lock.recipes.parse_recipe import LARGEST
from drydock.lock.recipes.recipe_texts import Recipes
from drydock.lock.recipes.recipes_lock import repository_of

FOLDER = "models"
MOST_FILES, MOST_BYTES = 5_000, 64 << 20
"""Of one repository: 173 files and 2 MB on 2026-08-21."""
_PATH = re.compile(r"models/[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}\.yaml")
_ADDRESS = re.compile(r"(?:git\+)?((?:https?|ssh|git|file)://[^\s@]+)(?:@(.*))?")


def read_source(project: Project, address: str = "") -> Recipes:
    """Read the recipes that `--from` or drydock.yaml names, or the newest of vLLM's. Raises InputError, FetchError."""
    repository = repository_of(project)
    if not address and "://" not in repository:
        project.check_writers([], [project.root / repository])
        return read_folder(project.root / repository)._replace(repository=repository)
    if address:
        return read_named(address, repository, default_store(), os.environ)
    return read_newest(repository, default_store(), os.environ)


def read_newest(repository: str, store: Store, env: Mapping[str, str]) -> Recipes:
    """Read the newest commit of a repository's main branch. Raises FetchError."""
    return read_commit(repository, find_newest(repository, env), store, env)


def find_newest(repository: str, env: Mapping[str, str]) -> str:
    """Return the newest commit of a repository's main branch. Raises FetchError."""
    words = ("ls-remote", "--end-of-options", repository, "HEAD")
    printed = git.run_limited_git(words, repository, git.network_environment(env), limits=git.Limits(60)).decode(
        errors="replace"
    )
    commit = printed.partition("\t")[0]
    if not git_objects.COMMIT.fullmatch(commit):
        raise FetchError(f"{repository}: found no branch, expected a repository with recipes")
    return commit


def read_named(address: str, repository: str, store: Store, env: Mapping[str, str]) -> Recipes:
    """Read what `--from` names: REPOSITORY@COMMIT, a clone as FOLDER@COMMIT, or a FOLDER of recipes.

    A clone proves the bytes of a commit, but not that `repository` has it. Raises InputError and FetchError.
    """
    address_match = _ADDRESS.fullmatch(address)
    if address_match and address_match[2]:
        return read_commit(address_match[1], _check_commit(address, address_match[2]), store, env)
    if address_match:
        return read_newest(address_match[1], store, env)
    folder, at, commit = address.partition("@")
    path = Path(folder)
    if not path.is_dir():
        hint = "write a folder, FOLDER@COMMIT for a clone, or https://HOST/PATH@COMMIT"
        raise InputError(f"--from {folder}: no such folder", hint=hint)
    if not at:
        return read_folder(path)
    recipes = read_commit(path.resolve().as_uri(), _check_commit(address, commit), store, env)
    reason = "read from a clone, in which git proved the commit; the repository itself was not asked"
    return recipes._replace(repository=repository, unverified=reason)


def _check_commit(address: str, commit: str) -> str:
    if not git_objects.COMMIT.fullmatch(commit):
        text = f"--from {address}: found {commit[:60]!r}, expected a whole commit of 40 digits"
        raise InputError(text, hint="`git ls-remote REPOSITORY HEAD` prints the newest")
    return commit


def read_commit(repository: str, commit: str, store: Store, env: Mapping[str, str]) -> Recipes:
    """Read the recipes of a commit, out of objects that git checked. Raises FetchError."""
    git_objects.fetch_objects(repository, repository, commit, store, env, LIMITS)
    with git_objects.open_tree(repository, commit, store, env) as tree:
        names = sorted(name for name in tree.sizes if _PATH.fullmatch(name) and tree.sizes[name] <= LARGEST)
        _check_size((tree.sizes[name] for name in names), repository)
        day = _read_day(tree.own.run("cat-file", "commit", commit))
        return Recipes(repository, commit, day, tree.read(names) if names else {})


def _read_day(commit: bytes) -> str:
    """Return the day of a commit object, in the time zone of who made it, as git shows it. Raises FetchError."""
    date_match = re.search(rb"^committer .* (\d{1,12}) ([+-])(\d\d)(\d\d)$", commit, re.MULTILINE)
    if date_match is None:
        raise FetchError("found a commit without a date")
    offset = (int(date_match[3]) * 60 + int(date_match[4])) * (1 if date_match[2] == b"+" else -1)
    return dt.datetime.fromtimestamp(int(date_match[1]) + offset * 60, dt.UTC).date().isoformat()


def read_folder(folder: Path) -> Recipes:
    """Read the recipes of a folder; links are not followed. Raises InputError."""
    paths = [path for path in sorted(folder.glob(f"{FOLDER}/*/*.yaml")) if not _is_linked(folder, path)]
    names = [path.relative_to(folder).as_posix() for path in paths]
    recipe_names = [name for name in names if _PATH.fullmatch(name)]
    try:
        _check_size(((folder / name).stat().st_size for name in recipe_names), str(folder))
        texts = {name: read_bounded(folder / name, MOST_BYTES) for name in recipe_names}
    except OSError as error:
        raise InputError(f"{error.filename or folder}: {error.strerror or error}") from error
    return Recipes(folder.name, "", "", texts, "a folder, which has no commit")


def _is_linked(folder: Path, path: Path) -> bool:
    return any((folder / Path(*path.relative_to(folder).parts[:end])).is_symlink() for end in range(1, 4))


def _check_size(sizes: Iterable[int], where: str) -> None:
    values = [*sizes]
    if len(values) > MOST_FILES or sum(values) > MOST_BYTES:
        text = f"{where}: {len(values)} files with {sum(values)} bytes, expected at most {MOST_FILES} and {MOST_BYTES}"
        raise InputError(text, hint="expected a repository of recipes: models/ORG/NAME.yaml")
