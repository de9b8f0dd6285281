"""The kinds of tests that can be asked for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from drydock.core.errors import BuildError, InputError
from drydock.core.paths import ROOT
from drydock.repo import quality


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


def test_every_dockerfile_is_linted_and_nothing_where_there_is_no_hadolint(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "Dockerfile").write_text("FROM base\n")
    scripts = tmp_path / "bin"
    assert quality.hadolint(tmp_path, scripts) == []

    scripts.mkdir()
    (scripts / "hadolint").touch()

    assert quality.hadolint(tmp_path, scripts)[1:] == [
        "--config",
        ".hadolint.yaml",
        "images/a/Dockerfile",
        "images/b/Dockerfile",
    ]


@pytest.mark.skipif(not quality.hadolint(ROOT), reason="hadolint is not in this environment")
def test_hadolint_finds_nothing_in_the_committed_dockerfiles() -> None:
    done = subprocess.run(quality.hadolint(ROOT), cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.stdout == ""


def test_each_rule_that_hadolint_leaves_out_has_its_reason() -> None:
    lines = (ROOT / ".hadolint.yaml").read_text().splitlines()

    assert [line for line in lines if "- DL" in line and len(line.partition("# ")[2]) < 20] == []
