"""What a checkout of the repository is: as many files as one can know, with names that every file system takes."""

from __future__ import annotations

import fnmatch
import subprocess

import pytest

from drydock.core.paths import ROOT

pytestmark = pytest.mark.checkout

FILES_AT_MOST = 1927
BYTES_AT_MOST = 21 << 20
OF_ROWS = ("images/", "templates/vllm/")
"""Not counted, as stacks are not: what each release of vLLM adds. It is generated."""
_BLOCK = 4096
"""A file takes whole blocks of a disk."""


def tracked() -> list[str]:
    """Return every path that a checkout has."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for path in listed.split("\0") if path]


def test_no_path_has_a_character_that_some_file_systems_refuse() -> None:
    assert [path for path in tracked() if set(path) & set('<>:"\\|?*')] == []


def test_a_checkout_is_small() -> None:
    paths = [path for path in tracked() if not path.startswith(OF_ROWS) and "/stacks/" not in path]
    sizes = [(ROOT / path).stat().st_size for path in paths if (ROOT / path).is_file()]

    assert 0 < len(sizes) <= FILES_AT_MOST
    assert sum(-(-size // _BLOCK) * _BLOCK for size in sizes) <= BYTES_AT_MOST


def test_no_folder_of_tests_has_a_name_that_pytest_skips(pytestconfig: pytest.Config) -> None:
    skipped_names = pytestconfig.getini("norecursedirs")
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    names = {part for folder in folders for part in folder.relative_to(ROOT).parts}
    assert [name for name in sorted(names) if any(fnmatch.fnmatch(name, skipped) for skipped in skipped_names)] == []
