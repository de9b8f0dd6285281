"""A table of decisions: a host, what the user set, and what must follow. What recorded plans assert is in no table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import pytest

from entrypoints.accelerators import import_decider
from entrypoints.core.errors import EntrypointError
from entrypoints.core.records import Facts
from entrypoints.decide.records import Decision
from entrypoints.model.read import ModelFacts
from entrypoints.plan.role_profile import apply_role
from entrypoints.request.intents import Intents
from entrypoints.request.roles import SERVE, Role
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.hosts import expect
from tests.support.hosts.host_models import LLAMA


class Row(NamedTuple):
    """One decision; the key of a row is its sentence."""

    host: str
    """A recorded host; its image is used unless `target` names another."""
    words: str = ""
    env: Mapping[str, str] = {}
    goals: Mapping[str, Any] = {}
    model: ModelFacts = LLAMA
    changed: Callable[[Facts], Facts] | None = None
    target: str = ""
    known: tuple[str, ...] = ()
    role: str = SERVE
    values: Mapping[str, str | bool | None] = {}
    """Expected settings; None for one that must not be set."""
    because: Mapping[str, str] = {}
    """A part of the reason, or of one against an alternative, by setting."""
    finds: Mapping[str, str] = {}
    """A part of what each expected finding found, by id."""
    quiet: tuple[str, ...] = ()
    """Findings that must not be there."""
    refused: str = ""
    """A part of the error's message or hint."""
    code: int = 0
    """The exit code of the refusal; 0 for any."""


profile_of, profile_in = cache(expect.profile_of), cache(expect.profile_in)


def decided(row: Row) -> Decision:
    """Decide what a row asks. Raises EntrypointError."""
    profile = apply_role(profile_in(row.target) if row.target else profile_of(row.host), row.role)
    facts = expect.read(row.host, profile_of(row.host))
    user_flags = parse_user_flags(row.words.split(), row.env, row.known, Intents(**row.goals))._replace(
        role=Role(row.role)
    )
    changed = row.changed(facts) if row.changed else facts
    decision: Decision = import_decider(facts.accelerator).decide(profile, changed, row.model, user_flags)
    return decision


def check(row: Row) -> None:
    """Assert what a row expects, and that it expects something."""
    assert row.refused or row.code or row.values or row.because or row.finds or row.quiet
    if row.refused or row.code:
        with pytest.raises(EntrypointError) as error:
            decided(row)
        assert row.refused in f"{error.value.message} {error.value.hint}"
        assert row.code in {0, error.value.code}
        return
    decision = decided(row)
    values = {name: decision.values[name].value if name in decision.values else None for name in row.values}
    assert values == dict(row.values)
    for name, part in row.because.items():
        value = decision.values[name]
        assert part in " ".join((value.because, *value.instead))
    finding_values = {finding.id: finding.found for finding in decision.findings}
    assert {name: part in finding_values.get(name, "not found") for name, part in row.finds.items()} == dict.fromkeys(
        row.finds, True
    )
    assert not set(row.quiet) & set(finding_values)


def with_devices(count: int | None = None, **changes: Any) -> Callable[[Facts], Facts]:
    """Return a change of the host: only its first devices, each with other fields."""
    return lambda facts: facts._replace(devices=tuple(device._replace(**changes) for device in facts.devices[:count]))
