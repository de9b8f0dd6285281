"""`inv` in an empty checkout: creates the environment, or creates it again if outdated, then becomes tasks.py."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drydock.core.paths import ROOT

TASKS = "import json, sys; print(json.dumps(sys.argv[1:]))"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout without requirements, and a tasks.py that prints its arguments."""
    folder = tmp_path_factory.mktemp("a checkout")
    shutil.copy(ROOT / "inv", folder)
    (folder / "requirements.txt").write_text("# nothing\n")
    (folder / "tasks.py").write_text(TASKS)
    return folder


def inv(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / "inv"), *arguments]
    return subprocess.run(command, cwd=checkout, check=False, capture_output=True, text=True)


def test_two_processes_create_one_environment(checkout: Path) -> None:
    shutil.rmtree(checkout / ".venv", ignore_errors=True)
    command = [sys.executable, str(checkout / "inv"), "matrix"]
    both = [subprocess.Popen(command, cwd=checkout, stdout=-1, stderr=-1, text=True) for _ in range(2)]
    said = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("inv: creating" in text for text in said) == 1


def test_a_complete_environment_is_not_changed(checkout: Path) -> None:
    inv(checkout, "matrix")
    again = inv(checkout, "matrix", "--json")
    assert again.stderr == ""
    assert again.stdout == '["matrix", "--json"]\n'


def test_an_incomplete_environment_is_created_again(checkout: Path) -> None:
    requirements = checkout / "requirements.txt"
    requirements.write_text(f"no-such-thing @ file://{checkout}/absent.whl --hash=sha256:{'0' * 64}\n")
    broken = inv(checkout, "matrix")
    assert broken.returncode == 1
    assert broken.stdout == ""
    assert "inv: error: pip could not install requirements.txt" in broken.stderr
    requirements.write_text("# nothing, still\n")
    assert "inv: creating" in inv(checkout, "matrix").stderr
