"""Lengths of real requests, from a file: JSON lines, CSV, or a running server's Prometheus metrics. Pure.

Every format becomes (tokens of the prompt, tokens of the answer, number of requests), in ascending order. Only
`read_workload` reads a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.request.intents import Intents, Request

_PROMPTS = (
    "input",
    "prompt",
    "input_tokens",
    "prompt_tokens",
    "input_len",
    "prompt_len",
    "contexttokens",
    "num_prompt_tokens",
)
_ANSWERS = (
    "output",
    "completion",
    "output_tokens",
    "completion_tokens",
    "output_len",
    "generatedtokens",
    "num_generation_tokens",
)
_COUNTS = ("count", "requests", "weight")
"""Names of columns and keys, in lower case: plain ones, OpenAI's usage, vLLM's, Azure's public traces."""

_METRIC = re.compile(r"vllm:request_(prompt|generation)_tokens_bucket\{([^}]{0,500})\}\s+(\S+)")
_EDGE = re.compile(r'le="([^"]+)"')

_FILE_AT_MOST = 64 << 20
"""Characters: about two million requests."""
LONGEST = 1 << 24
"""Tokens of one request; more is a typing error."""

EXPECTED = 'lines such as {"input": 812, "output": 150}, or 812,150, or the text of /metrics'


def read_workload(intents: Intents) -> Intents:
    """Return the goals with the lengths in the --workload file. Raises USAGE."""
    try:
        with open(intents.workload_file, encoding="utf-8") as file:
            return intents.with_workload(parse_workload(file.read(_FILE_AT_MOST)))
    except (OSError, ValueError) as error:
        raise EntrypointError(USAGE, f"--workload {intents.workload_file}: {error}") from error


def parse_workload(text: str) -> tuple[Request, ...]:
    """Parse a file of lengths. Raises ValueError that names the line and what was expected."""
    if "vllm:request_prompt_tokens_bucket" in text:
        return _sum_requests(_from_metrics(text))
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise ValueError(f"the file is empty, expected {EXPECTED}")
    if lines[0][1].startswith("{"):
        return _sum_requests(_from_json(number, line) for number, line in lines)
    return _sum_requests(_from_csv(lines))


def _sum_requests(requests: Iterable[Request]) -> tuple[Request, ...]:
    """Add up requests of the same lengths."""
    counts: dict[tuple[int, int], float] = {}
    for prompt, answer, count in requests:
        if count > 0:
            counts[prompt, answer] = counts.get((prompt, answer), 0.0) + count
    if not counts:
        raise ValueError(f"the file has no requests, expected {EXPECTED}")
    return tuple((prompt, answer, count) for (prompt, answer), count in sorted(counts.items()))


def _from_json(number: int, line: str) -> Request:
    import json

    try:
        loaded = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number}: {error}, expected {EXPECTED}") from error
    if not isinstance(loaded, dict):
        raise ValueError(f"line {number}: {line[:80]!r}, expected an object")  # noqa: TRY004 - an error of the format
    usage = loaded.get("usage")
    return _make_request(number, usage if isinstance(usage, dict) else loaded)


def _from_csv(lines: list[tuple[int, str]]) -> Iterable[Request]:
    """Parse comma-separated columns: named by a first line, or else prompt, answer and optionally count."""
    names = [name.strip().lower() for name in lines[0][1].split(",")]
    has_header = any(name in _PROMPTS for name in names)
    columns = names if has_header else ["input", "output", "count"]
    for number, line in lines[has_header:]:
        cells = [cell.strip() for cell in line.split(",")]
        yield _make_request(number, dict(zip(columns, cells, strict=False)))


def _make_request(number: int, fields: Mapping[str, object]) -> Request:
    lower = {str(name).lower(): value for name, value in fields.items()}
    count = next((lower[name] for name in _COUNTS if name in lower), 1)
    prompt, answer = _read_token_count(number, lower, _PROMPTS), _read_token_count(number, lower, _ANSWERS)
    return prompt, answer, _read_request_number(number, count, least=0)


def _read_token_count(number: int, fields: Mapping[str, object], names: tuple[str, ...]) -> int:
    value = next((fields[name] for name in names if name in fields), None)
    if value is None:
        raise ValueError(f"line {number}: no value for {names[0]}, expected {EXPECTED}")
    return int(_read_request_number(number, value, least=1))


def _read_request_number(number: int, value: object, least: int) -> float:
    try:
        amount = float(str(value))
    except ValueError:
        amount = -1.0
    if not least <= amount <= LONGEST:
        raise ValueError(f"line {number}: {str(value)[:40]!r}, expected a number from {least} to {LONGEST}")
    return amount


# --- metrics --------------------------------------------------------------------------------------------------------


def _from_metrics(text: str) -> Iterable[Request]:
    """Combine a server's two histograms, as if lengths of prompts and answers were independent."""
    prompts, answers = _parse_histogram(text, "prompt"), _parse_histogram(text, "generation")
    total = sum(answers.values()) or 1.0
    return [
        (prompt, answer, first * second / total)
        for prompt, first in prompts.items()
        for answer, second in answers.items()
    ]


def _parse_histogram(text: str, kind: str) -> dict[int, float]:
    """Return upper edge → requests, over all engines and models; the open bucket counts at the last edge."""
    cumulative: dict[float, float] = {}
    for match in _METRIC.finditer(text):
        edge = _EDGE.search(match[2])
        if match[1] == kind and edge:
            cumulative[_parse_metric_number(edge[1])] = cumulative.get(
                _parse_metric_number(edge[1]), 0.0
            ) + _parse_metric_number(match[3])
    finite = [edge for edge in sorted(cumulative) if 1 <= edge <= LONGEST]
    below = 0.0
    requests: dict[int, float] = {}
    for upper in finite:
        requests[int(upper)] = max(0.0, cumulative[upper] - below)
        below = max(below, cumulative[upper])
    if finite:
        requests[int(finite[-1])] += max(0.0, cumulative.get(float("inf"), below) - below)
    return requests


def _parse_metric_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise ValueError(f"{text[:40]!r}, expected a number in Prometheus format") from error
    if value != value or value < 0:  # noqa: PLR0124 - only NaN differs from itself
        raise ValueError(f"{text[:40]!r}, expected a number that is not negative")
    return value
