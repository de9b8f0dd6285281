"""Output tokens a second at several numbers of clients, and whether the answers are the same. IO.

All servers stay up and take turns; those whose turn it is not are paused, so that they take no processor time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from docker.models.containers import Container

from drydock.bench.records import Figure, Goal, Row
from drydock.bench.servers import Way, Ways, complete, first_answer, running, ways
from drydock.bench.turns import in_turns
from drydock.console import log

COMMAND = "./inv bench serve"
CLIENTS = (1, 8, 32)
REQUESTS = {1: 4, 8: 24, 32: 64}
"""Requests for each number of clients: some ten seconds of work on two cores."""
TOKENS = 64
SUBJECTS = ("tides", "bread", "maps", "bridges", "clocks", "paper", "glass", "rivers", "bees", "salt", "wheels",
            "rain", "ink", "stars", "ships", "corn")  # fmt: skip
FORMS = ("Explain in plain words how {} came to be what they are today:", "A short story for children about {}:",
         "Three questions about {}, and their answers.", "List what everyone should know about {}.")  # fmt: skip
PROMPTS = tuple(form.format(subject) for form in FORMS for subject in SUBJECTS)
AGAINST = {"plain eager": 1.4, "plain default": 1.05}


def rows(rounds: int) -> list[Row]:
    """Measure throughput; return a row for each number of clients and each plain way."""
    compared = ways()
    with contextlib.ExitStack() as stack:
        servers = _Servers(compared, stack)
        servers.agree()
        return [row for clients in CLIENTS for row in servers.rows(clients, rounds)]


class _Servers:
    """Servers that take turns."""

    def __init__(self, compared: Ways, stack: contextlib.ExitStack) -> None:
        self.up: dict[str, Container] = {}
        for way in (compared.ours, compared.eager, compared.default):
            self.up[way.name] = self._start(way, compared, stack)
        self.note = ""

    def _start(self, way: Way, compared: Ways, stack: contextlib.ExitStack) -> Container:
        container = stack.enter_context(running(way, compared.model))
        log(f"{way.name}: {first_answer(container)!r}")
        container.pause()
        return container

    def agree(self) -> None:
        """Compare what all say to the prompts, one at a time; it also warms them up."""
        said = {name: self._all(name, 1, PROMPTS[:16])[1] for name in self.up}
        ours = said.pop("ours")
        same = {name: sum(a == b for a, b in zip(ours, theirs, strict=True)) for name, theirs in said.items()}
        told = ", ".join(f"{count} of {len(ours)} as {name}'s" for name, count in same.items())
        self.note = f"Of our greedy answers of {TOKENS} tokens, to one client, {told}."

    def rows(self, clients: int, rounds: int) -> list[Row]:
        """Measure all at one number of clients."""
        measures = {name: partial(self.speed, name, clients) for name in self.up}
        figures = in_turns(measures, rounds, "tok/s")
        return [self._row(clients, name, figures["ours"], figures[name]) for name in AGAINST]

    def _row(self, clients: int, name: str, ours: Figure, theirs: Figure) -> Row:
        return Row(
            what=f"output tokens a second, {clients} client{'s' if clients > 1 else ''}, SmolLM2",
            against=name,
            goal=Goal(compares="ratio", sense="at least", limit=AGAINST[name]),
            ours=ours,
            theirs=theirs,
            command=COMMAND,
            note=self.note if clients == CLIENTS[0] else "",
        )

    def speed(self, name: str, clients: int) -> float:
        """Return the output tokens a second of one server."""
        count = REQUESTS[clients]
        seconds, _ = self._all(name, clients, (PROMPTS * 2)[:count])
        return count * TOKENS / seconds

    def _all(self, name: str, clients: int, prompts: Sequence[str]) -> tuple[float, list[str]]:
        container = self.up[name]
        container.unpause()
        begin = time.monotonic()
        with ThreadPoolExecutor(clients) as pool:
            answers = list(pool.map(lambda prompt: complete(container, prompt, TOKENS), prompts))
        seconds = time.monotonic() - begin
        container.pause()
        return seconds, answers
