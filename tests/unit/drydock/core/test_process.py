"""The process of a command: its standard streams, its encoding, its current folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drydock.core.console import BROKEN_PIPE
from drydock.core.errors import DiskFullError, InputError
from drydock.core.paths import ROOT

EMIT = "write_output('data\\n' * 10000)"


def run(command: str, redirection: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with what a command of drydock begins with, in a shell that redirects its streams."""
    lines = ("from drydock.core.process import prepare_process", "prepare_process()",
             "from drydock.core.console import write_output, log", "from drydock.cli.task_helpers import print_errors",
             "with print_errors():", f"    {command}")  # fmt: skip
    argv = ["bash", "-c", f'"$0" -c "$1" {redirection}', sys.executable, "\n".join(lines)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize(
    ("redirection", "code", "message"),
    [
        (">/dev/full", DiskFullError.code, "error: standard output: No space left on device\n\nhint: redirect it"),
        (">&-", InputError.code, "error: standard output: Bad file descriptor\n\nhint: redirect it"),
        ("<&- >&-", InputError.code, "error: standard output: Bad file descriptor\n\nhint: redirect it"),
    ],
)
def test_output_that_cannot_be_written_is_one_error(redirection: str, code: int, message: str) -> None:
    result = run(EMIT, redirection)

    assert (result.returncode, result.stdout) == (code, "")
    assert result.stderr.startswith(message)
    assert "Exception" not in result.stderr


def test_a_reader_that_ends_early_ends_the_command_silently() -> None:
    result = run(EMIT, "| (exec <&-; sleep 1); exit ${PIPESTATUS[0]}")

    assert (result.returncode, result.stderr) == (BROKEN_PIPE, "")


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "<&- 2>&-"])
def test_a_command_goes_on_without_standard_error(redirection: str) -> None:
    result = run("log('lost'); write_output('data')", redirection)

    assert (result.returncode, result.stdout, result.stderr) == (0, "data", "")


def test_a_file_does_not_get_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    command = f"import subprocess; open('{tmp_path}/lock', 'w'); subprocess.run(['sh', '-c', 'echo lost >&2'])"

    assert run(command, "<&- >&- 2>&-").returncode == 0
    assert (tmp_path / "lock").read_text() == ""


def test_a_current_folder_that_was_deleted_is_said(tmp_path: Path) -> None:
    argv = ["sh", "-c", 'rmdir "$PWD"; exec "$0" "$1" matrix', sys.executable, str(ROOT / "tasks.py")]
    folder = tmp_path / "gone"
    folder.mkdir()

    result = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)

    assert result.returncode == InputError.code
    assert result.stderr == (
        "error: the current folder: No such file or directory\n\n"
        "hint: it was deleted or cannot be read; change to another one\n"
    )


def test_a_locale_that_is_not_utf8_does_not_change_how_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("é", encoding="utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}

    result = run(f"from pathlib import Path; write_output(str(len(Path('{tmp_path}/text').read_text())))", **ascii_only)

    assert (result.returncode, result.stdout, result.stderr) == (0, "1", "")
