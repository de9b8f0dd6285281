"""What `bench` measures: a server or a model, how often, and where the results go. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.parse import is_number
from entrypoints.request.intents import Intents

SERVE, LATENCY, THROUGHPUT = "serve", "latency", "throughput"
"""vLLM's benchmarks: requests to a server; one batch at a time, and many prompts, without a server."""

BENCHMARK_FLAGS = {
    "--url": ("URL", "The server to measure, instead of one that bench starts: http://host:8000"),
    "--kind": ("KIND", "serve (default), latency or throughput"),
    "--prompts": ("N", "Requests to send (default: ten times the concurrency); of latency, repetitions"),
    "--output": ("FILE", "Write vLLM's JSON to a file, or to standard output with -"),
}
"""Flag → the name of its value, and its help text."""

USUAL_INPUT, USUAL_OUTPUT, USUAL_CONCURRENCY = 1024, 128, 8
"""Without --input-range, --output-range, --concurrency. The lengths are those of vLLM's random dataset."""
_PER_CLIENT = 10
_REPETITIONS = 30
"""Of a batch, as vLLM's benchmark of latency repeats it."""


class Benchmark(NamedTuple):
    """The options of `bench`."""

    url: str = ""
    kind: str = SERVE
    prompts: int | None = None
    output: str = ""
    server: tuple[str, ...] = ()
    """drydock's own flags for the server that bench starts."""
    words: tuple[str, ...] = ()
    """What the user gives to the benchmark program, after --."""


class Load(NamedTuple):
    """The requests of a benchmark."""

    input: int
    """Tokens of a prompt: the middle of the range."""
    output: int
    concurrency: int
    prompts: int
    spread: float
    """Lengths are between 1 - spread and 1 + spread of these, inside both ranges."""


def parse_benchmark(flags: Mapping[str, tuple[str, ...]], words: tuple[str, ...]) -> Benchmark:
    """Parse the options of `bench`; `words` follow a --. Raises USAGE."""
    values = {name: occurrences[0] for name, occurrences in flags.items() if occurrences}
    prompts = values.get("--prompts")
    if prompts is not None and not (is_number(prompts) and int(prompts)):
        raise EntrypointError(USAGE, f"--prompts {prompts}: invalid value, expected a whole number above zero")
    return Benchmark(
        values.get("--url", ""),
        values.get("--kind", SERVE),
        int(prompts) if prompts else None,
        values.get("--output", ""),
        words=words,
    )


def load_of(benchmark: Benchmark, intents: Intents) -> Load:
    """Return the requests, from the goals that `serve` takes."""
    prompt, answer = intents.input or (USUAL_INPUT,) * 2, intents.output or (USUAL_OUTPUT,) * 2
    count = intents.concurrency or USUAL_CONCURRENCY
    usual = _REPETITIONS if benchmark.kind == LATENCY else _PER_CLIENT * count
    return Load(
        input=sum(prompt) // 2,
        output=sum(answer) // 2,
        concurrency=count,
        prompts=benchmark.prompts or usual,
        spread=min(_compute_spread(prompt), _compute_spread(answer)),
    )


def _compute_spread(ends: tuple[int, int]) -> float:
    """Return by what share of the middle the ends differ from it, rounded down: vLLM takes one share for both."""
    first, last = ends
    return (last - first) * 1000 // (last + first) / 1000
