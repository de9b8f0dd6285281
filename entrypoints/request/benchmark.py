"""What `bench` measures: a server or a model, how often, and where the results go. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.parse import is_number
from entrypoints.request.intents import Intents

SERVE, LATENCY, THROUGHPUT = "serve", "latency", "throughput"
"""vLLM's benchmarks: requests to a server; one batch at a time, and many prompts, without a server."""

FLAGS = {
    "--url": ("URL", "The server to measure, instead of one that bench starts: http://host:8000"),
    "--kind": ("KIND", "serve (default), latency or throughput"),
    "--prompts": ("N", "Requests to send (default: ten times the concurrency); of latency, repetitions"),
    "--sweep": ("NAME=LIST", "Measure several times, such as concurrency=1,8,32"),
    "--output": ("FILE", "Write vLLM's JSON to a file"),
    "--compare": ("A B", "Compare two files that --output wrote"),
}
"""Flag → the name of its value, and its help text."""

USUAL_INPUT, USUAL_OUTPUT, USUAL_CONCURRENCY = 1024, 128, 8
"""Without --input-range, --output-range, --concurrency. The lengths are those of vLLM's random dataset."""
_PER_CLIENT = 10
_REPETITIONS = 30
"""Of a batch, as vLLM's benchmark of latency repeats it."""
_RUNS_AT_MOST = 32


class Benchmark(NamedTuple):
    """The options of `bench`."""

    url: str = ""
    kind: str = SERVE
    prompts: int | None = None
    sweep: tuple[int, ...] = ()
    """Concurrencies."""
    output: str = ""
    compare: tuple[str, ...] = ()
    server: tuple[str, ...] = ()
    """drydock's own flags for the server that bench starts."""
    words: tuple[str, ...] = ()
    """What the user gives to the benchmark program, after --."""


class Load(NamedTuple):
    """The requests of one run."""

    input: int
    """Tokens of a prompt: the middle of the range."""
    output: int
    concurrency: int
    prompts: int
    spread: float
    """Lengths are between 1 - spread and 1 + spread of these, inside both ranges."""


def parse_benchmark(flags: Mapping[str, tuple[str, ...]], words: tuple[str, ...]) -> Benchmark:
    """Parse the options of `bench`; `words` follow a --. Raises USAGE."""
    values = {name: given[0] for name, given in flags.items() if given}
    prompts = values.get("--prompts")
    if prompts is not None and not (is_number(prompts) and int(prompts)):
        raise EntrypointError(USAGE, f"--prompts {prompts}: invalid value, expected a whole number above zero")
    return Benchmark(
        values.get("--url", ""),
        values.get("--kind", SERVE),
        int(prompts) if prompts else None,
        _sweep(values.get("--sweep")),
        values.get("--output", ""),
        flags.get("--compare", ()),
        words=words,
    )


def _sweep(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    name, _, numbers = text.partition("=")
    words = numbers.split(",")
    if name != "concurrency" or len(words) > _RUNS_AT_MOST or not all(is_number(word) and int(word) for word in words):
        message = f"--sweep {text}: expected concurrency= and at most {_RUNS_AT_MOST} numbers above zero"
        raise EntrypointError(USAGE, message, "--sweep concurrency=1,8,32")
    return tuple(sorted({*map(int, words)}))


def loads(benchmark: Benchmark, intents: Intents) -> tuple[Load, ...]:
    """Return the requests of each run, from the goals that `serve` takes. Raises USAGE."""
    if benchmark.sweep and intents.concurrency:
        raise EntrypointError(USAGE, "--sweep concurrency=… and --concurrency: both give it", "give one of them")
    prompt, answer = intents.input or (USUAL_INPUT,) * 2, intents.output or (USUAL_OUTPUT,) * 2
    spread = min(_spread(prompt), _spread(answer))
    counts = benchmark.sweep or (intents.concurrency or USUAL_CONCURRENCY,)
    usual = {count: _REPETITIONS if benchmark.kind == LATENCY else _PER_CLIENT * count for count in counts}
    middle = sum(prompt) // 2, sum(answer) // 2
    return tuple(Load(*middle, count, benchmark.prompts or usual[count], spread) for count in counts)


def _spread(ends: tuple[int, int]) -> float:
    """Return by what share of the middle the ends differ from it, rounded down: vLLM takes one share for both."""
    first, last = ends
    return (last - first) * 1000 // (last + first) / 1000
