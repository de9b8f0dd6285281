"""Write all options of the installed vLLM server, and the names of its parsers, as JSON: vllm_flags.py MODULE FILE.

It starts the server's module as `python -m` does, and stops when the module parses the command line: the parser is
then complete, whichever module builds it in this version. It needs no network and no device. If this vLLM builds its
options only with a device, the list is empty, and the entrypoint passes every flag on unchecked. Parsers of tool calls
and reasoning are those that vLLM's own registries list; without such a registry none are written.
"""

from __future__ import annotations

import argparse
import gc
import json
import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

REGISTRIES = {
    "--tool-call-parser": ("ToolParserManager", ("vllm.tool_parsers", "vllm.entrypoints.openai.tool_parsers")),
    "--reasoning-parser": ("ReasoningParserManager", ("vllm.reasoning", "vllm.entrypoints.openai.reasoning_parsers")),
}
"""Option → the class that lists its names, and its module in newer and in older versions."""

BROKEN = (ImportError, AttributeError, RuntimeError, OSError, AssertionError)
"""What parts of vLLM raise on a machine without their device, or in a version that does not have them."""


class ParserReady(BaseException):
    """Raised when the server parses its command line. It is a BaseException, so vLLM's handlers do not catch it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__(parser)
        self.parser = parser


def refuse(parser: argparse.ArgumentParser, *_args: Any, **_options: Any) -> NoReturn:
    """Replace ArgumentParser.parse_args and parse_known_args."""
    raise ParserReady(parser)


def options(module: str) -> list[str]:
    """Return the option strings of a server module."""
    for method in ("parse_args", "parse_known_args"):
        setattr(argparse.ArgumentParser, method, refuse)
    sys.argv = [module]
    try:
        return start(module)
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("", "vllm", module.partition(".")[0]):
            raise  # vLLM is broken or not installed
        return unknown(module, error)
    except (RuntimeError, OSError, AssertionError) as error:
        return without_device(module, error)


def start(module: str) -> list[str]:
    """Start the server's module; return the options of its parser."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ParserReady as ready:
        return sorted(ready.parser._option_string_actions)  # noqa: SLF001 - argparse has no public list of them
    sys.exit(f"{module}: ended without parsing its command line")


def without_device(module: str, reason: Exception) -> list[str]:
    """Try again with the CPU platform: vLLM's options are the same everywhere, only their defaults need a device."""
    try:
        platforms = import_module("vllm.platforms")
        platforms._current_platform = import_module("vllm.platforms.cpu").CpuPlatform()  # type: ignore[attr-defined]  # noqa: SLF001 - no public way
        return start(module)
    except BROKEN:
        return unknown(module, reason)


def parsers() -> dict[str, list[str]]:
    """Return the names of parsers by their option."""
    found = {}
    for option, (name, modules) in REGISTRIES.items():
        for module in modules:
            try:
                manager = getattr(import_module(module), name)
            except BROKEN:
                continue
            older = getattr(manager, "tool_parsers", None) or getattr(manager, "reasoning_parsers", {})
            found[option] = sorted(manager.list_registered() if hasattr(manager, "list_registered") else older)
            break
    return found


def unknown(module: str, reason: Exception) -> list[str]:
    """Print why the options are unknown, and return none."""
    sys.stderr.write(f"{module}: options are unknown without a device: {type(reason).__name__}: {reason}\n")
    return []


if __name__ == "__main__":
    gc.disable()  # nothing of 5,000 modules can be collected; looking takes a sixth of the time
    output = Path(sys.argv[2])
    written = {"flags": options(sys.argv[1]), "parsers": parsers()}
    output.write_text(json.dumps(written, indent=0) + "\n")
