"""Parses files of /proc and /sys, and JSON. Pure. Each parse_* raises ValueError that says what it expected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

KIB = 1024
DEEPEST = 64
"""Levels of nested JSON. A model's configuration has four."""
_DIGITS = 18
"""Digits of an integer that any machine's number can hold."""
_HIGHEST_ID = 65535
"""Above any CPU or node number of Linux. It limits the memory that an invalid list can take."""


def parse_id_list(text: str) -> tuple[int, ...]:
    """Parse `0-2,7` into (0, 1, 2, 7). The list of a memory-only node is empty."""
    ids: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        low, high = parse_number(first), parse_number(last if dash else first)
        if not low <= high <= _HIGHEST_ID:
            raise ValueError("CPU or node numbers in ascending ranges, such as 0-3,8")
        ids.update(range(low, high + 1))
    return tuple(sorted(ids))


def format_id_list(ids: tuple[int, ...]) -> str:
    """Format (0, 1, 2, 7) as `0-2,7`."""
    ranges: list[list[int]] = []
    for number in sorted(ids):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def is_number(text: str) -> bool:
    """Tell whether text is a non-negative decimal number in ASCII of at most 20 digits, which hold 64 bits."""
    return text.isascii() and text.isdigit() and len(text) <= 20  # noqa: PLR2004


def parse_number(text: str) -> int:
    """Parse a non-negative decimal number."""
    digits = text.strip()
    if not is_number(digits):
        raise ValueError("a decimal number")
    return int(digits)


def parse_version_numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version; empty for none. A candidate equals its release: 0.9.1rc2 → 0.9.1."""
    return tuple(int(number) for number in re.findall("[0-9]+", version[:40])[:3])


def name_oci_architecture(machine: str) -> str:
    """Return what OCI's platforms call a machine that `uname -m` names."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def parse_line(text: str) -> str:
    """Parse a file that holds one line of printable text."""
    line = text.strip()
    if not line or not line.isprintable():
        raise ValueError("one line of text")
    return line


def parse_bracketed(text: str) -> str:
    """Parse a list of choices that has the current one in brackets: `always [madvise] never`."""
    _, _, rest = text.partition("[")
    choice, bracket, _ = rest.partition("]")
    if not bracket or not choice:
        raise ValueError("a list of choices with the current one in brackets")
    return choice


def parse_fields(text: str) -> dict[str, str]:
    """Parse `key : value` lines, with keys in lower case. /proc/cpuinfo repeats keys: the first one counts."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip().lower(), value.strip())
    return fields


def parse_meminfo(text: str) -> dict[str, int]:
    """Parse /proc/meminfo, or the meminfo of a node (lines begin with `Node 0 `), into bytes."""
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        words = value.split()
        if colon and len(words) == 2 and words[1] == "kB" and key.split():  # noqa: PLR2004 - a number and its unit
            sizes[key.split()[-1]] = parse_number(words[0]) * KIB
    if "MemTotal" not in sizes:
        raise ValueError("a line `MemTotal: … kB`")
    return sizes


def parse_limits(text: str) -> dict[str, tuple[int | None, int | None]]:
    """Parse /proc/self/limits into soft and hard limits by name. None means unlimited."""
    limits: dict[str, tuple[int | None, int | None]] = {}
    for line in text.splitlines():
        name, soft, hard = line[:26].strip(), line[26:47].strip(), line[47:68].strip()
        if name.startswith("Max "):
            limits[name] = (_parse_limit(soft), _parse_limit(hard or soft))
    if not limits:
        raise ValueError("lines `Max … <soft> <hard> <unit>`")
    return limits


def _parse_limit(text: str) -> int | None:
    return None if text == "unlimited" else parse_number(text)


def parse_kernel_words(text: str, names: tuple[str, ...]) -> dict[str, str]:
    """Return the `name=value` words of a kernel command line with these names. The last of equal names counts."""
    pairs = (word.partition("=") for word in text.split())
    return {name: value for name, equals, value in pairs if equals and name in names}


def parse_cgroup_paths(text: str) -> dict[str, str]:
    """Parse /proc/self/cgroup into controllers → path. Version 2 has an empty controller name."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:  # noqa: PLR2004 - hierarchy, controllers, path
            raise ValueError("lines `hierarchy:controllers:path`")
        paths[parts[1]] = parts[2]
    return paths


def parse_cgroup_limit(text: str) -> int | None:
    """Parse a limit. `max`, -1 and the very large number of cgroup v1 mean unlimited, which is None."""
    word = text.strip()
    if word in ("max", "-1"):
        return None
    limit = parse_number(word)
    return None if limit >= 1 << 60 else limit  # v1 reports LONG_MAX rounded down to a page


def parse_cpu_max(text: str) -> float | None:
    """Parse cgroup v2's `cpu.max` (`250000 100000`, `max 100000`) into a number of CPUs."""
    words = text.split()
    if len(words) != 2:  # noqa: PLR2004 - quota and period
        raise ValueError("`<quota or max> <period>`")
    return convert_cpu_quota(words[0], words[1])


def convert_cpu_quota(quota: str, period: str) -> float | None:
    """Convert a quota and its period, both in microseconds, into a number of CPUs; None means unlimited."""
    time = parse_cgroup_limit(quota)
    length = parse_number(period)
    if not length:
        raise ValueError("a period above zero")
    return None if time is None else time / length


def parse_hierarchical_limit(text: str) -> int | None:
    """Parse `hierarchical_memory_limit` of cgroup v1's memory.stat.

    It is the smallest limit up to the root, including groups that are not visible in the container.
    """
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "hierarchical_memory_limit":
            return parse_cgroup_limit(value)
    return None


def parse_untrusted_json(text: str | bytes) -> Any:
    """Parse JSON that anyone may have written.

    A number that no machine's number can hold stays text, as it was written: published configurations contain
    Infinity (time_step_limit of Mamba 2), which does no harm in a key that is not read. Raises ValueError for NaN, with
    its key, and for deep nesting.
    """
    not_finite: list[Infinite] = []
    try:
        value = json.loads(
            text, parse_int=_parse_integer, parse_float=_parse_fraction, parse_constant=_make_collector(not_finite)
        )
    except RecursionError as error:
        raise ValueError(f"nested deeper than {DEEPEST} levels") from error
    if _is_deeper(value, DEEPEST):
        raise ValueError(f"nested deeper than {DEEPEST} levels")
    if "NaN" in not_finite and (where := _find_nan(value)):
        raise ValueError(f"{where}: found NaN, expected a number")
    return value


class Infinite(str):
    """Infinity, NaN or 1e999, as it was written."""

    __slots__ = ()


def _make_collector(not_finite: list[Infinite]) -> Callable[[str], Infinite]:
    def add(name: str) -> Infinite:
        not_finite.append(Infinite(name))
        return not_finite[-1]

    return add


def _parse_integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= _DIGITS else digits


def _parse_fraction(digits: str) -> float | str:
    number = float(digits)
    return Infinite(digits) if number in (float("inf"), float("-inf")) else number


def _find_nan(value: Any) -> str:
    """Return the keys that lead to a NaN, as `a.b[0]`; empty if a later equal key replaced it."""
    pending = [("", value)]
    while pending:
        where, item = pending.pop()
        if isinstance(item, Infinite) and item == "NaN":
            return where or "the value"
        if isinstance(item, dict):
            pending += [(f"{where}.{key[:80]}".lstrip("."), inner) for key, inner in item.items()]
        elif isinstance(item, list):
            pending += [(f"{where}[{index}]", inner) for index, inner in enumerate(item)]
    return ""


def _is_deeper(value: Any, most: int) -> bool:
    """Tell whether JSON is nested deeper than `most` levels; level by level, since recursion has a limit itself."""
    level: list[Any] = [[value]]
    for _ in range(most + 1):
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return False
    return True
