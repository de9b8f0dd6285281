"""Kinds of tests, and the linters."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drydock.core.errors import BuildError, InputError
from drydock.core.paths import ROOT
from drydock.repo import quality


def test_an_unknown_kind_of_test_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown kind 'fast'") as raised:
        quality.run_tests(tmp_path, "fast")
    assert raised.value.hint == "known: unit, golden, fuzz, engine, packages, topology, cluster"


def test_a_failing_test_is_an_error_and_other_kinds_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = engine\n golden\n machines\n")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_passes(): pass\n"
        "@pytest.mark.engine\n"
        "def test_fails(): assert False\n"
    )  # fmt: skip
    quality.run_tests(tmp_path, "unit")
    with pytest.raises(BuildError, match="tests failed: engine"):
        quality.run_tests(tmp_path, "engine")


@pytest.mark.parametrize("kind", ["packages", "cluster"])
def test_what_takes_long_runs_only_if_it_is_named(tmp_path: Path, kind: str) -> None:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers = engine\n {kind}\n")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.engine\n"
        "def test_passes(): pass\n"
        "@pytest.mark.engine\n"
        f"@pytest.mark.{kind}\n"
        "def test_fails(): assert False\n"
    )
    quality.run_tests(tmp_path, "engine")
    with pytest.raises(BuildError, match=f"tests failed: {kind}"):
        quality.run_tests(tmp_path, kind)


def test_every_dockerfile_is_linted_if_hadolint_is_installed(tmp_path: Path) -> None:
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


def test_each_disabled_hadolint_rule_has_a_reason() -> None:
    lines = (ROOT / ".hadolint.yaml").read_text().splitlines()

    assert [line for line in lines if "- DL" in line and len(line.partition("# ")[2]) < 20] == []


def test_codespell_finds_misspelled_words_and_words_of_the_own_list(tmp_path: Path) -> None:
    (tmp_path / "drydock" / "repo").mkdir(parents=True)
    for name in ("pyproject.toml", "drydock/repo/words.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "page.md").write_text("Nobody recieved it.\n")
    command = [sys.executable, "-m", *quality.LINTERS["codespell"]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "./page.md:1: Nobody ==> No one\n./page.md:1: recieved ==> received\n"
    assert done.returncode
