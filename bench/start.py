"""Seconds from `docker run` to the first correct answer: drydock with and without cache, and plain servers. IO.

The kernel has all files of a server in memory when it starts, whatever was measured before; or, for the first start on
a node, none of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import docker

from bench import cleanup_guard
from bench.bench_records import Figure, Goal, Measurement
from bench.compared_servers import HELPED, Way, Ways, first_answer, in_memory, is_right_answer, prepare_ways, run_server
from bench.turns import in_turns
from drydock.core.console import log

COMMAND = "./inv bench start"
WHAT = "container start → first answer, CPU, SmolLM2"
COLD, AGAIN, DISK = f"{WHAT}, cold cache", f"{WHAT}, second start with /cache", f"{WHAT}, files read from disk"
GOALS = {"plain default": 0.05, "plain eager": 0.1}
LITTLE_KEPT = (
    "Nothing is compiled for this model, so a cold start leaves only 1 kB in /cache: vLLM's model inspection. "
    "Importing PyTorch, transformers and vLLM takes two thirds of a start, and no cache avoids it."
)


def measure_starts(rounds: int) -> list[Measurement]:
    """Measure starts."""
    starts = _Starts(prepare_ways())
    measures = {
        "ours": lambda: starts.seconds(starts.ways.ours, fresh=True),
        "ours again": lambda: starts.seconds(starts.ways.ours),
        "plain default": lambda: starts.seconds(starts.ways.default),
        "plain eager": lambda: starts.seconds(starts.ways.eager),
        "ours from disk": lambda: starts.seconds(starts.ways.ours, fresh=True, files="forget"),
        "plain eager from disk": lambda: starts.seconds(starts.ways.eager, files="forget"),
    }
    try:
        figures = in_turns(measures, rounds, "s")
    finally:
        starts.forget()
    return [
        *(
            _make_start_row(COLD, name, GOALS[name], (figures["ours"], figures[name]), starts.said(name))
            for name in GOALS
        ),
        _make_start_row(AGAIN, "drydock, cold cache", 0.75, (figures["ours again"], figures["ours"]), LITTLE_KEPT),
        _make_start_row(
            DISK,
            "plain eager",
            GOALS["plain eager"],
            (figures["ours from disk"], figures["plain eager from disk"]),
            f"What a node sees first. {HELPED}",
        ),
    ]


def measure_short_starts() -> list[Measurement]:
    """Measure one start of drydock's server and of the plain one that starts sooner."""
    starts = _Starts(prepare_ways())
    measures = {
        "ours": lambda: starts.seconds(starts.ways.ours, fresh=True),
        "plain eager": lambda: starts.seconds(starts.ways.eager),
    }
    try:
        figures = in_turns(measures, 1, "s")
    finally:
        starts.forget()
    name = "plain eager"
    return [_make_start_row(COLD, name, GOALS[name], (figures["ours"], figures[name]), starts.said(name))]


def _make_start_row(what: str, against: str, limit: float, figures: tuple[Figure, Figure], note: str) -> Measurement:
    ours, theirs = figures
    goal = Goal(compares="ratio", sense="at most", limit=limit)
    return Measurement(what=what, against=against, goal=goal, ours=ours, theirs=theirs, command=COMMAND, note=note)


class _Starts:
    """Starts containers and keeps their answers, and drydock's cache volume from one cold start to the next."""

    def __init__(self, compared: Ways) -> None:
        self.ways = compared
        self.answers: dict[str, list[str]] = {}
        self.volume = f"drydock-bench-{cleanup_guard.run_id()}"

    def seconds(self, way: Way, *, fresh: bool = False, files: Literal["keep", "forget"] = "keep") -> float:
        """Return the seconds until a server answers. drydock's uses the last start's cache, unless `fresh`."""
        ours = way is self.ways.ours
        if fresh or (ours and self.volume not in self._volumes()):
            self.forget()
            if not fresh:
                self.seconds(way, fresh=True)  # in every second round, the start with cache comes first
        volumes = {self.volume: {"bind": "/cache", "mode": "rw"}} if ours else None
        in_memory(way, self.ways.model, files)
        begin = time.monotonic()
        with run_server(way, self.ways.model, volumes) as container:
            answer = first_answer(container)
            took = time.monotonic() - begin
            container.stop(timeout=30)
        self.answers.setdefault(way.name, []).append(answer)
        if not is_right_answer(answer):
            log(f"{way.name}: wrong answer: {answer!r}")
        return took

    def said(self, name: str) -> str:
        """Return a note: whether a server's answers were correct."""
        wrong: Sequence[str] = [answer for answer in self.answers.get(name, ()) if not is_right_answer(answer)]
        if not wrong:
            return f"Both answers are correct. {HELPED}"
        sentence = f"drydock answers correctly, the other wrongly: {wrong[0]!r}. Its time is that of its first answer."
        return f"{sentence} {HELPED}"

    def forget(self) -> None:
        """Remove the volume."""
        if self.volume in self._volumes():
            docker.from_env().volumes.get(self.volume).remove()

    def _volumes(self) -> list[str]:
        return [volume.name for volume in docker.from_env().volumes.list(filters={"name": self.volume})]
