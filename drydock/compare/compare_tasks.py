"""The verb `compare`. IO."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from drydock.compare.comparison import ComparedCommand, compare_command
from drydock.compare.pasted_command import TEXT_AT_MOST, PastedCommand, parse_command_words, parse_text
from drydock.compare.verdict_text import format_comparison, make_comparison_json, raise_verdict
from drydock.core.console import write_output
from drydock.core.errors import InputError, explain_os_error
from drydock.core.files import format_json, read_bounded
from drydock.core.project import Project

STANDARD_INPUT = "-"


def read_command(words: Sequence[str], file: str) -> PastedCommand:
    """Return the command after --, or that of a file. Raises InputError."""
    if bool(words) == bool(file):
        actual = "both a command after -- and --command-file" if file else "no command"
        raise InputError(f"compare: found {actual}", hint="./inv compare --from ROW --to ROW -- vllm serve MODEL …")
    return parse_text(_read_text(file)) if file else parse_command_words(words)


def _read_text(file: str) -> str:
    try:
        if file == STANDARD_INPUT:
            return sys.stdin.buffer.read(TEXT_AT_MOST + 1).decode()
        return read_bounded(Path(file), TEXT_AT_MOST).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"--command-file {file}: not UTF-8") from error
    except OSError as error:
        raise explain_os_error(error, file) from error


def print_comparison(project: Project, request: ComparedCommand, columns: int, *, every: bool, json: bool) -> None:
    """Print the comparison. Raises the error of its verdict, InputError, TargetError and StaleError."""
    comparison = compare_command(project, request)
    write_output(
        format_json(make_comparison_json(comparison, every=every))
        if json
        else format_comparison(comparison, columns, every=every)
    )
    raise_verdict(comparison)
