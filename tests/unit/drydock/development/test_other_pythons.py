"""Which other Python the tests run with, and what is said of one that cannot."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from drydock.core.errors import InputError
from drydock.development import other_pythons

pytestmark = pytest.mark.checkout


def fake_python(path: Path, version: str) -> Path:
    """Make a program that says it is a Python of a version."""
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return path


def test_the_distributions_python_counts_where_it_is_another_that_drydock_supports(tmp_path: Path) -> None:
    assert other_pythons.distribution_python(python=tmp_path / "none") is None
    assert other_pythons.distribution_python(python=Path(sys.executable)) is None
    assert other_pythons.distribution_python(python=fake_python(tmp_path / "old", "3 9 2")) is None
    newer = fake_python(tmp_path / "newer", "3 11 2")
    assert other_pythons.distribution_python(python=newer) == newer


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no-such-python", "--python no-such-python: not found"),
        ("old", "found Python 3.9.2, expected 3.11 or newer"),
        ("broken", "broken: does not run"),
    ],
)
def test_a_python_that_cannot_run_the_tests_is_named(tmp_path: Path, name: str, problem: str) -> None:
    fake_python(tmp_path / "old", "3 9 2")
    fake_python(tmp_path / "broken", "no numbers")
    path = tmp_path / name
    with pytest.raises(InputError, match=problem):
        other_pythons.interpreter_of(path if path.exists() else name)
