"""The results of vLLM's benchmarks: read from files, shown as a table, compared. Pure, except `read_results`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.parse import parse_json
from entrypoints.core.text import one_line

Result = Mapping[str, Any]

FILE_AT_MOST = 64 << 20
"""Bytes."""
RUNS_AT_MOST = 32
SAME = 0.01
"""Share by which two figures may differ and count as the same."""


class Metric(NamedTuple):
    """A figure of a result."""

    key: str
    label: str
    more: bool
    """Whether more is better."""
    scale: float = 1.0


METRICS = (
    Metric("request_throughput", "requests/s", more=True),
    Metric("output_throughput", "output tokens/s", more=True),
    Metric("total_token_throughput", "all tokens/s", more=True),
    Metric("median_ttft_ms", "TTFT, median, ms", more=False),
    Metric("p99_ttft_ms", "TTFT, 99 %, ms", more=False),
    Metric("median_itl_ms", "ITL, median, ms", more=False),
    Metric("p99_itl_ms", "ITL, 99 %, ms", more=False),
    Metric("requests_per_second", "requests/s", more=True),
    Metric("tokens_per_second", "all tokens/s", more=True),
    Metric("avg_latency", "latency, mean, ms", more=False, scale=1e3),
    Metric("percentiles.50", "latency, median, ms", more=False, scale=1e3),
    Metric("percentiles.99", "latency, 99 %, ms", more=False, scale=1e3),
)
"""vLLM's names: benchmarks/serve.py, then throughput.py, then latency.py."""


def value(result: Result, metric: Metric, name: str = "") -> float | None:
    """Return a figure, None if the result has none. Raises USAGE, with `name`, for what is not a number."""
    found: Any = result
    for step in metric.key.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, (int, float)) or found < 0:
        raise EntrypointError(USAGE, f"{name}: {metric.key}: expected a number, found {one_line(str(found)[:80])!r}")
    return found * metric.scale


def read_results(path: str) -> tuple[Result, ...]:
    """Return the runs of a file that `bench --output` wrote: one, or those of a sweep. Raises USAGE."""
    from entrypoints.core.folders import read_bounded

    try:
        read = parse_json(read_bounded(path, FILE_AT_MOST))
    except (OSError, ValueError) as error:
        raise EntrypointError(USAGE, f"--compare {path}: {getattr(error, 'strerror', None) or error}") from error
    runs = tuple(read) if isinstance(read, list) else (read,)
    if not 0 < len(runs) <= RUNS_AT_MOST or not all(isinstance(run, dict) for run in runs):
        message = f"--compare {path}: expected a result of vLLM's benchmark, or a list of 1 to {RUNS_AT_MOST}"
        raise EntrypointError(USAGE, message, "write one with bench --output FILE")
    if all([value(run, metric, path) is None for run in runs for metric in METRICS]):  # noqa: C419 - every one is read
        raise EntrypointError(USAGE, f"--compare {path}: has no figure of vLLM's benchmarks", "bench --output FILE")
    return runs


def table(titles: Sequence[str], results: Sequence[Result]) -> str:
    """Format the figures, one line each, with a column for each run."""
    rows = [(metric.label, [value(result, metric) for result in results]) for metric in METRICS]
    lines = [f"{'':22}" + "".join(f"{title:>18}" for title in titles)]
    for label, found in rows:
        if any(each is not None for each in found):
            lines.append(f"{label:22}" + "".join(f"{shown(each):>18}" for each in found))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def shown(number: float | None) -> str:
    """Format a figure."""
    return "-" if number is None else f"{number:.2f}"


def number_of(result: Result, name: str, usual: int) -> int:
    """Return a number that the benchmark ran with: the user's words replace drydock's, which is `usual`."""
    found = result.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else usual


def missing(result: Result, prompts: int) -> int:
    """Return how many requests of a server's benchmark failed; 0 for other results."""
    completed = result.get("completed")
    return max(0, number_of(result, "num_prompts", prompts) - completed) if isinstance(completed, int) else 0


# --- comparing ------------------------------------------------------------------------------------------------------


def compared(first: Sequence[Result], second: Sequence[Result]) -> str:
    """Compare the runs of two files: single ones, or those of equal concurrency. Raises USAGE if none are alike."""
    pairs = [("", first[0], second[0])] if len(first) == len(second) == 1 else _alike(first, second)
    texts = [text for title, one, other in pairs for text in _pair(title, one, other)]
    if not texts:
        raise EntrypointError(USAGE, "--compare: the files have no run and no figure in common", "compare equal kinds")
    return "".join(texts)


def _alike(first: Sequence[Result], second: Sequence[Result]) -> list[tuple[str, Result, Result]]:
    others = {str(run.get("max_concurrency")): run for run in second}
    named = [(str(run.get("max_concurrency")), run) for run in first]
    return [(f"concurrency {name}", run, others[name]) for name, run in named if name in others]


def _pair(title: str, one: Result, other: Result) -> list[str]:
    rows = [
        (metric, left, right)
        for metric in METRICS
        if (left := value(one, metric, "A")) is not None and (right := value(other, metric, "B")) is not None
    ]
    if not rows:
        return []
    lines = [f"{title:22}{'A':>14}{'B':>14}{'B/A':>8}  better"]
    lines += [
        f"{metric.label:22}{left:14.2f}{right:14.2f}{_ratio(left, right):>8}  {better(metric, left, right)}"
        for metric, left, right in rows
    ]
    return ["\n".join((*lines, *_differences(one, other))) + "\n"]


def _ratio(left: float, right: float) -> str:
    return f"{right / left:.2f}" if left else "-"


def better(metric: Metric, left: float, right: float) -> str:
    """Return which of two figures is better."""
    if abs(right - left) <= SAME * max(left, right):
        return "same"
    return "B" if (right > left) == metric.more else "A"


def _differences(one: Result, other: Result) -> list[str]:
    """Return lines for settings that differ, so that the figures are not of the same work."""
    names = ("model_id", "num_prompts", "max_concurrency", "total_input_tokens", "total_output_tokens")
    different = [name for name in names if name in one and name in other and one[name] != other[name]]
    return [
        f"differs: {name}: {one_line(str(one[name]))[:80]}, {one_line(str(other[name]))[:80]}" for name in different
    ]
