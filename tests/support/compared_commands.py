"""Commands to compare: the published ones, and one for each flag of each version that was read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from drydock.compare.comparison import judge_words
from drydock.compare.flags import Sides
from drydock.compare.judgment import Judgment, Verdict, worst_of
from drydock.compare.pasted_command import PastedCommand
from drydock.compare.vllm_parser import VllmParser
from drydock.compare.vllm_version import ServedVersion, find_served_version
from drydock.config.project_choice import DRYDOCK
from drydock.lock.vllm_lists import list_every
from tests.evidence.published import Record, records

Words = tuple[str, ...]
TRIED = {
    "int": ("4", "4k", "4K", "1.5", "auto", "None", "-1"),
    "float": ("0.5", "x"),
    "json": ("{}", '{"a": 1}', "3", "a=1", "image=2,video=1"),
    "switch": ("", "x"),
    "boolean": ("", "False", "true"),
}
"""What a flag takes → values that are tried with it; empty: none."""


@cache
def version_of(name: str) -> ServedVersion:
    return find_served_version(DRYDOCK, "--from", name)


@cache
def sides_of(old: str, new: str) -> Sides:
    before, after = version_of(old), version_of(new)
    return Sides(before, after, VllmParser(before), VllmParser(after))


def judgments_of(words: Words, old: str, new: str) -> list[Judgment]:
    """Return the judgments of a command's words, without those of the model."""
    _, flags, extra = judge_words(PastedCommand(words, {}), sides_of(old, new))
    return [*extra, *(judgment for flag in flags for judgment in flag.judgments)]


def verdict_of(words: Words, old: str, new: str) -> Verdict:
    return worst_of(judgments_of(words, old, new))


def published_commands() -> list[Words]:
    return [_words_of(record) for record in records()]


def _words_of(record: Record) -> Words:
    sizes = (("-tp", record.tensor), ("--pipeline-parallel-size", record.pipeline), ("-dp", record.data))
    split = [word for flag, size in sizes if size > 1 for word in (flag, str(size))]
    experts = ["--enable-expert-parallel"] if record.experts else []
    return (record.model, *split, *experts, *record.words)


def commands_of_flags() -> list[Words]:
    """Return a command for each flag of each version, with values that its kind takes and refuses."""
    return [
        ("m", *words) for words in sorted({words for lists in list_every(DRYDOCK) for words in _tries(lists.lists)})
    ]


def _tries(lists: dict[str, Any]) -> Iterator[Words]:
    for flag, takes in lists.get("flags", {}).items():
        values = (takes[0], takes[-1], "banana") if isinstance(takes, list) else TRIED.get(takes, ("x", "3"))
        for value in values:
            yield from ((flag, value), (f"{flag}={value}",)) if value else ((flag,),)
        if flag.startswith("--"):
            yield (f"--{flag[2:].replace('-', '_')}", *filter(None, values[:1]))
            yield (f"--no-{flag[2:]}",)
