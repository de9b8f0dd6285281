"""Reads metrics in the text format of Prometheus. Pure. Source: Prometheus docs, exposition formats."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

LONGEST = 8192
"""Characters of a line."""
_LABEL = re.compile(r'(?<!\w)([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"(?:,|$)', re.ASCII)


class Sample(NamedTuple):
    """One value of a metric."""

    name: str
    labels: Mapping[str, str]
    value: float


def sum_metric(text: str, name: str, **labels: str) -> float | None:
    """Return the sum of a metric over all samples with these labels, of every engine; None if there is none.

    Raises ValueError.
    """
    values = [sample.value for sample in parse_samples(text, (name,)) if labels.items() <= sample.labels.items()]
    return sum(values) if values else None


def parse_samples(text: str, names: Collection[str]) -> Iterator[Sample]:
    """Yield each sample of these metrics; no other line is parsed. Raises ValueError for a line that is none."""
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in names:
            if len(line) > LONGEST:
                raise ValueError(f"{name}: a line of {len(line)} characters, expected at most {LONGEST}")
            labels, _, value = line.removeprefix(name).strip().rpartition(" ")
            yield Sample(name, _parse_labels(labels.strip(), line), _parse_sample_value(value, line))


def _parse_labels(text: str, line: str) -> dict[str, str]:
    if not text:
        return {}
    inner = text[1:-1]
    matches = [*_LABEL.finditer(inner)]
    if not (text.startswith("{") and text.endswith("}")) or sum(len(match[0]) for match in matches) != len(inner):
        raise ValueError(f"no labels of a metric: {line[:200]}")
    return {match[1]: match[2] for match in matches}


def _parse_sample_value(text: str, line: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"no number at the end: {line[:200]}")
    return value
