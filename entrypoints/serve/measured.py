"""What vLLM says of its memory at a start, against the plan. IO: keep_document and read_kept; the rest is pure.

drydock's plug-in copies vLLM's lines into a file (serve/plugin_files.py); vLLM's own log is not read.
The lines are those of vLLM 0.19 (v1/worker/gpu_worker.py, v1/core/kv_cache_utils.py), 0.32 and 0.33, which write the
two of the KV cache as one, and of engines before V1, which count blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from entrypoints.cache.trust import find_writer
from entrypoints.core.folders import read_bounded, replace_file
from entrypoints.core.units import GIB

if TYPE_CHECKING:
    from entrypoints.core.records import ServePlan, Use

KEPT = "measured-memory.json"
"""File in the cache with the last comparison; `facts --record` includes it."""
RECORDED_AS = f"/cache/{KEPT}"
"""Path in a recorded host, wherever the cache is."""
_AT_MOST = 1 << 16
"""Bytes of the file."""

_NUMBER = r"([0-9][0-9.]{0,15})"
_WEIGHTS = re.compile(rf"Model loading took {_NUMBER} GiB")
_CACHE = re.compile(rf"Available KV cache memory: {_NUMBER} GiB")
_SIZE = re.compile(r"KV cache size: ([0-9][0-9,]{0,20}) tokens")
_CONCURRENCY = re.compile(rf"Maximum concurrency for ([0-9][0-9,]{{0,20}}) tokens per request: {_NUMBER}x")
_USED = re.compile(rf"Actual usage is {_NUMBER} GiB for weight, {_NUMBER} GiB for peak activation, "
                   rf"{_NUMBER} GiB for non-torch")  # fmt: skip
_CONSUMED = re.compile(rf"Actual usage is {_NUMBER} GiB for consumed memory \(weights \+ non-torch\), "
                       rf"{_NUMBER} GiB for peak activation")  # fmt: skip


class Measured(NamedTuple):
    """What vLLM measured on the device that has the least room; None for what it does not say. GiB."""

    weights: float | None = None
    rest: float | None = None
    """Activations, and memory outside PyTorch."""
    cache: float | None = None
    tokens: int | None = None
    """Of one engine's KV cache, in sequences of the longest length."""


def parse_lines(text: str) -> Measured:
    """Return what the lines of all ranks and engines say, of the rank with the least room."""
    weights = _parse_pattern_numbers(_WEIGHTS, text)
    consumed = [sum(map(_parse_comma_number, figures)) for figures in _CONSUMED.findall(text)]
    other_bytes = [
        _parse_comma_number(active) + _parse_comma_number(outside) for _, active, outside in _USED.findall(text)
    ]
    if consumed and weights:
        other_bytes.append(max(consumed) - max(weights))
    return Measured(
        max(weights, default=None),
        max(other_bytes, default=None),
        min(_parse_pattern_numbers(_CACHE, text), default=None),
        min(_parse_cache_tokens(text), default=None),
    )


def _parse_cache_tokens(text: str) -> list[int]:
    """Return the tokens of each engine's cache.

    vLLM up to 0.19 prints the size of a cache with sliding windows as if no layer had one, so the product counts.
    """
    products = [
        int(_parse_comma_number(length) * _parse_comma_number(times)) for length, times in _CONCURRENCY.findall(text)
    ]
    sizes = [int(_parse_comma_number(size)) for size in _SIZE.findall(text)]
    one_line = any(_SIZE.search(line) and _CONCURRENCY.search(line) for line in text.splitlines())
    return sizes if one_line else products or sizes


def _parse_pattern_numbers(pattern: re.Pattern[str], text: str) -> list[float]:
    return [_parse_comma_number(digits) for digits in pattern.findall(text)]


def _parse_comma_number(text: str) -> float:
    """Return a number with commas; 0 for what is none, such as 1.2.3."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return 0.0


def describe_difference(measured: Measured, uses: Iterable[Use]) -> str:
    """Return one sentence with what vLLM measured and what was planned; empty if vLLM said nothing."""
    planned = tuple(uses)
    tokens = min((use.tokens for use in planned if use.tokens), default=0)
    parts = (
        _of_tokens(measured.tokens, tokens),
        _of_size("weights", measured.weights, max((use.weights for use in planned), default=0)),
        _of_size("runtime and activations", measured.rest, max((use.other for use in planned), default=0)),
    )
    return "; ".join(filter(None, parts))


def _of_tokens(measured: int | None, planned: int) -> str:
    if measured is None:
        return ""
    compared = f"planned {planned:,} ({measured / planned - 1:+.1%})" if planned else "not planned"
    return f"KV cache {measured:,} tokens, {compared}"


def _of_size(name: str, measured: float | None, planned: int) -> str:
    if measured is None:
        return ""
    return f"{name} {measured:.1f} GiB, {f'planned {planned / GIB:.1f}' if planned else 'not planned'}"


def as_document(measured: Measured, plan: ServePlan, profile: Mapping[str, Any]) -> str:
    """Return what `facts --record` keeps, as JSON. A model in a folder is not named: its path is the user's."""
    import json

    from entrypoints.core.records import to_json

    value = {
        "variant": profile["variant"],
        "vllm": profile["vllm"],
        "model": "" if plan.model.startswith(("/", ".", "~")) or "://" in plan.model else plan.model,
        "measured": to_json(measured),
        "planned": [to_json(use) for use in plan.uses],
    }
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def keep_document(text: str, volume: str) -> None:
    """Write the document into the cache, unless someone else owns the file or the folder cannot be written."""
    path = f"{volume}/{KEPT}"
    if volume and not find_writer(path):
        with suppress(OSError):
            replace_file(path, text)


def read_kept(volume: str) -> str:
    """Return the last document; empty if there is none, or another user could have written it."""
    path = f"{volume}/{KEPT}"
    if find_writer(path):
        return ""
    try:
        return read_bounded(path, _AT_MOST).decode()
    except (OSError, UnicodeDecodeError):
        return ""
