"""Duration of builds beyond one row and one machine: foundations of another machine, ten rows, two builders. IO.

The second machine is a cache folder without foundations, which shares fetched files. The ten rows have tiny wheels, and
the second builder is a second engine on this machine: its processors are the same.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from bench import images, ship
from bench.records import Figure, Goal, Measurement
from bench.turns import in_turns, timed
from drydock.core.errors import BuildError
from drydock.core.paths import CACHE, ROOT, cache_home
from tests.support.second_buildkit import remote_builder
from tests.support.small_image import VARIANT, Small, stub_vllm

COMMAND = "./inv bench many"
COUNT = 10
PULLED, BUILT = "build on a second machine, foundation in a registry", "the same, wheels and base stored"
ONCE, EACH = f"{COUNT} rows in one build", f"{COUNT} builds of one row each"
TWO = f"{COUNT} rows in one build on two builders"


def rows(rounds: int) -> list[Measurement]:
    """Measure each way alternately."""
    with images.folder() as folder:
        machine = _second_machine(folder, rounds)
        many = _ten(folder, rounds)
    return [
        _row(PULLED, BUILT, Goal(compares="ours", sense="at most", limit=15), machine),
        _row(ONCE, EACH, Goal(compares="ratio", sense="at most", limit=1), many),
        _row(TWO, ONCE, Goal(compares="ratio", sense="at most", limit=1.2), many),
    ]


def _row(what: str, against: str, goal: Goal, figures: Mapping[str, Figure]) -> Measurement:
    both = {"ours": figures[what], "theirs": figures[against]}
    return Measurement(what=what, against=against, goal=goal, command=COMMAND, **both)


def _second_machine(folder: Path, rounds: int) -> Mapping[str, Figure]:
    of, numbers = images.ours(), itertools.count()
    name = of.job.variant.id

    def run(*words: str, **changes: str) -> str:
        command = [sys.executable, str(ROOT / "tasks.py"), *words]
        done = subprocess.run(command, env={**os.environ, **changes}, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"{' '.join(words)}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
        return done.stderr

    def measure(where: str) -> float:
        _forget([name])
        cache = folder / f"machine-{next(numbers)}"
        cache.mkdir()
        (cache / "store").symlink_to(cache_home() / "store")
        asked = ["--foundations", f"{where}/foundations"] if where else []
        said: list[str] = []
        seconds = timed(lambda: said.append(run("build", "--target", name, *asked, **{CACHE: str(cache)})))
        if where and "pulled the foundation" not in said[0]:
            raise BuildError(f"{name}: the foundation was not pulled: {said[0][-500:]}")
        return seconds

    with ship.registry(folder / "foundations") as host:
        run("foundations.push", "--target", name, "--registry", f"{host}/foundations")
        measures: dict[str, Callable[[], float]] = {PULLED: lambda: measure(host), BUILT: lambda: measure("")}
        return in_turns(measures, rounds, "s")


def _ten(folder: Path, rounds: int) -> Mapping[str, Figure]:
    small = Small(folder / "ten", images.ours().job.lock)
    names = [VARIANT, *(f"row{number}-stand-in" for number in range(1, COUNT))]
    for name in names[1:]:
        small.add_row(name, stub_vllm() | {"vllm/row.py": f"ROW = {name!r}\n"})

    def built(targets: Sequence[str], *words: str, **changes: str) -> None:
        done = small.invoke("build", "--target", ",".join(targets), "--no-cache", "--offline", *words, **changes)
        if done.returncode:
            raise BuildError(f"build of {', '.join(targets)}: exit {done.returncode}: {done.stderr.strip()[-500:]}")

    with remote_builder("bench", folder / "buildx") as (builder, _, env):
        two = {"BUILDX_CONFIG": env["BUILDX_CONFIG"]}
        measures: dict[str, Callable[[], float]] = {
            ONCE: lambda: timed(lambda: built(names)),
            EACH: lambda: sum(timed(partial(built, [name])) for name in names),
            TWO: lambda: timed(lambda: built(names, "--builder", f"default,{builder}", **two)),
        }
        try:
            return in_turns(measures, rounds, "s")
        finally:
            _forget(names)


def _forget(rows: Iterable[str]) -> None:
    """Remove the images of rows from the engine."""
    for row in rows:
        names = images.run(["docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", f"drydock/{row}"]).split()
        if names:
            images.run(["docker", "image", "rm", "--force", *names])
