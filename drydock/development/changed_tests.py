"""`test --changed`: which tests a change can break, by the names of the files that it touches. IO: git, files.

Names, not measured coverage: half of the tests start processes, which coverage does not follow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from drydock.core.errors import FetchError, InputError
from drydock.inputs import git

CONTRACTS = "tests/contracts"
"""Always run, those of SUBJECTS aside: every recorded host is looked at, judged and planned."""
SUBJECTS = {
    ".ci": ("tests/unit/drydock/ci",),
    ".github": ("tests/unit/drydock/ci",),
    ".gitlab-ci.yml": ("tests/unit/drydock/ci",),
    "CONTRIBUTING.md": ("tests/contracts/test_contributing.py",),
    "bench": ("tests/unit/bench",),
    "docs": ("tests/contracts/test_site.py", "tests/contracts/test_chinese_pages.py"),
    "docs/develop": ("tests/contracts/test_contributing.py", "tests/contracts/test_develop_pages.py"),
    "drydock/adopt": ("tests/registry/test_adopt.py", "tests/unit/drydock/oci/test_added_layers.py"),
    "drydock/config/schemas": ("tests/unit/drydock/pages/test_schema.py",),
    "drydock/model": ("tests/unit/drydock/pages/test_schema.py",),
    "drydock/run/configurations.json": ("tests/unit/drydock/topology/test_size.py",),
    "drydock/verbs": (
        "tests/unit/test_tasks.py",
        "tests/unit/drydock/cli",
        "tests/unit/drydock/build/test_many_rows.py",
        "tests/unit/drydock/compare/test_compare_verb.py",
        "tests/unit/drydock/examine/test_local_names.py",
        "tests/unit/drydock/topology/test_planned_file.py",
    ),
    "entrypoints": ("tests/contracts/test_startup.py",),
    "entrypoints/checks": ("tests/contracts/test_failures.py",),
    "entrypoints/decide": ("tests/models/test_models.py", "tests/models/test_memory.py"),
    "entrypoints/model": ("tests/models/test_models.py", "tests/models/test_memory.py"),
    "examples": ("tests/unit/drydock/topology",),
    "images": ("tests/unit/drydock/lock", "tests/unit/drydock/build/test_render.py"),
    "inv": ("tests/unit/test_inv.py", "tests/unit/test_bare_invoke.py"),
    "matrix.yaml": ("tests/unit/drydock/config",),
    "policy": ("tests/unit/drydock/attest", "tests/unit/drydock/examine"),
    "pyproject.toml": ("tests/unit/drydock/development", "tests/unit/test_wheel.py"),
    "tasks.py": ("tests/unit/test_tasks.py",),
    "templates": (
        "tests/contracts/test_failures.py",
        "tests/unit/drydock/build/test_render.py",
        "tests/unit/drydock/config",
    ),
    "templates/tools": ("tests/unit/templates",),
    "tests/evidence/generated_files.py": ("tests/contracts/test_develop_pages.py",),
    "tests/manuals": ("tests/manuals",),
    "tests/models": ("tests/models",),
    "tests/samples": ("tests/unit/entrypoints/facts",),
}
"""Path → tests of it that no name leads to."""

USERS_AT_MOST = 10
"""Modules that import a changed one and whose tests run too; what more of them use, most tests use."""


def list_changed_files(root: Path) -> tuple[str, ...]:
    """Return the files that differ from where this branch left main: commits, edits and new files. Raises InputError.

    Main is origin's where there is one, so that on main itself what is not pushed yet counts.
    """
    try:
        branches = git.in_checkout(root, "branch", "--all", "--format=%(refname:short)").split()
        main = next((name for name in ("origin/main", "main") if name in branches), "HEAD")
        base = git.in_checkout(root, "merge-base", "HEAD", main).strip()
        edited = git.in_checkout(root, "diff", "--name-only", "--no-renames", "-z", base, "--")
        new = git.in_checkout(root, "ls-files", "--others", "--exclude-standard", "-z")
    except FetchError as error:
        raise InputError(
            f"--changed: {error.problems[0]}", hint="run it in a git checkout that has the branch main"
        ) from error
    return tuple(sorted({*filter(None, f"{edited}\0{new}".split("\0"))}))


def select_tests(root: Path, changed_files: Iterable[str]) -> tuple[str, ...]:
    """Return the test files and folders for changed files: their mirror, the tests of their users, and SUBJECTS."""
    paths = (path for folder in ("drydock", "entrypoints", "tests") for path in (root / folder).rglob("*.py"))
    sources = {str(path.relative_to(root)): path.read_text() for path in paths}
    of_subjects = {test for tests in SUBJECTS.values() for test in tests}
    contracts = {str(path.relative_to(root)) for path in (root / CONTRACTS).glob("test_*.py")}
    selected = contracts - of_subjects
    for file in changed_files:
        selected.update(_find_mirror(root, file))
        selected.update(_find_importing_tests(sources, file))
        for subject, tests in SUBJECTS.items():
            if file == subject or file.startswith(f"{subject}/"):
                selected.update(tests)
    folders = [path for path in selected if not path.endswith(".py")]
    is_covered = {path: any(path.startswith(f"{folder}/") for folder in folders) for path in selected}
    return tuple(sorted(path for path in selected if not is_covered[path] and (root / path).exists()))


def _find_mirror(root: Path, file: str) -> Sequence[str]:
    """Return the test itself, the folder of a test's own helper, or the nearest folder of unit tests with this name."""
    path = Path(file)
    if file.startswith("tests/unit/") or path.name.startswith("test_"):
        return [file if path.name.startswith("test_") else str(path.parent)]
    if path.parts[0] not in ("drydock", "entrypoints"):
        return []
    folders = [Path("tests/unit") / parent for parent in path.parents if len(parent.parts) > 1]
    return [str(folder) for folder in folders if (root / folder).is_dir()][:1]


def _find_importing_tests(sources: Mapping[str, str], file: str) -> set[str]:
    """Return the tests that import a module, those of the modules that use it, and those of helpers that lead to it."""
    importers = _list_importers(sources, file)
    users = [path for path in importers if not path.startswith("tests/")]
    if len(users) <= USERS_AT_MOST:
        importers |= {
            test for user in users for test in _list_importers(sources, user) if test.startswith("tests/unit/")
        }
    pending = [path for path in importers if path.startswith("tests/support/") and file.startswith("tests/support/")]
    while pending:
        further = _list_importers(sources, pending.pop()) - importers
        importers |= further
        pending += [path for path in further if path.startswith("tests/support/")]
    folders = {str(Path(path).parent) for path in importers if path.endswith("/conftest.py")} - {"tests"}
    return {path for path in importers if Path(path).name.startswith("test_")} | folders


def _list_importers(sources: Mapping[str, str], file: str) -> set[str]:
    """Return the files that import a module."""
    package, _, name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".").rpartition(".")
    if not file.endswith(".py") or not package:
        return set()
    imports = re.compile(
        rf"^ *(from {re.escape(package)}\.{name} import |import {re.escape(package)}\.{name}\b"
        rf"|from {re.escape(package)} import (\([^)]*\b{name}\b|[^(\n]*\b{name}\b))",
        re.MULTILINE,
    )
    return {path for path, text in sources.items() if name in text and imports.search(text)}
