"""A package that this Python lacks, as when a bare `invoke` reads tasks.py. Standard library only, as `inv` is."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import NoReturn

_INV = Path(__file__).resolve().parents[2] / "inv"


def exit_without_package(error: ImportError) -> NoReturn:
    """Say which package this Python lacks and which command has it; exit with 1.

    Raises the error itself if the module is drydock's own: that is a defect, which needs its traceback.
    """
    if (error.name or "").partition(".")[0] in {"bench", "drydock", "entrypoints", "tasks"}:
        raise error
    version = ".".join(map(str, sys.version_info[:3]))
    problem = f"{sys.executable} (Python {version}) lacks what drydock needs: {error}"
    sys.stderr.write(f"error: {problem}\n\nhint: {_suggest_command(sys.argv[1:])}\n")
    sys.exit(1)


def _suggest_command(words: list[str]) -> str:
    if not _INV.is_file():
        return "install drydock's wheel again, with pip or uv: they install what it needs"
    program = "./inv" if _INV.parent == Path.cwd() else str(_INV)
    command = [program] if words[:1] and words[0].startswith("-") else [program, *words]  # an option of invoke's own
    return f"run {shlex.join(command)} instead, with Python 3.11 or newer: it first installs what it needs into .venv"
