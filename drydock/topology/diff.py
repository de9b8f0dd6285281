"""What differs between two plans of topologies: ranks, their commands, environment and ports, the router. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from drydock.topology.planned import Rank, TopologyPlan


class Change(NamedTuple):
    """One difference; None where a plan has nothing."""

    where: str
    setting: str
    first: str | None
    second: str | None


def compare(first: TopologyPlan, second: TopologyPlan) -> tuple[Change, ...]:
    """Return the differences, in the order of the plans. Equal plans have none."""
    whole = _changed("topology", _whole(first), _whole(second))
    mine, theirs = _ranks(first), _ranks(second)
    places = dict.fromkeys((*mine, *theirs))
    ranks = (change for where in places for change in _rank(where, mine.get(where), theirs.get(where)))
    return (*whole, *ranks, *_changed("router", _router(first), _router(second)))


def as_text(changes: tuple[Change, ...]) -> str:
    """Format differences, those of one place together."""
    lines: list[str] = []
    where = ""
    for change in changes:
        if change.where != where:
            where = change.where
            lines.append(where)
        lines.append(f"  {change.setting}")
        sides = (("-", change.first), ("+", change.second))
        lines += [f"    {mark} {side}" for mark, side in sides if side is not None]
    return "".join(f"{line}\n" for line in lines) or "no differences\n"


def _whole(plan: TopologyPlan) -> dict[str, str]:
    return {name: getattr(plan, name) for name in ("model", "image", "accelerator", "variant")}


def _ranks(plan: TopologyPlan) -> dict[str, Rank]:
    return {
        f"group {replica.group}, replica {replica.number}, rank {rank.rank}": rank
        for replica in plan.replicas
        for rank in replica.ranks
    }


def _rank(where: str, first: Rank | None, second: Rank | None) -> Iterator[Change]:
    if first is None or second is None:
        yield Change(where, "rank", _at(first), _at(second))
        return
    yield from _changed(where, _settings(first), _settings(second))


def _at(rank: Rank | None) -> str | None:
    return f"on node {rank.node}" if rank else None


def _settings(rank: Rank) -> dict[str, str]:
    ports = {f"port {purpose}": str(port) for purpose, port in rank.ports.items()}
    before = {f"before {number}": " ".join(words) for number, words in enumerate(rank.before)}
    devices = {"devices": ",".join(map(str, rank.devices))} if rank.devices else {}
    return {"node": rank.node, "address": rank.address, **devices, **options(rank.argv), **rank.env, **ports, **before}


def options(argv: tuple[str, ...]) -> dict[str, str]:
    """Return a command as settings: each flag with its values, and what comes before the first flag."""
    found: dict[str, list[str]] = {"command": []}
    name = "command"
    for word in argv:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            found.setdefault(name, []).extend([value] if value else [])
        else:
            found[name].append(word)
    return {name: " ".join(values) for name, values in found.items()}


def _router(plan: TopologyPlan) -> dict[str, str]:
    return {"node": plan.router.node, **options(plan.router.argv)} if plan.router else {}


def _changed(where: str, first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[Change]:
    for name in dict.fromkeys((*first, *second)):
        if first.get(name) != second.get(name):
            yield Change(where, name, first.get(name), second.get(name))
