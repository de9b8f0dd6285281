"""Compare starts that fork the engine core with starts that spawn it, alternately, with an empty cache. IO.

`python -m bench.forking` prints the figures in docs/cpu.md: seconds from `docker run` to the first correct answer, and
CPU time. It builds the CPU image and the model if needed.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any

from docker.models.containers import Container

from bench.records import Figure
from bench.servers import GIVEN, Way, first_answer, right, running
from bench.turns import in_turns
from drydock.build import build
from drydock.build.job import prepare
from drydock.core.console import emit, log
from drydock.core.errors import BuildError
from drydock.prove import smollm2

ROUNDS = 3
SPAWN = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}


def measure(rounds: int) -> dict[str, tuple[Figure, Figure]]:
    """Return method → seconds until the answer, and CPU seconds."""
    image = build.build(prepare("cpu")).image
    model = smollm2.make(image)
    serve = ("serve", *GIVEN)
    ways = {"fork": Way("fork", image, serve), "spawn": Way("spawn", image, serve, environment=SPAWN)}
    work: dict[str, list[float]] = {name: [] for name in ways}

    def seconds(way: Way) -> float:
        begin = time.monotonic()
        with running(way, model) as container:
            answer = first_answer(container)
            took = time.monotonic() - begin
            work[way.name].append(processor_seconds(container))
        if not right(answer):
            raise BuildError(f"{way.name}: wrong answer: {answer!r}")
        return took

    figures = in_turns({name: partial(seconds, way) for name, way in ways.items()}, rounds, "s")
    return {name: (figures[name], Figure(unit="s", values=tuple(work[name]))) for name in ways}


def processor_seconds(container: Container) -> float:
    """Return the CPU time of a container in seconds, as counted by its cgroup."""
    stats: Any = container.stats(stream=False)
    nanoseconds: int = stats["cpu_stats"]["cpu_usage"]["total_usage"]
    return round(nanoseconds / 1e9, 1)


def main(arguments: list[str]) -> None:
    """Print the figures of both methods. The optional argument is the number of rounds."""
    for name, (seconds, work) in measure(int(arguments[0]) if arguments else ROUNDS).items():
        log(f"{name}: {', '.join(f'{value:.1f}' for value in seconds.values)} s")
        emit(f"{name}: answer after {seconds.median:.1f} s, processors {work.median:.1f} s\n")


if __name__ == "__main__":
    main(sys.argv[1:])
