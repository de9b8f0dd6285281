"""Rows → a table in Markdown. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from drydock.model.variant import Variant

T = TypeVar("T")


def make_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    return format_rows([head, ["---"] * len(head), *rows])


def format_rows(rows: Iterable[Sequence[str]]) -> str:
    """Return lines of a table, without its head."""
    return "".join(f"| {' | '.join(map(_escape_cell, row))} |\n" for row in rows)


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def make_anchor(name: str) -> str:
    """Return the place that a link to PAGE#NAME leads to, where NAME is no heading."""
    return f'<a id="{name.lower()}"></a>'


def each_once(items: Iterable[Iterable[tuple[Any, T]]]) -> list[tuple[T, list[int]]]:
    """Return every item once, in order, with the numbers of the variants that have it."""
    items_by_key: dict[Any, tuple[T, list[int]]] = {}
    for number, variant_items in enumerate(items):
        for key, item in variant_items:
            items_by_key.setdefault(key, (item, []))[1].append(number)
    return list(items_by_key.values())


def format_stacks(variants: Sequence[Variant], holders: Sequence[int]) -> str:
    """Return the stacks of some variants of an accelerator, or those that are missing if they are fewer."""
    some = {variants[number].stack for number in holders}
    missing = {variant.stack for variant in variants} - some
    if not missing:
        return "all"
    return ", ".join(sorted(some)) if len(some) <= len(missing) else f"all but {', '.join(sorted(missing))}"


def format_accelerators(variants: Sequence[Variant], holders: Sequence[int]) -> str:
    """Return the accelerators of some variants; of an accelerator that has only some of them, the stacks."""
    if len(holders) == len(variants):
        return "all"
    total, mine = (Counter(variants[number].accelerator for number in some) for some in (range(len(variants)), holders))
    missing = sorted(total.keys() - mine.keys())
    if len(missing) < len(mine) and all(mine[name] == total[name] for name in mine):
        return f"all but {', '.join(missing)}"
    holder_variants = (variants[number] for number in holders)
    names = (v.accelerator if mine[v.accelerator] == total[v.accelerator] else v.stack for v in holder_variants)
    return ", ".join(dict.fromkeys(names))
