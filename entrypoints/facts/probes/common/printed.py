"""Parses parts of what vendor tools print: JSON after warnings, sizes with units, PCI addresses. Pure."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

from entrypoints.facts.probes.common.tools import parse_error

_JSON = re.compile(r"^[ \t]*[\[{]", re.MULTILINE)
_STARTS = 8
"""Most lines beginning with a bracket to try: a library may print `[WARN] …` before the JSON."""
_LITERAL = len("false")
"""Characters of the longest word of JSON, of which the end may be missing."""
_SIZE = re.compile(r"(\d{1,20})(?:\.(\d{1,6}))?\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNKNOWN_WORDS = frozenset(
    (
        *("", "-", "--", "?", "n/a", "na", "n.a.", "none", "null", "nan", "unknown", "unknown error", "err", "err!"),
        *("error", "no data", "not active", "not available", "not found", "not supported", "unsupported", "deprecated"),
        *("insufficient permissions", "insufficient permission", "no permission", "permission denied", "no access"),
        *("access denied", "not permitted", "operation not permitted", "function not found", "requested functionality"),
    )
)
"""What tools print for a value that they cannot read, in lower case and without brackets."""
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_BUS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)


def json_in(text: str) -> Any:
    """Return the first JSON object, or list of objects, in the output of a tool; None if there is none.

    Of output that was cut off nothing counts: the first of eight cards would be taken for all.
    """
    import json

    decoder = json.JSONDecoder()
    for start in islice(_JSON.finditer(text), _STARTS):
        printed_text = text[start.start() :].strip()
        try:
            value = decoder.raw_decode(printed_text)[0]
        except json.JSONDecodeError as error:
            if error.pos >= len(printed_text) - _LITERAL or error.msg.startswith("Unterminated"):
                return None
            continue
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) or all(isinstance(item, dict) for item in value):
            return value
    return None


def load_printed_json(text: str, expected: str) -> Any:
    """Return the JSON value in the output of a tool, ignoring warnings before it. Raises ValueError."""
    value = json_in(text)
    if value is None:
        raise parse_error(text.strip() or "nothing", expected)
    return value


def size_of(value: Any, unit: str = "") -> int | None:
    """Return a size in bytes of {"value": 192, "unit": "GB"}, "32768.00 MiB", or a number in `unit`; else None.

    AMD's and Intel's tools write MB and GB for powers of 1024.
    """
    if isinstance(value, dict):
        return size_of(value.get("value"), str(value.get("unit", unit)))
    match = _SIZE.match(str(value).strip())
    if not match or isinstance(value, bool):
        return None
    scale = 1 << 10 * _POWER.get((match[3] or unit[:1]).upper(), 0)
    return int(match[1]) * scale + int(float(f"0.{match[2] or 0}") * scale)


def bus_of(value: Any) -> str:
    """Return a PCI address as /sys writes it, 0000:83:00.0; empty if there is none. Tools vary the domain's width."""
    match = _BUS.search(str(value))
    return f"{(match[1] or '0000')[-4:]}:{match[2]}".lower() if match else ""


def number_of(value: Any) -> int | None:
    """Return a whole number, which may be given as text; None if it is not one."""
    text = str(value).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None  # noqa: PLR2004 - 64 bits


def word_of(value: Any) -> str:
    """Return one line of text; empty for the placeholders that tools print for unknown values."""
    text = " ".join(str(value).split()) if isinstance(value, (str, int)) else ""
    return "" if is_unknown(text) or not text.isprintable() else text[:120]


def is_unknown(text: str) -> bool:
    """Tell whether a cell says that the tool cannot read the value: N/A, [Not Supported], NA / NA, N/A MiB."""
    parts = (part.strip().strip("[]()<>").strip().lower() for part in text.replace("N/A", "NA").split("/"))
    return all(part.removesuffix("mib").removesuffix("mb").strip() in _UNKNOWN_WORDS for part in parts)
