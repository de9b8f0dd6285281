"""drydock itself: loading, rendering and planning the matrix, and starting the entrypoint. Needs no image. IO."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bench import buckets, startup
from bench import synthetic as made
from bench.records import Figure, Goal, Measurement
from bench.turns import in_turns, processor
from drydock.core.console import log
from drydock.core.paths import ROOT

PYTHON = sys.executable
NO_MORE = Goal(compares="ratio", sense="at most", limit=1)
LINEAR = Goal(compares="ratio", sense="at most", limit=11)
EACH = Goal(compares="ours", sense="at most", limit=1)
START = Goal(compares="ours", sense="at most", limit=100)
FEW, MANY = 1_000, 10_000


def rows(rounds: int) -> list[Measurement]:
    """Measure everything."""
    return [*matrix(rounds), *synthetic(), *starts(rounds * 3), *buckets.rows()]


# --- the whole matrix -----------------------------------------------------------------------------------------------


def matrix(rounds: int) -> Iterator[Measurement]:
    """Compare loading, rendering and planning the whole matrix with `docker buildx bake --print` of that plan."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "docker-bake.json"
        stages: list[float] = []
        measures: dict[str, Callable[[], float]] = {
            "drydock": lambda: processor(lambda: stages.append(_plan(file))),
            "bake": lambda: processor(lambda: _run("docker", "buildx", "bake", "--file", str(file), "--print")),
            "imports": lambda: processor(lambda: _run(PYTHON, "-c", "import pydantic, jinja2, yaml")),
        }
        _plan(file)
        figures = in_turns(measures, rounds, "s")
    work = Figure(unit="s", values=tuple(round(seconds, 6) for seconds in stages))
    command, against = "python -m bench.plans", "docker buildx bake --print of the same plan"
    floor = f"Starting Python and importing pydantic, Jinja and YAML takes {figures['imports'].median:.2f} s."
    what = "whole matrix: load, render, plan (processor time)"
    note = "The other figure includes process start, drydock's does not; see the next row."
    yield Measurement(
        what=what, against=against, goal=NO_MORE, ours=work, theirs=figures["bake"], command=command, note=note
    )
    yield Measurement(
        what=f"{what}, including process start",
        against=against,
        goal=NO_MORE,
        ours=figures["drydock"],
        theirs=figures["bake"],
        command=command,
        note=floor,
    )


def _plan(file: Path) -> float:
    """Write the plan of the whole matrix; return the seconds of its three stages."""
    ran = _run(PYTHON, "-m", "bench.plans")
    file.write_text(ran.stdout)
    stages: dict[str, float] = json.loads(ran.stderr)
    return sum(stages.values())


# --- many variants --------------------------------------------------------------------------------------------------


def synthetic(rounds: int = 3) -> Iterator[Measurement]:
    """Compare ten thousand synthetic variants with one thousand."""
    with tempfile.TemporaryDirectory() as few, tempfile.TemporaryDirectory() as many:
        folders = {FEW: Path(few), MANY: Path(many)}
        for count, folder in folders.items():
            made.write_root(folder, count)
        yield from _synthetic(folders, rounds)


def _synthetic(folders: Mapping[int, Path], rounds: int) -> Iterator[Measurement]:
    held: dict[int, list[float]] = {count: [] for count in folders}

    def seconds(count: int) -> float:
        ran = _run(PYTHON, "-m", "bench.synthetic", str(folders[count]))
        found: dict[str, float] = json.loads(ran.stdout)
        held[count].append(found.pop("bytes"))
        return sum(found.values())

    figures = in_turns({"few": lambda: seconds(FEW), "many": lambda: seconds(MANY)}, rounds, "s")
    few, many = (Figure(unit="B", values=tuple(held[count])) for count in (FEW, MANY))
    each = Figure(unit="ms", values=tuple(round(1000 * value / MANY, 4) for value in figures["many"].values))
    command, against = f"python -m bench.synthetic {MANY}", f"{FEW:,} variants"
    what = f"{MANY:,} synthetic variants: load, render, plan (processor time)"
    yield Measurement(
        what=what, against=against, goal=LINEAR, ours=figures["many"], theirs=figures["few"], command=command
    )
    yield Measurement(what=f"{what}, per variant", against="", goal=EACH, ours=each, theirs=None, command=command)
    yield Measurement(what=f"{what}, memory", against=against, goal=LINEAR, ours=many, theirs=few, command=command)


# --- the entrypoint -------------------------------------------------------------------------------------------------


def starts(rounds: int) -> Iterator[Measurement]:
    """Compare the entrypoint on recorded hosts, from process start to vLLM's start, with the bare interpreter."""
    for machine in startup.MACHINES:
        interpreter, least, whole = zip(*startup.starts(rounds, machine), strict=True)
        log(f"entrypoint on {machine}: {min(whole):.0f} ms, bare interpreter {min(interpreter):.0f} ms")
        yield Measurement(
            what=f"entrypoint: process start → start of vLLM, {machine}",
            against="bare interpreter",
            goal=START,
            ours=_milliseconds(whole),
            theirs=_milliseconds(interpreter),
            command="python -m bench.startup",
            note=f"The lower limit is {statistics.median(least):.0f} ms: an entrypoint that only imports the same "
            "modules of the standard library.",
        )


def _milliseconds(values: tuple[float, ...]) -> Figure:
    return Figure(unit="ms", values=tuple(round(value, 2) for value in values))


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
