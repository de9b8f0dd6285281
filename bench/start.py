"""Seconds from `docker run` to the first correct answer: drydock with and without cache, and plain servers. IO."""

from __future__ import annotations

import time
from collections.abc import Sequence

import docker

from bench import guard
from bench.records import Goal, Measurement
from bench.servers import Way, Ways, first_answer, right, running, ways
from bench.turns import in_turns
from drydock.core.console import log

COMMAND = "./inv bench start"
WHAT = "container start → first answer, CPU, SmolLM2"


LITTLE_KEPT = (
    "Nothing is compiled for this model, so a cold start leaves only 1 kB in /cache: vLLM's model inspection. "
    "Importing PyTorch, transformers and vLLM takes two thirds of a start, and no cache avoids it."
)


def rows(rounds: int) -> list[Measurement]:
    """Measure starts."""
    starts = _Starts(ways())
    measures = {
        "ours": lambda: starts.seconds(starts.ways.ours, fresh=True),
        "ours again": lambda: starts.seconds(starts.ways.ours),
        "plain default": lambda: starts.seconds(starts.ways.default),
        "plain eager": lambda: starts.seconds(starts.ways.eager),
    }
    try:
        figures = in_turns(measures, rounds, "s")
    finally:
        starts.forget()
    cold, again = figures["ours"], figures["ours again"]
    made = [
        Measurement(
            what=f"{WHAT}, cold cache",
            against=name,
            goal=Goal(compares="ratio", sense="at most", limit=limit),
            ours=cold,
            theirs=figures[name],
            command=COMMAND,
            note=starts.said(name),
        )
        for name, limit in (("plain default", 0.15), ("plain eager", 0.40))
    ]
    goal = Goal(compares="ratio", sense="at most", limit=0.85)
    made.append(
        Measurement(
            what=f"{WHAT}, second start with /cache",
            against="drydock, cold cache",
            goal=goal,
            ours=again,
            theirs=cold,
            command=COMMAND,
            note=LITTLE_KEPT,
        )
    )
    return made


class _Starts:
    """Starts containers and keeps their answers, and drydock's cache volume from one cold start to the next."""

    def __init__(self, compared: Ways) -> None:
        self.ways = compared
        self.answers: dict[str, list[str]] = {}
        self.volume = f"drydock-bench-{guard.run_id()}"

    def seconds(self, way: Way, *, fresh: bool = False) -> float:
        """Return the seconds until a server answers. drydock's uses the last start's cache, unless `fresh`."""
        ours = way is self.ways.ours
        if fresh or (ours and self.volume not in self._volumes()):
            self.forget()
            if not fresh:
                self.seconds(way, fresh=True)  # in every second round, the start with cache comes first
        volumes = {self.volume: {"bind": "/cache", "mode": "rw"}} if ours else None
        begin = time.monotonic()
        with running(way, self.ways.model, volumes) as container:
            answer = first_answer(container)
            took = time.monotonic() - begin
            container.stop(timeout=30)
        self.answers.setdefault(way.name, []).append(answer)
        if not right(answer):
            log(f"{way.name}: wrong answer: {answer!r}")
        return took

    def said(self, name: str) -> str:
        """Return a note: whether a server's answers were correct."""
        wrong: Sequence[str] = [answer for answer in self.answers.get(name, ()) if not right(answer)]
        if not wrong:
            return "Both answers are correct."
        return f"drydock answers correctly, the other wrongly: {wrong[0]!r}. Its time is that of its first answer."

    def forget(self) -> None:
        """Remove the volume."""
        if self.volume in self._volumes():
            docker.from_env().volumes.get(self.volume).remove()

    def _volumes(self) -> list[str]:
        return [volume.name for volume in docker.from_env().volumes.list(filters={"name": self.volume})]
