"""Flags and variables that vLLM said it does not know → what to write instead. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from entrypoints.checks.symptoms import Match
from entrypoints.core.language import Words, translate_phrase
from entrypoints.request.vllm_lists import VllmLists

_AT_MOST = 8
"""Names that are described."""
_NAMES = {
    "flag-unknown": re.compile(r"unrecognized arguments?:[^\n]{0,2000}"),
    "variable-unknown": re.compile(r"Unknown vLLM environment variable detected:[^\n]{0,200}"),
    "exit-usage": re.compile(r"unknown flag [^\n]{0,200}"),
}
_NAME = re.compile(r"(?<![\w-])(?:--[A-Za-z][\w.-]{1,80}|VLLM_\w{1,80})")


def describe_names(match: Match, text: str, lists: Callable[[], VllmLists], words: Words) -> tuple[str, ...]:
    """Return a sentence for each flag or variable that the lines of a match name; nothing for other matches."""
    pattern = _NAMES.get(match.id)
    if pattern is None:
        return ()
    names = dict.fromkeys(name for line in pattern.findall(text) for name in _NAME.findall(line))
    return tuple(_explain_names(names, lists, words))[:_AT_MOST]


def _explain_names(names: dict[str, None], lists: Callable[[], VllmLists], words: Words) -> Iterator[str]:
    from difflib import get_close_matches

    from entrypoints.request.vllm_successors import SUCCESSORS, describe_successor

    known_flags = [*(lists().lists.get("flags") or {})] if names else []
    for name in names:
        plain = name.partition(".")[0]
        close = get_close_matches(plain, known_flags, n=1, cutoff=0.75)
        if plain in SUCCESSORS:
            yield translate_phrase(words, "{} was removed: {}.", plain, describe_successor(plain))
        elif plain in known_flags:
            yield translate_phrase(words, "{} is a flag of this image's vLLM; another vLLM printed this line.", plain)
        elif close:
            yield translate_phrase(words, "{} is not a flag of this vLLM; the nearest is {}.", plain, close[0])
        else:
            yield translate_phrase(words, "{} is not known to this vLLM; leave it out.", plain)
