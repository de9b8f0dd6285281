"""Runs `docker buildx bake`, and shows its progress. IO."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from drydock.build.plan import folders
from drydock.core.console import errors, log
from drydock.core.errors import BuildError, DiskFullError, EngineError
from drydock.core.files import dumps


def bake(plan: Mapping[str, Any], *, builder: str | None = None, no_cache: bool = False) -> None:
    """Build a plan; write progress to standard error.

    Raises BuildError, DiskFullError or EngineError.
    """
    with tempfile.TemporaryDirectory(prefix="drydock-plan-") as folder:
        file = Path(folder) / "docker-bake.json"
        file.write_text(dumps(plan))
        options = [*_given("--builder", builder), *(["--no-cache"] if no_cache else [])]
        options += [f"--allow=fs={path}" for path in folders(plan)]
        options += ["--file", str(file), "--progress", _progress()]
        code, lines = _follow(["docker", "buildx", "bake", *options])
        if code:
            _fail(code, lines)


def _follow(command: Sequence[str]) -> tuple[int, list[str]]:
    """Run a command; return its exit code and its output, which is empty on a terminal, where buildx draws progress."""
    if errors().is_terminal:
        return subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode, []
    lines: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        for line in process.stderr or ():
            lines.append(line.rstrip())
            log(lines[-1])
    return process.returncode, lines


def _fail(code: int, lines: Sequence[str]) -> NoReturn:
    text = "\n".join(lines)
    if "no space left on device" in text:
        raise DiskFullError(
            "docker buildx: no space left on the disk", hint="free some space (docker builder prune), then build again"
        )
    if (
        "Cannot connect to the Docker daemon" in text
        or "error reading from server" in text
        or "connection reset" in text
    ):
        raise EngineError(
            "docker buildx: lost connection to the Docker engine during the build",
            hint="start it with `invoke engine`, then build again",
        )
    errors = [line for line in lines if line.startswith(("ERROR", "error"))]
    reason = errors[-1] if errors else f"exit {code}"
    raise BuildError(f"docker buildx bake: {reason}", hint="see the failing step's output above")


def _progress() -> str:
    return "auto" if errors().is_terminal else "plain"


def _given(option: str, value: str | None) -> list[str]:
    return [option, value] if value else []
