"""Processes of the test cluster: polite, logged, ended by their pid, and with this one if it is killed."""

from __future__ import annotations

import subprocess
from pathlib import Path

ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL", "nice", "-n", "10")


def start(log: Path, *command: str | Path) -> subprocess.Popen[bytes]:
    """Start a process whose output goes to a file."""
    with log.open("wb") as output:
        return subprocess.Popen(
            [*ENDS_WITH_US, *map(str, command)], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
