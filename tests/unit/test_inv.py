"""`inv` in an empty checkout: makes the environment once, makes it anew when it must, then becomes invoke."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drydock.core.paths import ROOT

INVOKE = "import json, sys; print(json.dumps(sys.argv[1:]))"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout that needs no package, with a stand-in for invoke that prints its arguments."""
    folder = tmp_path_factory.mktemp("a checkout")
    shutil.copy(ROOT / "inv", folder)
    (folder / "requirements.txt").write_text("# nothing\n")
    (folder / "invoke.py").write_text(INVOKE)
    return folder


def inv(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / "inv"), *arguments]
    return subprocess.run(command, cwd=checkout, check=False, capture_output=True, text=True)


def test_two_at_once_make_one_environment(checkout: Path) -> None:
    shutil.rmtree(checkout / ".venv", ignore_errors=True)
    command = [sys.executable, str(checkout / "inv"), "matrix"]
    both = [subprocess.Popen(command, cwd=checkout, stdout=-1, stderr=-1, text=True) for _ in range(2)]
    said = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("inv: making" in text for text in said) == 1


def test_a_finished_environment_is_used_as_it_is(checkout: Path) -> None:
    inv(checkout, "matrix")
    again = inv(checkout, "matrix", "--json")
    assert again.stderr == ""
    assert again.stdout == f'["--search-root", "{checkout}", "matrix", "--json"]\n'


def test_without_arguments_it_lists_the_verbs(checkout: Path) -> None:
    assert inv(checkout).stdout == f'["--search-root", "{checkout}", "--list"]\n'


def test_a_verb_of_two_words_is_spelt_as_invoke_does(checkout: Path) -> None:
    assert inv(checkout, "lock", "diff", "a", "b").stdout.endswith('"lock.diff", "a", "b"]\n')


def test_an_unfinished_environment_is_made_anew(checkout: Path) -> None:
    requirements = checkout / "requirements.txt"
    requirements.write_text(f"no-such-thing @ file://{checkout}/absent.whl --hash=sha256:{'0' * 64}\n")
    broken = inv(checkout, "matrix")
    assert broken.returncode == 1
    assert broken.stdout == ""
    assert "inv: error: pip could not install requirements.txt" in broken.stderr
    requirements.write_text("# nothing, still\n")
    assert "inv: making" in inv(checkout, "matrix").stderr
