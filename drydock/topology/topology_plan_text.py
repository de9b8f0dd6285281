"""A topology's plan as text, in the user's language."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from drydock.topology.findings import read_words, translate_line
from drydock.topology.plan_model import Because, Rank, TopologyPlan
from entrypoints.core.language import Words, translate_phrase, translate_text
from entrypoints.core.parse import format_id_list


def format_topology_plan(plan: TopologyPlan) -> str:
    """Format a plan in the user's language: each rank's command, then the reasons, then what needs attention."""
    return "".join(f"{line}\n" for line in _list_plan_lines(plan, read_words(os.environ)))


def _list_plan_lines(plan: TopologyPlan, words: Words) -> Iterator[str]:
    yield f"{plan.model} on {plan.image} ({plan.variant})"
    for replica in plan.replicas:
        yield ""
        yield f"group {replica.group}, replica {replica.number} ({replica.role})"
        for rank in replica.ranks:
            yield from _list_rank_lines(rank)
        for reason in replica.reasons:
            yield from _list_reason_lines(reason, words)
    if plan.router:
        yield from ("", f"router on {plan.router.node} ({plan.router.address})", f"  {shlex.join(plan.router.argv)}")
    yield ""
    for reason in plan.reasons:
        yield from _list_reason_lines(reason, words)
    yield from ("", *(translate_line(words, line) for line in plan.findings)) if plan.findings else ()


def _list_rank_lines(rank: Rank) -> Iterator[str]:
    ports = ", ".join(f"{purpose} {port}" for purpose, port in rank.ports.items())
    devices = f", devices: {format_id_list(rank.devices)}" if rank.devices else ""
    yield f"  rank {rank.rank} on {rank.node} ({rank.address}){devices}, ports: {ports}"
    env = " ".join(f"{shlex.quote(name)}={shlex.quote(value)}" for name, value in rank.env.items())
    for words in (*rank.before, rank.argv):
        yield f"    {env} {shlex.join(words)}".rstrip()


def _list_reason_lines(reason: Because, words: Words) -> Iterator[str]:
    yield f"  {reason.setting} = {reason.value}: {translate_text(words, reason.because)}"
    yield from (f"  {translate_phrase(words, '    not {}', translate_text(words, text))}" for text in reason.instead)
