"""What changed between two versions of vLLM: defaults, flags, variables, and the names in their lists. Pure."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from drydock.compare.vllm_parser import long_name
from drydock.compare.vllm_version import ServedVersion
from drydock.core.differences import find_differences
from drydock.lock.vllm_details import VllmDetails

LISTS = (
    *("architectures", "quantisations", "tool_parsers", "reasoning_parsers"),
    *("connectors", "load_formats", "executors"),
)


FIRST = (
    *("--gpu-memory-utilization", "--kv-cache-memory-bytes", "--kv-cache-dtype", "--max-model-len", "--max-num-seqs"),
    *("--max-num-batched-tokens", "--block-size", "--swap-space", "--cpu-offload-gb", "--dtype", "--quantization"),
    *("--generation-config", "--seed", "--logprobs-mode", "--enable-prefix-caching", "--enable-chunked-prefill"),
    *("--enforce-eager", "--async-scheduling", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"),
)
"""Flags and variables whose changed default is named first: they change the memory that is taken, or the answers."""


class ChangedDefault(NamedTuple):
    """A default that differs."""

    name: str
    old: str
    """As it is typed."""
    new: str


class ChangedNames(NamedTuple):
    """What a list lost and gained."""

    list: str
    gone: tuple[str, ...]
    added: tuple[str, ...]


def changed_defaults(old: VllmDetails, new: VllmDetails, stated: Collection[str]) -> list[ChangedDefault]:
    """Return each default that differs, without those of what the command states.

    What vLLM computes at its start is left out, and None, which says only that a value is decided later.
    """
    before, after = _list_defaults(old), _list_defaults(new)
    changes = [
        ChangedDefault(name, first, second)
        for name, first, second in find_differences(before, after)
        if first and second and name not in stated
    ]
    return sorted(changes, key=lambda change: FIRST.index(change.name) if change.name in FIRST else len(FIRST))


def _list_defaults(details: VllmDetails) -> dict[str, str]:
    """Return the defaults of flags, variables and keys of JSON flags that are written down."""
    flags = {long_name(flag): flag.default for flag in details.flags}
    keys = {
        f"{long_name(flag)}.{key}": value.default
        for flag in details.flags
        for key, value in details.records.get(flag.record, {}).items()
    }
    variables = {name: variable.default for name, variable in details.variables.items()}
    values = {name: _read_literal(text) for name, text in {**flags, **keys, **variables}.items()}
    return {name: value for name, value in values.items() if value}


def _read_literal(text: str) -> str:
    """Return a default as it is typed; empty for an expression, and for None."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return ""
    return "" if value is None else str(value)


def changed_lists(old: ServedVersion, new: ServedVersion) -> Iterator[ChangedNames]:
    """Yield what each list lost and gained: flags, variables, architectures and the others."""
    yield from _compare_names("flags", old.lists.get("flags", ()), new.lists.get("flags", ()))
    yield from _compare_names("variables", old.lists.get("variables", ()), new.lists.get("variables", ()))
    for name in LISTS:
        if name in old.lists and name in new.lists:
            yield from _compare_names(name, old.lists[name], new.lists[name])
    yield from _compare_names("keys", _defaults_of_keys(old.details), _defaults_of_keys(new.details))
    yield from changed_values(old.lists.get("flags", {}), new.lists.get("flags", {}))


def _defaults_of_keys(details: VllmDetails) -> set[str]:
    return {f"{record}.{key}" for record, keys in details.records.items() for key in keys}


def changed_values(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[ChangedNames]:
    """Yield the values that each flag lost and gained, and how its kind changed."""
    for flag, before, after in find_differences(old, new):
        if before is None or after is None:
            continue
        if isinstance(before, list) and isinstance(after, list):
            yield from _compare_names(f"values of {flag}", before, after)
        else:
            yield ChangedNames(f"values of {flag}", (_format_kind(before),), (_format_kind(after),))


def _format_kind(takes: Any) -> str:
    return ", ".join(takes) if isinstance(takes, list) else str(takes) or "text"


def _compare_names(name: str, old: Collection[str], new: Collection[str]) -> Iterator[ChangedNames]:
    removed, added = sorted({*old} - {*new}), sorted({*new} - {*old})
    if removed or added:
        yield ChangedNames(name, tuple(removed), tuple(added))
