"""Runs a command line in this process: what `./inv WORDS` prints, without a second of imports.

What only a process of its own shows is tested with one: signals, closed or broken streams, the exit code in a shell.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from drydock.build import render
from drydock.cli import cli
from drydock.cli.verb_table import COMMANDS
from drydock.config import accelerator_files, failures, matrix, stack_files, strict_yaml
from drydock.core import console, verb_options
from drydock.core.paths import ROOT
from drydock.lock import vllm_lists

BY_CONTENT = (
    matrix._read_matrix,
    stack_files._read_stack,
    accelerator_files._validate_host,
    strict_yaml.parse_yaml,
    strict_yaml._read_plain_scalar,
    failures._make_failures_text,
    vllm_lists._parse_lists,
    render._make_jinja_environment,
    verb_options._read_docstrings,
)
"""Caches that stay: their keys have the content of the files, or they are of the code."""


def run_in_process(
    *words: str, cwd: Path = ROOT, env: Mapping[str, str] = {}, commands: cli.Commands = COMMANDS
) -> subprocess.CompletedProcess[str]:
    """Run the tasks that the words name, with more variables than this process has; return code and output.

    What a child process prints is not captured.
    """
    out, err = _make_stream("strict"), _make_stream("backslashreplace")
    code: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _as_new_process(words, cwd, env):
        try:
            cli.run_command_line(commands, words)
        except SystemExit as end:
            code = end.code or 0
    assert isinstance(code, int), code
    return subprocess.CompletedProcess(words, code, *(stream.buffer.getvalue().decode() for stream in (out, err)))


def _make_stream(errors: str) -> io.TextIOWrapper[io.BytesIO]:
    """Return a stream that refuses what standard output and standard error of a process refuse."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors, write_through=True)


@contextlib.contextmanager
def _as_new_process(words: tuple[str, ...], cwd: Path, env: Mapping[str, str]) -> Iterator[None]:
    """Give the block arguments, variables, a current folder and caches of its own."""
    argv, variables, folder = sys.argv, dict(os.environ), Path.cwd()
    _clear_caches()
    try:
        sys.argv = [str(ROOT / "tasks.py"), *words]
        os.environ.update(env)
        os.chdir(cwd)
        yield
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(folder)
        console.set_verbose(verbose=False)
        _clear_caches()


def _clear_caches() -> None:
    """Empty the caches of drydock's modules, of which some also note what was said once."""
    for name, module in [*sys.modules.items()]:
        if name.startswith("drydock."):
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper) and value not in BY_CONTENT:
                    value.cache_clear()
