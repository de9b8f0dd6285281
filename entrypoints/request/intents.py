"""Goals for a server, instead of vLLM's flags: lengths, concurrency, latency or throughput, devices. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.parse import is_number, parse_id_list, parse_number

Request = tuple[int, int, float]
"""Tokens of the prompt, tokens of the answer, and the number of such requests."""

T = TypeVar("T")
AIMS = ("latency", "throughput")

_RANGE = "a token count or two in ascending order, such as 4,1024"
OFFLOAD_CACHE = "--offload-kv-cache"
NO_TOOLS = "--no-tool-calls"

INTENTS = {
    "--input-range": ("MIN,MAX", "Tokens of the shortest and the longest prompt"),
    "--output-range": ("MIN,MAX", "Tokens of the shortest and the longest answer"),
    "--concurrency": ("N", "Requests at the same time"),
    "--optimize": ("AIM", "Goal: latency (of one answer) or throughput (of all answers)"),
    "--devices": ("LIST", "Devices to use, such as 0-3,6, numbered as in `facts`"),
    "--hot-spot": ("N,TOKENS", "Warm up graphs for at least N requests of this length at the same time"),
    OFFLOAD_CACHE: ("", "Keep the KV cache of earlier requests in the host's memory, in what is free of it"),
    "--workload": ("FILE", "Lengths of real requests: JSON lines, CSV, or a server's /metrics"),
    NO_TOOLS: ("", "Choose no --tool-call-parser"),
}
"""Flag → the name of its value, and its help text."""


class Intents(NamedTuple):
    """Goals of the user; None if not set."""

    input: tuple[int, int] | None = None
    """Tokens of the shortest and the longest prompt."""
    output: tuple[int, int] | None = None
    """Tokens of the shortest and the longest answer."""
    concurrency: int | None = None
    optimize: str | None = None
    """One of AIMS."""
    devices: tuple[int, ...] | None = None
    hot: tuple[int, int] | None = None
    """Requests at the same time, and tokens of each prompt, that a start prepares for."""
    offload: bool = False
    """Whether the host's memory keeps the KV cache of earlier requests."""
    workload_file: str = ""
    workload: tuple[Request, ...] = ()
    """The content of `workload_file`, which is read when a plan is made."""
    tools: bool = True
    """Whether the model may call tools."""

    def with_workload(self, requests: tuple[Request, ...]) -> Intents:
        """Return the goals with a file's lengths, from which ranges that are not set are taken."""
        prompts, answers = [request[0] for request in requests], [request[1] for request in requests]
        return self._replace(
            workload=requests,
            input=self.input or (min(prompts), max(prompts)),
            output=self.output or (min(answers), max(answers)),
        )


NONE = Intents()
"""No goals."""


def parse_intents(values: Mapping[str, str]) -> Intents:
    """Parse the goals among drydock's flags. Raises USAGE."""
    aim = values.get("--optimize")
    if aim is not None and aim not in AIMS:
        raise EntrypointError(USAGE, f"--optimize {aim}: invalid value, expected {' or '.join(AIMS)}")
    return Intents(
        input=_parse_intent(values, "--input-range", _parse_range, _RANGE),
        output=_parse_intent(values, "--output-range", _parse_range, _RANGE),
        concurrency=_parse_intent(values, "--concurrency", _parse_intent_count, "a whole number above zero"),
        optimize=aim,
        devices=_parse_intent(values, "--devices", _parse_devices, "device numbers, such as 0-3,6"),
        hot=_parse_intent(values, "--hot-spot", _parse_pair, "two numbers above zero, such as 8,24000"),
        offload=OFFLOAD_CACHE in values,
        workload_file=values.get("--workload", ""),
        tools=NO_TOOLS not in values,
    )


def _parse_intent(values: Mapping[str, str], name: str, parse: Callable[[str], T | None], expected: str) -> T | None:
    """Return the value of a flag; None if it is not set. Raises USAGE."""
    text = values.get(name)
    if text is None:
        return None
    value = parse(text)
    if value is None:
        raise EntrypointError(USAGE, f"{name} {text}: invalid value, expected {expected}")
    return value


def _parse_range(text: str) -> tuple[int, int] | None:
    """Return the shortest and the longest length; a single number is both."""
    pair = _parse_number_pair(text if "," in text else f"{text},{text}")
    return pair if 0 < pair[0] <= pair[1] else None


def _parse_pair(text: str) -> tuple[int, int] | None:
    pair = _parse_number_pair(text)
    return pair if all(pair) else None


def _parse_number_pair(text: str) -> tuple[int, int]:
    """Parse `N,M`; return zeros for any other text."""
    first, _, second = text.partition(",")
    try:
        return parse_number(first), parse_number(second)
    except ValueError:
        return 0, 0


def _parse_intent_count(text: str) -> int | None:
    return int(text) if is_number(text) and int(text) else None


def _parse_devices(text: str) -> tuple[int, ...] | None:
    try:
        return parse_id_list(text) or None
    except ValueError:
        return None
