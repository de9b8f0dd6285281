"""Counters of vLLM in Prometheus' text format. Pure.

Only the lines of the wanted metric are parsed. Sources: Prometheus docs, exposition formats; vLLM 0.32
v1/metrics/loggers.py and distributed/kv_transfer/kv_connector/v1/nixl/stats.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
BY_SOURCE = "vllm:prompt_tokens_by_source_total"
TRANSFERRED = {"source": "external_kv_transfer"}
EXPIRED = ("vllm:nixl_num_kv_expired_reqs_total", "vllm:nixl_num_kv_expired_reqs")
"""With prometheus_client a counter's sample ends with _total; a gauge's does not."""
LATE = "vllm:nixl_num_notifications_after_expiry_total"
"""Reads of a KV cache that was freed before they ended: its blocks may have had another request's content."""
FAILED = "vllm:nixl_num_failed_transfers_total"
"""Failures of a decode server to get a KV cache; one request may count several times."""
CACHE = "vllm:cache_config_info"
LONGEST = 8192
"""Characters of a line."""
USUAL_BLOCK = 128
"""Tokens of a block where a server does not tell it: the largest usual size (CPU, Gaudi, Ascend)."""

_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"(?:,|$)', re.ASCII)


def samples(text: str, name: str) -> Iterator[tuple[dict[str, str], float]]:
    """Yield labels and value of each sample of a metric. Raises ValueError for a line that is none."""
    for line in text.splitlines():
        if line.startswith((f"{name}{{", f"{name} ")):
            if len(line) > LONGEST:
                raise ValueError(f"{name}: a line of {len(line)} characters, expected at most {LONGEST}")
            labels, _, value = line.removeprefix(name).strip().rpartition(" ")
            yield _labels(labels.strip(), line), _number(value, line)


def total(text: str, name: str, **labels: str) -> float | None:
    """Return the sum over all samples with these labels, of every engine; None if there is none. Raises ValueError."""
    found = [value for has, value in samples(text, name) if labels.items() <= has.items()]
    return sum(found) if found else None


def transferred(text: str) -> float | None:
    """Return how many tokens of prompts came from other servers; None if the server does not count them."""
    return total(text, BY_SOURCE, **TRANSFERRED)


def expired(text: str) -> float | None:
    """Return for how many requests the KV cache was freed before anyone read it."""
    return next((found for name in EXPIRED if (found := total(text, name)) is not None), None)


def block_size(text: str) -> int:
    """Return the tokens of one block. Raises ValueError."""
    sizes = [has["block_size"] for has, _ in samples(text, CACHE) if has.get("block_size", "").isdigit()]
    return max((int(size[:6]) for size in sizes), default=USUAL_BLOCK)


def _labels(text: str, line: str) -> dict[str, str]:
    if not text:
        return {}
    inner = text[1:-1]
    found = [*_LABEL.finditer(inner)]
    if not (text.startswith("{") and text.endswith("}")) or sum(len(each[0]) for each in found) != len(inner):
        raise ValueError(f"no labels of a metric: {line[:200]}")
    return {each[1]: each[2] for each in found}


def _number(text: str, line: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"no number at the end: {line[:200]}")
    return value
