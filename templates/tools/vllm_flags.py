"""Write every option string of the installed vLLM's server as a sorted JSON list: vllm_flags.py MODULE FILE.

Starts the server's module as `python -m` does, until it would read the command line: the parser that it made by then
is vLLM's own, whatever module builds it in this version. Needs no network and no device. Where a vLLM knows its options
only with a device, the list is empty, and the entrypoint passes every flag on without comparing.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn


class CommandLineWanted(BaseException):
    """The server is about to read its command line with this parser; no handler of vLLM's catches it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__(parser)
        self.parser = parser


def refuse(parser: argparse.ArgumentParser, *_args: Any, **_options: Any) -> NoReturn:
    """Stand in for ArgumentParser's parse_args and parse_known_args."""
    raise CommandLineWanted(parser)


def options(module: str) -> list[str]:
    """Return the option strings of a server module."""
    for method in ("parse_args", "parse_known_args"):
        setattr(argparse.ArgumentParser, method, refuse)
    sys.argv = [module]
    try:
        return start(module)
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("", "vllm", module.partition(".")[0]):
            raise  # vLLM itself is broken or absent
        return unknown(module, error)
    except (RuntimeError, OSError, AssertionError) as error:
        return without_device(module, error)


def start(module: str) -> list[str]:
    """Start the server's module; return what its parser knows."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except CommandLineWanted as wanted:
        return sorted(wanted.parser._option_string_actions)  # noqa: SLF001 - argparse has no public list of them
    sys.exit(f"{module}: ended without reading its command line")


def without_device(module: str, reason: Exception) -> list[str]:
    """Try again as on a CPU, since vLLM's options are the same everywhere and only their defaults ask for a device."""
    try:
        platforms = import_module("vllm.platforms")
        platforms._current_platform = import_module("vllm.platforms.cpu").CpuPlatform()  # type: ignore[attr-defined]  # noqa: SLF001 - no public way
        return start(module)
    except (ImportError, AttributeError, RuntimeError, OSError, AssertionError):
        return unknown(module, reason)


def unknown(module: str, reason: Exception) -> list[str]:
    """Say why the options are not known."""
    sys.stderr.write(f"{module}: options not known without a device: {type(reason).__name__}: {reason}\n")
    return []


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(options(sys.argv[1]), indent=0) + "\n")
