"""Kinds of tests, and the linters."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from drydock.core.errors import BuildError, InputError
from drydock.core.paths import ROOT
from drydock.development import quality

pytestmark = pytest.mark.checkout


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pytest that a test starts clear no folders of other runs."""
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", str(tmp_path))


def test_an_unknown_kind_of_test_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown kind 'fast'") as raised:
        quality.run_tests(tmp_path, "fast")
    assert raised.value.hint == "known: unit, golden, fuzz, engine, stand-ins, packages, topology, cluster, oracle, ci"


@pytest.fixture
def marked(tmp_path: Path) -> Callable[..., Path]:
    """Return what makes a project of a test that passes, and one that fails and has these marks."""

    def make(*marks: str) -> Path:
        names = "".join(f" {name}\n" for name in ("engine", "slow", "golden", "machines", "packages", "cluster"))
        (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers =\n{names}")
        (tmp_path / "conftest.py").write_text(
            "def pytest_addoption(parser):\n"
            "    parser.addoption('--fuzz-rounds')\n"
            "    parser.addoption('--record-proof', action='store_true')\n"
        )
        lines = ["import pytest", "@pytest.mark.engine", "def test_passes(): pass", "def test_passes_too(): pass"]
        lines += [*(f"@pytest.mark.{mark}" for mark in marks), "def test_fails(): assert False", ""]
        (tmp_path / "test_it.py").write_text("\n".join(lines))
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("marks", "passing", "failing", "options"),
    [
        (("engine",), "unit", "engine", {}),
        (("engine", "slow"), "engine", "engine", {"every": True}),
        (("engine", "slow"), "engine", "engine", {"record": True}),
        (("engine", "packages"), "engine", "packages", {}),
        (("engine", "cluster"), "engine", "cluster", {}),
    ],
)
def test_a_failing_test_is_an_error_of_its_kind_and_the_slow_ones_run_when_asked_for(
    marked: Callable[..., Path], marks: tuple[str, ...], passing: str, failing: str, options: dict[str, bool]
) -> None:
    root = marked(*marks)
    quality.run_tests(root, passing)
    with pytest.raises(BuildError, match=f"tests failed: {failing}"):
        quality.run_tests(root, failing, **options)


def test_every_dockerfile_is_linted_if_hadolint_is_installed(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "Dockerfile").write_text("FROM base\n")
    scripts = tmp_path / "bin"
    assert quality.make_hadolint_command(tmp_path, scripts) == []

    scripts.mkdir()
    (scripts / "hadolint").touch()

    assert quality.make_hadolint_command(tmp_path, scripts)[1:] == [
        "--config",
        ".hadolint.yaml",
        "images/a/Dockerfile",
        "images/b/Dockerfile",
    ]


def test_each_disabled_hadolint_rule_has_a_reason() -> None:
    lines = (ROOT / ".hadolint.yaml").read_text().splitlines()

    assert [line for line in lines if "- DL" in line and len(line.partition("# ")[2]) < 20] == []


def test_codespell_finds_misspelled_words_and_words_of_the_own_list(tmp_path: Path) -> None:
    (tmp_path / "drydock" / "development").mkdir(parents=True)
    for name in ("pyproject.toml", "drydock/development/words.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "page.md").write_text("Nobody recieved it.\n")
    command = [sys.executable, "-m", *quality.LINTERS["codespell"]]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.stdout == "./page.md:1: Nobody ==> No one\n./page.md:1: recieved ==> received\n"
    assert result.returncode
