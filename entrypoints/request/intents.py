"""What a user intents of a server, instead of vLLM's flags: lengths, clients, aim, devices. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.parse import parse_id_list, parse_number

Request = tuple[int, int, float]
"""Tokens of the prompt and of the answer, and how often."""

AIMS = ("latency", "throughput")

INTENTS = {
    "--input-range": ("MIN,MAX", "tokens of the shortest and the longest prompt"),
    "--output-range": ("MIN,MAX", "tokens of the shortest and the longest answer"),
    "--concurrency": ("N", "requests at a time"),
    "--optimize": ("AIM", "latency of one answer, or throughput of all"),
    "--devices": ("LIST", "which devices, such as 0-3,6, by the numbers that `facts` shows"),
    "--hot-spot": ("N,TOKENS", "how many requests at a time, of what length, graphs are warmed up for at least"),
    "--workload": ("FILE", "lengths of real requests: JSON lines, CSV, or a server's /metrics"),
}
"""Own flag → its value's name and what it means."""


class Intents(NamedTuple):
    """What was wished for; None where nothing was."""

    input: tuple[int, int] | None = None
    """Tokens of the shortest and the longest prompt."""
    output: tuple[int, int] | None = None
    """Tokens of the shortest and the longest answer."""
    concurrency: int | None = None
    optimize: str | None = None
    """One of AIMS."""
    devices: tuple[int, ...] | None = None
    hot: tuple[int, int] | None = None
    """Requests at a time and tokens of their prompts that a start prepares for; the rest is prepared when it comes."""
    workload_file: str = ""
    workload: tuple[Request, ...] = ()
    """What is in that file; it is read when a plan is made."""

    def over(self, requests: tuple[Request, ...]) -> Intents:
        """Return the intents with a file's lengths, which also give the ranges that were not wished for."""
        prompts, answers = [request[0] for request in requests], [request[1] for request in requests]
        return self._replace(
            workload=requests,
            input=self.input or (min(prompts), max(prompts)),
            output=self.output or (min(answers), max(answers)),
        )


NONE = Intents()
"""Nothing was wished for."""


def parse_intents(values: Mapping[str, str]) -> Intents:
    """Understand the intents among the own flags. Raises USAGE."""
    aim = values.get("--optimize")
    if aim is not None and aim not in AIMS:
        raise EntrypointError(USAGE, f"--optimize {aim}: expected {' or '.join(AIMS)}")
    return Intents(
        input=_range(values, "--input-range"),
        output=_range(values, "--output-range"),
        concurrency=_count(values, "--concurrency"),
        optimize=aim,
        devices=_devices(values),
        hot=_pair(values, "--hot-spot"),
        workload_file=values.get("--workload", ""),
    )


def _range(values: Mapping[str, str], name: str) -> tuple[int, int] | None:
    text = values.get(name)
    if text is None:
        return None
    low, comma, high = text.partition(",")
    try:
        lengths = parse_number(low), parse_number(high if comma else low)
    except ValueError:
        lengths = (0, 0)
    if not 0 < lengths[0] <= lengths[1]:
        raise EntrypointError(USAGE, f"{name} {text}: expected two token counts in order, such as 4,1024")
    return lengths


def _pair(values: Mapping[str, str], name: str) -> tuple[int, int] | None:
    text = values.get(name)
    if text is None:
        return None
    first, _, second = text.partition(",")
    try:
        pair = parse_number(first), parse_number(second)
    except ValueError:
        pair = (0, 0)
    if not all(pair):
        raise EntrypointError(USAGE, f"{name} {text}: expected two numbers above zero, such as 8,24000")
    return pair


def _count(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text)):
        raise EntrypointError(USAGE, f"{name} {text}: expected a whole number above zero")
    return int(text)


def _devices(values: Mapping[str, str]) -> tuple[int, ...] | None:
    text = values.get("--devices")
    if text is None:
        return None
    try:
        numbers = parse_id_list(text)
    except ValueError:
        numbers = ()
    if not numbers:
        raise EntrypointError(USAGE, f"--devices {text}: expected device numbers, such as 0-3,6")
    return numbers
