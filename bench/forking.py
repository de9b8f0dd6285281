"""Starts with an engine core that is a fork of the API server, and with one that is spawned: in turns, cache empty. IO.

`python -m bench.forking` prints what docs/cpu.md says of it: seconds from `docker run` to the right answer, and
those of the processors. Builds the CPU image and the model where they are not there.
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
    """Return the seconds of each way's starts, and the processors' seconds."""
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
            raise BuildError(f"{way.name}: answers {answer!r}")
        return took

    figures = in_turns({name: partial(seconds, way) for name, way in ways.items()}, rounds, "s")
    return {name: (figures[name], Figure(unit="s", values=tuple(work[name]))) for name in ways}


def processor_seconds(container: Container) -> float:
    """Return what a container has used of the processors, in seconds, as its cgroup counts."""
    stats: Any = container.stats(stream=False)
    nanoseconds: int = stats["cpu_stats"]["cpu_usage"]["total_usage"]
    return round(nanoseconds / 1e9, 1)


def main(arguments: list[str]) -> None:
    """Print both ways' figures; the number of rounds may be given."""
    for name, (seconds, work) in measure(int(arguments[0]) if arguments else ROUNDS).items():
        log(f"{name}: {', '.join(f'{value:.1f}' for value in seconds.values)} s")
        emit(f"{name}: answer after {seconds.median:.1f} s, processors {work.median:.1f} s\n")


if __name__ == "__main__":
    main(sys.argv[1:])
