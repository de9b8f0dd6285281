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

from bench import compared_images, ship_rows
from bench.bench_records import Figure, Goal, Measurement, at_most, ratio_at_most
from bench.second_buildkit import remote_builder
from bench.small_project import VARIANT, SmallProject
from bench.turns import in_turns, time_work
from drydock.core.errors import BuildError
from drydock.core.paths import CACHE, ROOT, cache_home

COMMAND = "./inv bench many"
COUNT = 10
PULLED, BUILT = "build on a second machine, foundation in a registry", "the same, wheels and base stored"
ONCE, EACH = f"{COUNT} rows in one build", f"{COUNT} builds of one row each"
TWO = f"{COUNT} rows in one build on two builders"


def measure_many(rounds: int) -> list[Measurement]:
    """Measure each way alternately."""
    with compared_images.make_temporary_folder() as folder:
        machine = _second_machine(folder, rounds)
        many = _measure_ten_rows(folder, rounds)
    return [
        _make_many_row(
            PULLED, BUILT, at_most(15, "A second machine must not wait longer than for a pull of the image."), machine
        ),
        _make_many_row(
            ONCE,
            EACH,
            ratio_at_most(0.6, "Rows of one build share what they have in common, and use both processors."),
            many,
        ),
        _make_many_row(
            TWO,
            ONCE,
            ratio_at_most(1.1, "Both builders run on the same processors here: the second must not cost."),
            many,
        ),
    ]


def _make_many_row(what: str, against: str, goal: Goal, figures: Mapping[str, Figure]) -> Measurement:
    compared = {"ours": figures[what], "theirs": figures[against]}
    return Measurement(what=what, against=against, goal=goal, command=COMMAND, **compared)


def _second_machine(folder: Path, rounds: int) -> Mapping[str, Figure]:
    of, numbers = compared_images.build_ours(), itertools.count()
    name = of.job.variant.id

    def run(*words: str, **changes: str) -> str:
        command = [sys.executable, str(ROOT / "tasks.py"), *words]
        result = subprocess.run(command, env={**os.environ, **changes}, capture_output=True, text=True, check=False)
        if result.returncode:
            raise BuildError(f"{' '.join(words)}: exit {result.returncode}: {result.stderr.strip()[-500:]}")
        return result.stderr

    def measure(where: str) -> float:
        _remove_row_images([name])
        cache = folder / f"machine-{next(numbers)}"
        cache.mkdir()
        (cache / "store").symlink_to(cache_home() / "store")
        options = ["--foundations", f"{where}/foundations"] if where else []
        outputs: list[str] = []
        seconds = time_work(lambda: outputs.append(run("build", "--target", name, *options, **{CACHE: str(cache)})))
        if where and "pulled the foundation" not in outputs[0]:
            raise BuildError(f"{name}: the foundation was not pulled: {outputs[0][-500:]}")
        return seconds

    with ship_rows.run_registry(folder / "foundations") as host:
        run("foundations.push", "--target", name, "--registry", f"{host}/foundations")
        measures: dict[str, Callable[[], float]] = {PULLED: lambda: measure(host), BUILT: lambda: measure("")}
        return in_turns(measures, rounds, "s")


def _measure_ten_rows(folder: Path, rounds: int) -> Mapping[str, Figure]:
    job = compared_images.build_ours().job
    small = SmallProject(folder / "ten", job.lock)
    names = [VARIANT, *(f"row{number}-stand-in" for number in range(1, COUNT))]
    for name in names[1:]:
        small.add_row(name, small.make_vllm(job.variant) | {"vllm/row.py": f"ROW = {name!r}\n"})

    def built(targets: Sequence[str], *words: str, **changes: str) -> None:
        result = small.invoke("build", "--target", ",".join(targets), "--no-cache", "--offline", *words, **changes)
        if result.returncode:
            raise BuildError(f"build of {', '.join(targets)}: exit {result.returncode}: {result.stderr.strip()[-500:]}")

    with remote_builder("bench", folder / "buildx") as (builder, _, env):
        two = {"BUILDX_CONFIG": env["BUILDX_CONFIG"]}
        measures: dict[str, Callable[[], float]] = {
            ONCE: lambda: time_work(lambda: built(names)),
            EACH: lambda: sum(time_work(partial(built, [name])) for name in names),
            TWO: lambda: time_work(lambda: built(names, "--builder", f"default,{builder}", **two)),
        }
        try:
            return in_turns(measures, rounds, "s")
        finally:
            _remove_row_images(names)


def _remove_row_images(rows: Iterable[str]) -> None:
    """Remove the images of rows from the engine."""
    for row in rows:
        names = compared_images.run_docker_command(
            ["docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", f"drydock/{row}"]
        ).split()
        if names:
            compared_images.run_docker_command(["docker", "image", "rm", "--force", *names])
