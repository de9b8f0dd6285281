"""What to write instead of a target that names no row. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from drydock.core.errors import suggest_nearest

_LISTED = "name the vendor or the card: nvidia, amd, intel-gpu, huawei …; ./inv matrix lists the targets"
_GENERIC = ("gpu", "accelerator", "card", "device")
"""Words that name no vendor."""
_MISSPELT = 0.75
"""Likeness from 0 to 1 of a misspelt word: cdua and cuda; kunlun and kunpeng, of two vendors, have 0.6."""


def hint_target(target: str, targets: Sequence[str]) -> str:
    """Return the closest target of the same vendor, or how to find one: there are too many to print.

    One letter or digit tells cards of vendors apart (npu, xpu; a100, v100; a770, a40). So a card is only like another
    with the same numbers and first letters, and other words keep their first letter.
    """
    if target in _GENERIC:
        return _LISTED
    begin = [name for name in targets if target and name.startswith(target) and not _goes_on(target, name)]
    if begin:
        return f"targets that begin with it: {', '.join(begin)}"
    letters, numbers = _parts(target)
    if "." in target or "vllm" in target:  # an id: its versions may be misspelt
        return suggest_nearest(target, [name for name in targets if _parts(name)[0] == letters], _LISTED)
    if numbers:
        reordered_names = [name for name in targets if "." not in name and _parts(name) == (letters, numbers)]
        return f"did you mean {reordered_names[0]!r}?" if reordered_names else _LISTED
    words = [name for name in targets if name[:1] == target[:1] and not _parts(name)[1]]
    close = get_close_matches(target, words, 1, _MISSPELT)
    return f"did you mean {close[0]!r}?" if close else _LISTED


def _goes_on(target: str, name: str) -> bool:
    """Return whether a name goes on with another digit of the target's last number: a3, a30."""
    return target[-1].isdigit() and name[len(target) : len(target) + 1].isdigit()


def _parts(name: str) -> tuple[str, tuple[str, ...]]:
    """Return a name's first letters and its numbers: rtx and 6000 of rtx-6000, and of rtx-pro-6000."""
    return re.split(r"[^a-z]", name, maxsplit=1)[0], tuple(re.findall(r"\d+", name))
