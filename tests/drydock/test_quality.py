"""The kinds of tests that can be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock import quality
from drydock.errors import BuildError, InputError


def test_an_unknown_kind_of_test_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown kind 'fast'") as raised:
        quality.run_tests(tmp_path, "fast")
    assert raised.value.hint == "known: unit, golden, fuzz, engine, packages"


def test_a_failing_test_is_an_error_and_other_kinds_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = engine\n golden\n")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_passes(): pass\n"
        "@pytest.mark.engine\n"
        "def test_fails(): assert False\n"
    )  # fmt: skip
    quality.run_tests(tmp_path, "unit")
    with pytest.raises(BuildError, match="tests failed: engine"):
        quality.run_tests(tmp_path, "engine")
