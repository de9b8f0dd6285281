"""Rows that take what this one refuses, and run on this machine. Pure.

Only planning without an image knows other rows: they lie in the lists that drydock/run/entrypoint.py writes. An image
knows none, because it would change with each of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from entrypoints.checks.code_for_cards import Code, find_code_notices, find_missing_code, list_cards
from entrypoints.checks.findings import is_condition_met
from entrypoints.core.parse import name_oci_architecture
from entrypoints.core.records import Facts, Notice
from entrypoints.facts.derived import derive_facts
from entrypoints.plan.refusal import Refusal
from entrypoints.request.vllm_lists import VllmLists

ROWS, PLATFORMS, CHECKS, VERSIONS = "rows", "row_platforms", "row_checks", "versions"
"""Names of the lists: list → entry → rows that have it; row → its platforms, what a machine must be, vLLM's version."""
CODE, CODE_OF_ROWS = "device_code", "row_device_code"
"""Names of the lists: platform → what this row's libraries have code for; row → the same."""


NAMED_ROW = re.compile(r"\(--target (\S+)\)")
"""A row that a remedy names."""


def strike_foreign_rows(text: str, machine: str, platforms_of: Callable[[str], Sequence[str]]) -> str:
    """Return a remedy that says of each row that it names if it has no image for this machine.

    `platforms_of` returns nothing for a row that is not known.
    """

    def describe_row(match: re.Match[str]) -> str:
        platforms = platforms_of(match[1])
        has_image = not platforms or f"linux/{name_oci_architecture(machine)}" in platforms
        return match[0] if has_image else f"(but {match[1]} has no image for {machine})"

    return NAMED_ROW.sub(describe_row, text)


def list_fitting_rows(lists: VllmLists, facts: Facts) -> tuple[str, ...]:
    """Return the rows that have an image for this machine, and whose checks of cards and drivers it passes."""
    platforms: Mapping[str, Sequence[str]] = lists.lists.get(PLATFORMS, {})
    checks: Mapping[str, Sequence[Mapping[str, Any]]] = lists.lists.get(CHECKS, {})
    platform = f"linux/{name_oci_architecture(facts.processor.architecture)}"
    code: Mapping[str, Mapping[str, Code]] = lists.lists.get(CODE_OF_ROWS, {})
    values, cards = facts._asdict() | {"derived": derive_facts(facts)}, list_cards(facts)
    return tuple(
        row
        for row in platforms
        if platform in platforms[row]
        and _passes_checks(checks.get(row, ()), values)
        and not any(find_missing_code(card, code.get(row, {}).get(platform, {})) for card in cards)
    )


def _passes_checks(checks: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> bool:
    """Return whether a machine passes checks; a fact that is not known decides nothing."""
    return not any(
        is_condition_met(check, values) is False
        for check in checks
        if all(is_condition_met(condition, values) for condition in check.get("when", ()))
    )


def find_taking_rows(lists: VllmLists, refusal: Refusal, facts: Facts) -> tuple[str, ...] | None:
    """Return the rows that run on this machine and take what is refused; None if rows are not known."""
    if ROWS not in lists.lists:
        return None
    if refusal.taken_by:
        versions: Mapping[str, str] = lists.lists.get(VERSIONS, {})
        taking = {row for row, version in versions.items() if version in refusal.taken_by}
    else:
        taking = {*lists.lists[ROWS].get(refusal.kind, {}).get(refusal.name, ())}
    return tuple(row for row in list_fitting_rows(lists, facts) if row in taking)


def describe_taking_rows(lists: VllmLists, refusal: Refusal, facts: Facts, variant: str) -> str:
    """Return which rows take what is refused, or what else to do."""
    rows = find_taking_rows(lists, refusal, facts)
    if rows is None:
        in_checkout = (
            f"in a checkout of drydock, ./inv plan --target {variant} --model MODEL names the rows that take it"
        )
        return refusal.instead or in_checkout
    if rows:
        return f"--target {' or '.join(rows)} {'takes' if len(rows) == 1 else 'take'} it"
    return "; ".join(filter(None, ("no row here that runs on this machine takes it", refusal.instead)))


def describe_fitting_rows(lists: VllmLists, facts: Facts) -> str:
    """Return which rows run on this machine as it is, or that none does; empty in an image, which knows none."""
    if CHECKS not in lists.lists:
        return ""
    rows = list_fitting_rows(lists, facts)
    if not rows:
        return "no row here runs on this machine as it is"
    return f"--target {' or '.join(rows)} {'runs' if len(rows) == 1 else 'run'} on this machine as it is"


def judge_code(lists: VllmLists, facts: Facts) -> tuple[Notice, ...]:
    """Return what is to be said of cards that this row's libraries have no code for; nothing in an image."""
    platform = f"linux/{name_oci_architecture(facts.processor.architecture)}"
    code: Code = lists.lists.get(CODE, {}).get(platform, {})
    return tuple(find_code_notices(code, facts, describe_fitting_rows(lists, facts))) if code else ()
