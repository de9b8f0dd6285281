"""Output tokens per second for several numbers of clients, and whether the answers are the same. IO.

One server runs at a time: two would share the processors.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from docker.models.containers import Container

from bench.bench_records import Figure, Goal, Measurement, ratio_at_least
from bench.compared_servers import (
    HELPED,
    Way,
    complete_prompt,
    first_answer,
    make_unguarded_way,
    prepare_ways,
    run_server,
)
from drydock.core.console import log

COMMAND = "./inv bench serve"
CLIENTS = (1, 8, 32)
REQUESTS = {1: 4, 8: 24, 32: 64}
"""Clients → requests: about ten seconds of work on two cores."""
TOKENS = 64
SUBJECTS = ("tides", "bread", "maps", "bridges", "clocks", "paper", "glass", "rivers", "bees", "salt", "wheels",
            "rain", "ink", "stars", "ships", "corn")  # fmt: skip
FORMS = ("Explain in plain words how {} came to be what they are today:", "A short story for children about {}:",
         "Three questions about {}, and their answers.", "List what everyone should know about {}.")  # fmt: skip
PROMPTS = tuple(form.format(subject) for form in FORMS for subject in SUBJECTS)
COMPARED = PROMPTS[::4]
"""A sample with every form and many subjects."""
AGAINST = ("plain eager", "plain default", "without the guard")
"""The servers that drydock's is compared with. The guard is drydock's middleware."""
GOALS = {
    "plain eager": ratio_at_least(1.4, "Kernels and layers are the same; processes and threads are not."),
    "plain default": ratio_at_least(1.1, "Less would be a loss."),
}
PLAIN_ROUNDS = 2
"""Their difference is many times the spread; that of the guard is within it, and takes more rounds to see."""


def measure_serving(rounds: int) -> list[Measurement]:
    """Measure throughput; return a row for each number of clients and each plain server."""
    compared = prepare_ways()
    visits: list[Visit] = []
    with tempfile.TemporaryDirectory(prefix="drydock-bench-") as folder:
        bare = make_unguarded_way(compared.ours, Path(folder, "plugin"))
        order = (compared.ours, bare, compared.eager, compared.default)
        for number in range(rounds):
            ways = order if number < PLAIN_ROUNDS else order[:2]
            visits += [visit_server(way, compared.model) for way in (ways if number % 2 == 0 else reversed(ways))]
    return rows_of(visits)


class Visit(NamedTuple):
    """The results of one start of one server."""

    name: str
    answers: tuple[str, ...]
    """Answers to COMPARED, asked one at a time."""
    speeds: Mapping[int, float]
    """Clients → output tokens per second."""


def visit_server(way: Way, model: Path) -> Visit:
    """Start a server, warm it up with the prompts whose answers are compared, and measure it."""
    with run_server(way, model) as container:
        log(f"{way.name}: {first_answer(container)!r}")
        _, answers = _send_prompts(container, 1, COMPARED)
        _send_prompts(container, max(CLIENTS), PROMPTS[: max(CLIENTS)])
        speeds = {clients: _measure_speed(container, clients) for clients in CLIENTS}
    log(f"{way.name}: " + ", ".join(f"{clients} clients: {speed:.1f} tok/s" for clients, speed in speeds.items()))
    return Visit(way.name, tuple(answers), speeds)


def _measure_speed(container: Container, clients: int) -> float:
    prompts = PROMPTS[: REQUESTS[clients]]
    seconds, _ = _send_prompts(container, clients, prompts)
    return round(len(prompts) * TOKENS / seconds, 3)


def _send_prompts(container: Container, clients: int, prompts: Sequence[str]) -> tuple[float, list[str]]:
    """Send the prompts from several clients; return the seconds until the last answer, and the answers in order."""
    begin = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda prompt: complete_prompt(container, prompt, TOKENS), prompts))
    return time.monotonic() - begin, answers


def rows_of(visits: Sequence[Visit]) -> list[Measurement]:
    """Return the rows of all visits. Pure."""
    return [_make_serve_row(clients, name, visits) for clients in CLIENTS for name in AGAINST]


def _make_serve_row(clients: int, name: str, visits: Sequence[Visit]) -> Measurement:
    theirs = _make_figure(name, clients, visits)
    return Measurement(
        what=f"output tokens per second, {clients} client{'s' if clients > 1 else ''}, SmolLM2",
        against=name,
        goal=GOALS.get(name) or make_guard_goal(theirs),
        ours=_make_figure("ours", clients, visits),
        theirs=theirs,
        command=COMMAND,
        note=describe_same_answers(name, visits) if clients == CLIENTS[0] else "",
    )


def make_guard_goal(bare: Figure) -> Goal:
    """Return the goal of a server with the guard: no slower than one without it is from round to round. Pure."""
    spread = (max(bare.values) - min(bare.values)) / bare.median
    return ratio_at_least(round(1 - spread, 3), "The difference is within the spread of the server without the guard.")


def _make_figure(name: str, clients: int, visits: Sequence[Visit]) -> Figure:
    return Figure(unit="tok/s", values=tuple(visit.speeds[clients] for visit in visits if visit.name == name))


def describe_same_answers(name: str, visits: Sequence[Visit]) -> str:
    """Return a note: how many greedy answers are the same as drydock's."""
    ours, theirs = (next(visit.answers for visit in visits if visit.name == way_name) for way_name in ("ours", name))
    count = sum(one == their_answer for one, their_answer in zip(ours, theirs, strict=True))
    helped = f" {HELPED}" if name.startswith("plain") else ""
    return f"{count} of {len(ours)} greedy answers of {TOKENS} tokens, to one client, are identical.{helped}"
