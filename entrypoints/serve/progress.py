"""Whether a server that is ready makes progress: tokens, answers, and one token that is asked for when it is idle. IO.

vLLM's /health stays 200 while an engine core hangs, and its gauges of requests change only when the engine reports. So
an engine that hangs while it is idle is noticed by a request of our own, for one token.

A prefill in chunks makes no token for a long time, but takes a part of the KV cache with each chunk. Therefore any
change of an engine's counters is progress, and `patience` must cover only the longest step.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import Thread
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from entrypoints.core.metrics import parse_samples
from entrypoints.serve.client import Endpoint, Unreachable, send_request
from entrypoints.serve.known_answer import COMPLETIONS, GREEDY, HTTP_OK

if TYPE_CHECKING:
    from entrypoints.serve.watch import SharedState

WAITING = ("vllm:num_requests_running", "vllm:num_requests_waiting")
"""vLLM's gauges of unfinished requests."""
MOVING = (
    *WAITING,
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
)
"""Numbers that only a working engine changes."""
RUNNING, QUEUED = WAITING
TOKENS = "vllm:generation_tokens_total"
CACHE_USED = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""The part of the KV cache that is used, from 0 to 1."""
ASLEEP = "vllm:engine_sleep_state"
EXPIRED = ("vllm:nixl_num_kv_expired_reqs", "vllm:nixl_num_kv_expired_reqs_total")
"""Requests whose KV cache a prefill server freed before a decode server had read it; counted on the prefill server."""
DEAD_AFTER = 2
"""A server without progress for this many times its patience is not alive."""
LOOKS = 5
"""Looks at the server during its patience."""
ANSWER_WITHIN = 5.0
"""Seconds for vLLM's counters; a busy server answers later, and is looked at again."""
_REFUSED = (*range(400, 500), 503)
"""The server does not generate now and says so: too many requests, or vLLM changes its number of engines."""


class Engine(NamedTuple):
    """What vLLM reports about one engine."""

    unfinished: float = 0.0
    """Requests running and waiting."""
    numbers: tuple[float, ...] = ()
    """The values of MOVING."""
    by_name: Mapping[str, float] = MappingProxyType({})
    """The same values, of each metric the last one."""


class Look(NamedTuple):
    """One look at vLLM's counters."""

    engines: Mapping[str, Engine]
    """By their numbers as text; none with --disable-log-stats."""
    asleep: bool = False
    """Whether an engine was put to sleep, so that no token can be expected."""
    expired: float = 0.0
    """EXPIRED, of all engines together."""


def parse_look(text: str) -> Look:
    """Read vLLM's counters, by engine. Pure. Raises ValueError for a line that is no sample."""
    engines: dict[str, Engine] = {}
    asleep, expired = False, 0.0
    for name, labels, value in parse_samples(text, (ASLEEP, *EXPIRED, *MOVING)):
        if name == ASLEEP and labels.get("sleep_state") == "awake":
            asleep = asleep or value == 0
        if name in EXPIRED:
            expired += value
        if labels and name in MOVING:
            number = labels.get("engine", "")
            before = engines.get(number, Engine())
            count = value if name in WAITING else 0.0
            values = {**before.by_name, name: value}
            engines[number] = Engine(before.unfinished + count, (*before.numbers, value), values)
    return Look(engines, asleep, expired)


class Progress:
    """Since when what has made no progress. Times are in seconds, on any one clock. Pure."""

    def __init__(self, now: float) -> None:
        self.moved = now
        """The last change of any engine's numbers."""
        self._began = self._answered = now
        self._engines: dict[str, tuple[Engine, float]] = {}
        self._token_at: dict[str, float] = {}
        self._requested: float | None = None

    @property
    def pending(self) -> bool:
        """Whether the token that was asked for is still to come."""
        return self._requested is not None

    def see(self, look: Look, now: float) -> None:
        """Take in what vLLM reported."""
        self._answered = now
        engines = {}
        for name, engine in look.engines.items():
            before, since = self._engines.get(name, (None, now))
            moved = before is None or engine.numbers != before.numbers
            if moved:
                self.moved = now
            free = moved or not engine.unfinished or look.asleep
            engines[name] = (engine, now if free else since)
            if before and engine.by_name.get(TOKENS, 0.0) > before.by_name.get(TOKENS, 0.0):
                self._token_at[name] = now
        self._engines = engines
        if look.asleep:
            self.moved, self._requested = now, None

    def ask(self, now: float) -> None:
        """Note that a token was asked for; a repeated request changes nothing."""
        self._requested = now if self._requested is None else self._requested

    def answer(self, now: float) -> None:
        """Note that the token came, or that it cannot be asked for."""
        self._requested = None
        self.moved = now

    def describe_engines(self, now: float) -> tuple[str, ...]:
        """Return a line for each engine: its queue, its KV cache and its last token, as vLLM last told them."""
        age = now - self._answered
        lines = []
        for name, (engine, _) in self._engines.items():
            values = engine.by_name
            used = next((values[metric] for metric in CACHE_USED if metric in values), None)
            token_at = self._token_at.get(name)
            parts = (
                f"running requests {values.get(RUNNING, 0.0):g}",
                f"waiting requests {values.get(QUEUED, 0.0):g}",
                "KV cache unknown" if used is None else f"KV cache {100 * used:.0f} % used",
                f"no token for {now - (self._began if token_at is None else token_at):.0f} s",
            )
            lines.append(f"engine {name}: {', '.join(parts)}; as vLLM told {age:.0f} s ago")
        return tuple(lines)

    def stalled(self, now: float, patience: float) -> tuple[str, float]:
        """Return what makes no progress for at least `patience`, and for how long; nothing if all do."""
        waits = [("vLLM's server has not answered", now - self._answered)]
        if self._answered >= now - patience:
            engines = ((name, since) for name, (_, since) in self._engines.items())
            waits += [(f"requests wait at engine {name} without progress", now - since) for name, since in engines]
            waits += [("vLLM has not generated a token that it was asked for", now - (self._requested or now))]
        text, longest = max(waits, key=lambda wait: wait[1])
        return (f"{text} for {longest:.0f} s", longest) if longest >= patience else ("", 0.0)


def watch_progress(shared: SharedState, endpoint: Endpoint, patience: float, name: str) -> None:
    """Keep `stalled` and `dead` of the state, until the server stops.

    `name` is the model to ask for a token. It is empty for a server that has never generated one, such as of an
    embedding model, or with a key that is unknown here: nothing is asked for.
    """
    progress, asking = Progress(shared.now()), _Asking(endpoint, name, patience)
    shared.progress = progress
    while not (shared.state.stopping or shared.state.lost):
        look = _read_look(endpoint, min(ANSWER_WITHIN, patience))
        now = shared.now()
        if look:
            progress.see(look, now)
            if look.expired != shared.state.expired:
                shared.note(expired=look.expired)
        asking.update(progress, look, now)
        reason, waited = progress.stalled(now, patience)
        dead = waited >= DEAD_AFTER * patience
        if (bool(reason), dead) != (bool(shared.state.stalled), shared.state.dead):
            shared.note(stalled=reason, dead=dead)
        time.sleep(min(1.0, patience / LOOKS))


def _read_look(endpoint: Endpoint, timeout: float) -> Look | None:
    try:
        return parse_look(send_request(endpoint, "/metrics", timeout=timeout).text)
    except (Unreachable, ValueError):
        return None


class _Asking:
    """Asks an idle engine for a token, in a thread, one request at a time."""

    def __init__(self, endpoint: Endpoint, name: str, patience: float) -> None:
        self._endpoint = endpoint
        self._question = {"model": name, "prompt": "The", **GREEDY, "max_tokens": 1}
        self._patience = patience
        self._running = False
        self._came = False

    def update(self, progress: Progress, look: Look | None, now: float) -> None:
        """Take in an answer, and ask if nothing has moved for half of the patience."""
        if self._came:
            self._came = False
            progress.answer(now)
        counted = look is not None and look.engines and not look.asleep
        busy = look is not None and any(engine.unfinished for engine in look.engines.values())
        due = progress.pending or (not busy and now - progress.moved >= self._patience / 2)
        if self._question["model"] and counted and due and not self._running:
            progress.ask(now)
            self._running = True
            Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        try:
            status = send_request(self._endpoint, COMPLETIONS, self._question, DEAD_AFTER * self._patience).status
        except Unreachable:
            status = 0
        self._came = status in (HTTP_OK, *_REFUSED)
        self._running = False
