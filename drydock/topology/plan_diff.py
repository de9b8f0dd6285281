"""What differs between two plans of topologies: ranks, their commands, environment and ports, the router. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from drydock.core.differences import differences
from drydock.core.errors import InputError
from drydock.topology.plan_model import Rank, TopologyPlan


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
    return {name: getattr(plan, name) for name in ("model", "image", "accelerator", "variant", "api_key")}


class _Placed(NamedTuple):
    role: str
    rank: Rank


def _ranks(plan: TopologyPlan) -> dict[str, _Placed]:
    """Return the ranks by their places. Raises InputError if two have one place."""
    found: dict[str, _Placed] = {}
    for replica in plan.replicas:
        for rank in replica.ranks:
            where = f"group {replica.group}, replica {replica.number}, rank {rank.rank}"
            if where in found:
                raise InputError(f"{where}: found twice, expected once", hint="`topology plan --json` writes plans")
            found[where] = _Placed(replica.role, rank)
    return found


def _rank(where: str, first: _Placed | None, second: _Placed | None) -> Iterator[Change]:
    if first is None or second is None:
        yield Change(where, "rank", _at(first), _at(second))
        return
    found = [*_changed(where, _settings(first), _settings(second))]
    yield from found
    shown = {change[1:] for change in found}
    mine, theirs = options(first.rank.words), options(second.rank.words)
    for change in _changed(where, mine, theirs):
        if change[1:] not in shown:  # an argument mostly becomes an equal option of the command
            yield change._replace(setting=f"argument {change.setting}")


def _at(placed: _Placed | None) -> str | None:
    return f"on node {placed.rank.node}" if placed else None


def _settings(placed: _Placed) -> dict[str, str]:
    """Return what a rank is, under names that no variable can have; its arguments are compared apart."""
    rank = placed.rank
    env = {f"env {name}": value for name, value in rank.env.items()}
    ports = {f"port {purpose}": str(port) for purpose, port in rank.ports.items()}
    before = {f"before {number}": shlex.join(words) for number, words in enumerate(rank.before)}
    devices = {"devices": ",".join(map(str, rank.devices))} if rank.devices else {}
    own = {"role": placed.role, "node": rank.node, "address": rank.address, "architecture": rank.architecture}
    return {**own, **devices, **options(rank.argv), **env, **ports, **before}


def options(argv: tuple[str, ...]) -> dict[str, str]:
    """Return a command as settings: each flag with its values, and what comes before the first flag.

    Values that are empty or have spaces are quoted, so that two values never look like one.
    """
    found: dict[str, list[str]] = {"command": []}
    name = "command"
    for word in argv:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            found.setdefault(name, []).extend([value] if equals else [])
        else:
            found[name].append(word)
    return {name: " ".join(map(_quoted, values)) for name, values in found.items()}


def _quoted(value: str) -> str:
    return value if value and value.split() == [value] else shlex.quote(value)


def _router(plan: TopologyPlan) -> dict[str, str]:
    router = plan.router
    if router is None:
        return {}
    own = {"name": router.name, "image": router.image, "node": router.node, "address": router.address}
    return {**own, "port": str(router.port), **options(router.argv)}


def _changed(where: str, first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[Change]:
    yield from (Change(where, *difference) for difference in differences(first, second))
