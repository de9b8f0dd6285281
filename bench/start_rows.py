"""Seconds from `docker run` to the first correct answer: drydock with and without cache, and plain servers. IO.

The kernel has all files of a server in memory when it starts, whatever was measured before; or, for the first start on
a node, none of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import docker

from bench import cleanup_guard
from bench.bench_records import Figure, Goal, Measurement, ratio_at_most
from bench.compared_servers import (
    GIVEN,
    HELPED,
    MODEL,
    Way,
    Ways,
    first_answer,
    in_memory,
    is_right_answer,
    prepare_ways,
    run_server,
)
from bench.turns import in_turns
from drydock.core.console import log

COMMAND = "./inv bench start"
WHAT = "container start → first answer, CPU, SmolLM2"
COLD, AGAIN, DISK = f"{WHAT}, cold cache", f"{WHAT}, second start with /cache", f"{WHAT}, files read from disk"
FLOOR, DISK_FLOOR = "import of vLLM's server in drydock's image", "the same import, files read from disk"
IMPORT = (
    "import vllm.entrypoints.openai.api_server; from vllm.plugins import load_general_plugins; load_general_plugins()"
)
"""What no start can leave out: the module that the plan starts, and drydock's plug-in."""
MOST_OF_FLOOR = 1.25
FLOOR_NOTE = (
    "The other figure is the floor: the same image and environment only import vLLM's server module, with drydock's "
    "plug-in, and end."
)
FLOOR_GOAL = ratio_at_most(
    MOST_OF_FLOOR,
    "What is not import, such as engine, known answer and HTTP server, may take a quarter of what is.",
)
OF_FLOOR = f"It is {MOST_OF_FLOOR} times the floor, as a share of the other server's time."
AGAIN_NOTE = "Nothing is compiled for this model, so a cold start leaves only 1 kB in /cache: vLLM's model inspection."
AGAIN_GOAL = ratio_at_most(1.05, "A cache makes no start slower.")


def measure_starts(rounds: int) -> list[Measurement]:
    """Measure starts."""
    starts = _Starts(prepare_ways())
    measures = {
        "ours": lambda: starts.seconds(starts.ways.ours, fresh=True),
        "ours again": lambda: starts.seconds(starts.ways.ours),
        "floor": starts.import_seconds,
        "plain default": lambda: starts.seconds(starts.ways.default),
        "plain eager": lambda: starts.seconds(starts.ways.eager),
        "ours from disk": lambda: starts.seconds(starts.ways.ours, fresh=True, files="forget"),
        "floor from disk": lambda: starts.import_seconds(files="forget"),
        "plain eager from disk": lambda: starts.seconds(starts.ways.eager, files="forget"),
    }
    try:
        figures = in_turns(measures, rounds, "s")
    finally:
        starts.forget()
    again = (figures["ours again"], figures["ours"])
    return [
        _make_start_row(COLD, FLOOR, FLOOR_GOAL, (figures["ours"], figures["floor"]), FLOOR_NOTE),
        *(_make_plain_row(COLD, name, figures, "", starts.said(name)) for name in ("plain default", "plain eager")),
        _make_start_row(AGAIN, "drydock, cold cache", AGAIN_GOAL, again, AGAIN_NOTE),
        _make_start_row(
            DISK, DISK_FLOOR, FLOOR_GOAL, (figures["ours from disk"], figures["floor from disk"]), FLOOR_NOTE
        ),
        _make_plain_row(DISK, "plain eager", figures, " from disk", f"What a node sees first. {HELPED}"),
    ]


def measure_short_starts() -> list[Measurement]:
    """Measure one start of drydock's server, its floor, and one of the plain server that starts sooner."""
    starts = _Starts(prepare_ways())
    measures = {
        "ours": lambda: starts.seconds(starts.ways.ours, fresh=True),
        "floor": starts.import_seconds,
        "plain eager": lambda: starts.seconds(starts.ways.eager),
    }
    try:
        figures = in_turns(measures, 1, "s")
    finally:
        starts.forget()
    return [
        _make_start_row(COLD, FLOOR, FLOOR_GOAL, (figures["ours"], figures["floor"]), FLOOR_NOTE),
        _make_plain_row(COLD, "plain eager", figures, "", starts.said("plain eager")),
    ]


def _make_plain_row(what: str, name: str, figures: Mapping[str, Figure], files: str, note: str) -> Measurement:
    """Compare with a plain server; `files` is the end of the figures' names."""
    ours, floor, theirs = (figures[f"{start}{files}"] for start in ("ours", "floor", name))
    limit = round(MOST_OF_FLOOR * floor.median / theirs.median, 2)
    return _make_start_row(what, name, ratio_at_most(limit, OF_FLOOR), (ours, theirs), note)


def _make_start_row(what: str, against: str, goal: Goal, figures: tuple[Figure, Figure], note: str) -> Measurement:
    ours, theirs = figures
    return Measurement(what=what, against=against, goal=goal, ours=ours, theirs=theirs, command=COMMAND, note=note)


class _Starts:
    """Starts containers and keeps their answers, and drydock's cache volume from one cold start to the next."""

    def __init__(self, compared: Ways) -> None:
        self.ways = compared
        self.answers: dict[str, list[str]] = {}
        self.volume = f"drydock-bench-{cleanup_guard.run_id()}"
        self._planned: dict[str, Any] = {}
        """What `plan --json` says of our server."""

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

    def import_seconds(self, files: Literal["keep", "forget"] = "keep") -> float:
        """Return the seconds in which a container with our server's environment imports what it serves with."""
        way, client = self.ways.ours, docker.from_env()
        options: dict[str, Any] = {"remove": True, "labels": cleanup_guard.make_run_labels()}
        if not self._planned:
            model = {str(self.ways.model): {"bind": MODEL, "mode": "ro"}}
            planned = client.containers.run(way.image, ["plan", "--json", *GIVEN], volumes=model, **options)
            self._planned = json.loads(planned)
        program = [self._planned["argv"][0], "-c", IMPORT]
        in_memory(way, self.ways.model, files)
        begin = time.monotonic()
        client.containers.run(
            way.image, program[1:], entrypoint=program[:1], environment=self._planned["env"], **options
        )
        return time.monotonic() - begin

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
