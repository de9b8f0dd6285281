"""Write every option string of the installed vLLM's server as a sorted JSON list: vllm_flags.py MODULE FILE.

Starts the server's module as `python -m` does, until it would read the command line: the parser that it made by then
is vLLM's own, whatever module builds it in this version. Needs no network and no device. Some vLLMs ask for a device
before they know their options; then the list is empty, and the entrypoint passes every flag on without comparing.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
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
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except CommandLineWanted as wanted:
        return sorted(wanted.parser._option_string_actions)  # noqa: SLF001 - argparse has no public list of them
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("", "vllm", module.partition(".")[0]):
            raise  # vLLM itself is broken or absent
        sys.stderr.write(f"{module}: options not known without {error.name}\n")
        return []
    except (RuntimeError, OSError, AssertionError) as error:
        sys.stderr.write(f"{module}: options not known without a device: {type(error).__name__}: {error}\n")
        return []
    sys.exit(f"{module}: ended without reading its command line")


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(options(sys.argv[1]), indent=0) + "\n")
