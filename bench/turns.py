"""Measure alternately: ours, theirs, ours, theirs, so that other load on the machine affects both. IO."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from bench.bench_records import Figure, Unit
from drydock.core.console import log
from drydock.core.errors import HostError
from drydock.core.paths import ROOT

Measure = Callable[[], float]
LEAST = "Python with the libraries of the verb that reads and checks the matrix"
"""Name of the floor of a verb's process."""
_LEAST_PROGRAM = f"""import sys
sys.path.insert(0, {str(ROOT)!r})
import {{libraries}}
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
read_matrix(DRYDOCK)
"""


def time_work(work: Callable[[], object]) -> float:
    """Run `work`; return its duration in seconds."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def timed_command(command: Sequence[str], env: Mapping[str, str]) -> Measure:
    """Return what runs a command and returns its duration in seconds. It raises HostError if the command fails."""

    def run() -> None:
        ran = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
        if ran.returncode:
            raise HostError(f"{' '.join(command)}: exit {ran.returncode}: {ran.stderr.strip()}")

    return lambda: time_work(run)


def time_least_process(*libraries: str) -> Measure:
    """Return what times a process that imports a verb's libraries, reads the matrix, and does nothing else."""
    program = _LEAST_PROGRAM.format(libraries=", ".join(libraries))
    return timed_command([sys.executable, "-c", program], os.environ)


def in_turns(measures: Mapping[str, Measure], rounds: int, unit: Unit) -> dict[str, Figure]:
    """Call each measure once per round, in reverse order every second round; return their figures."""
    values: dict[str, list[float]] = {name: [] for name in measures}
    order = list(measures)
    for number in range(rounds):
        for name in order if number % 2 == 0 else reversed(order):
            values[name].append(round(measures[name](), 6))
            log(f"round {number + 1} of {rounds}: {name}: {values[name][-1]:.6g} {unit}")
    return {name: Figure(unit=unit, values=tuple(series)) for name, series in values.items()}
