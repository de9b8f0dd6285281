"""What steps and messages look like on a terminal, without colour, and where there is no terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from drydock.core import amounts, console
from drydock.core.paths import ROOT
from tests.support import terminal

SCRIPT = """
from drydock.core.console import log, set_verbose, show_step
import sys, time
set_verbose(verbose="--verbose" in sys.argv)
with show_step("fetch", 4_000_000) as shown:
    shown.note("[a] of\\x1b[31m many")
    shown.advance(1_000_000)
    time.sleep(0.3)
    log("said meanwhile")
    shown.advance(3_000_000)
try:
    with show_step("build"):
        time.sleep(0.2)
        raise ValueError
except ValueError:
    log("error: it broke\\n\\nhint: mend it")
"""
COMMAND: Sequence[str] = [sys.executable, "-c", SCRIPT]
WORDS = ["said", "meanwhile", "fetch:", "S", "s", "4.0", "MB", "error:", "it", "broke", "hint:", "mend", "it"]
ENVIRONMENT = {"PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.4, "59.4 s"), (59.96, "1 min 00 s"), (119.6, "2 min 00 s"), (125, "2 min 05 s")],
)
def test_a_time_has_no_minute_of_sixty_seconds(seconds: float, text: str) -> None:
    assert amounts.format_duration(seconds) == text


def _without_times(text: str) -> str:
    return re.sub(r"\d+\.\d s\b", "S s", text)


def test_a_long_silent_step_without_a_terminal_says_that_it_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "BEAT", 0.1)
    with console.show_step("export") as step:
        step.note("layer 3")
        step.advance(5_000_000)
        time.sleep(1)
    lines = _without_times(capsys.readouterr().err).splitlines()
    assert lines[0] == "export: S s  5.0 MB so far: layer 3"
    assert lines[-1] == "export: S s  5.0 MB"
    assert len(lines) > 2


def test_a_step_is_drawn_while_it_runs_and_one_line_stays() -> None:
    code, terminal_output = terminal.run(COMMAND, ENVIRONMENT)
    message, fetched, built, *rest = terminal.lines(terminal_output)

    assert code == 0
    assert "1.0 MB of 4.0 MB" in terminal_output
    assert "[a] of\\u001b[31m many" in terminal_output
    assert message == "said meanwhile"
    assert fetched.split()[0] == "fetch"
    assert fetched.endswith("4.0 MB")
    assert built.split()[0] == "build"
    assert built.endswith("failed")
    assert rest == ["error: it broke", "hint: mend it"]
    assert terminal_output.rindex(terminal.CURSOR_SHOWN) > terminal_output.rindex(terminal.CURSOR_HIDDEN)


def test_colour_is_left_out_with_no_color() -> None:
    _, coloured = terminal.run(COMMAND, ENVIRONMENT)
    _, plain = terminal.run(COMMAND, {**ENVIRONMENT, "NO_COLOR": "1"})

    assert "\x1b[1;31merror\x1b[0m: it broke" in coloured
    assert terminal.COLOURS.search(plain) is None
    assert terminal.lines(plain)[-2:] == ["error: it broke", "hint: mend it"]


@pytest.mark.parametrize("options", [{"TERM": "dumb"}, {"TERM": ""}])
def test_a_terminal_that_cannot_redraw_gets_plain_lines(options: dict[str, str]) -> None:
    _, terminal_output = terminal.run(COMMAND, {**ENVIRONMENT, **options})

    assert _without_times(terminal_output).split() == WORDS


def test_verbose_shows_lines_instead_of_steps() -> None:
    _, terminal_output = terminal.run([*COMMAND, "--verbose"], {**ENVIRONMENT, "NO_COLOR": "1"})

    assert _without_times(terminal_output).split() == WORDS


@pytest.mark.parametrize("forced", [{}, {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "TERM": "xterm"}])
def test_without_a_terminal_there_are_plain_lines_only(forced: dict[str, str]) -> None:
    env = {**os.environ, **ENVIRONMENT, **forced}
    ran = subprocess.run(COMMAND, env=env, capture_output=True, text=True, check=True, timeout=60)

    assert _without_times(ran.stderr) == "said meanwhile\nfetch: S s  4.0 MB\nerror: it broke\n\nhint: mend it\n"
    assert ran.stdout == ""


def test_details_are_printed_only_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    console.log_detail("a")
    console.set_verbose(verbose=True)
    try:
        console.log_detail("b")
    finally:
        console.set_verbose(verbose=False)
    assert capsys.readouterr().err == "b\n"


@pytest.mark.checkout
def test_an_installed_drydock_names_commands_as_one_types_them(monkeypatch: pytest.MonkeyPatch) -> None:
    advice = "run `./inv lock`, or ./inv build --target x: ./inv\nnot x./invoke"
    assert console.spell_commands(advice) == advice
    monkeypatch.setattr(console, "PROGRAM", "drydock")
    spelled = "run `drydock lock`, or drydock build --target x: drydock\nnot x./invoke"
    assert console.spell_commands(advice) == spelled
    monkeypatch.setattr(console, "INSTALLED", True)
    assert console.name_program(advice) == spelled


@pytest.mark.checkout
def test_outside_of_the_checkout_a_command_has_the_path_of_inv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    advice = "hint: ./inv lock; `./inv build`; not a/./inv or ./invoke"
    monkeypatch.chdir(ROOT)
    console.log(advice)
    monkeypatch.chdir(tmp_path)
    console.log(advice)
    moved = f"hint: {ROOT}/inv lock; `{ROOT}/inv build`; not a/./inv or ./invoke"
    assert capsys.readouterr().err.splitlines() == [advice, moved]
