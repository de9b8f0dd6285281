"""What differs between two plans of topologies: ranks, their commands, environment and ports, the router. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from drydock.core.differences import find_differences
from drydock.core.errors import InputError
from drydock.topology.plan_model import Rank, TopologyPlan


class Change(NamedTuple):
    """One difference; None where a plan has nothing."""

    where: str
    setting: str
    first: str | None
    second: str | None


def compare_topology_plans(first: TopologyPlan, second: TopologyPlan) -> tuple[Change, ...]:
    """Return the differences, in the order of the plans. Equal plans have none."""
    whole = _compare_place_settings("topology", _list_plan_settings(first), _list_plan_settings(second))
    mine, theirs = _index_ranks(first), _index_ranks(second)
    places = dict.fromkeys((*mine, *theirs))
    ranks = (change for where in places for change in _compare_ranks(where, mine.get(where), theirs.get(where)))
    return (
        *whole,
        *ranks,
        *_compare_place_settings("router", _list_router_settings(first), _list_router_settings(second)),
    )


def format_plan_changes(changes: tuple[Change, ...]) -> str:
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


def _list_plan_settings(plan: TopologyPlan) -> dict[str, str]:
    return {name: getattr(plan, name) for name in ("model", "image", "accelerator", "variant", "api_key")}


class _Placed(NamedTuple):
    role: str
    rank: Rank


def _index_ranks(plan: TopologyPlan) -> dict[str, _Placed]:
    """Return the ranks by their places. Raises InputError if two have one place."""
    ranks: dict[str, _Placed] = {}
    for replica in plan.replicas:
        for rank in replica.ranks:
            where = f"group {replica.group}, replica {replica.number}, rank {rank.rank}"
            if where in ranks:
                raise InputError(f"{where}: found twice, expected once", hint="`topology plan --json` writes plans")
            ranks[where] = _Placed(replica.role, rank)
    return ranks


def _compare_ranks(where: str, first: _Placed | None, second: _Placed | None) -> Iterator[Change]:
    if first is None or second is None:
        yield Change(where, "rank", _describe_rank_node(first), _describe_rank_node(second))
        return
    changes = [*_compare_place_settings(where, _list_rank_settings(first), _list_rank_settings(second))]
    yield from changes
    shown_changes = {change[1:] for change in changes}
    mine, theirs = split_command_options(first.rank.words), split_command_options(second.rank.words)
    for change in _compare_place_settings(where, mine, theirs):
        if change[1:] not in shown_changes:  # an argument mostly becomes an equal option of the command
            yield change._replace(setting=f"argument {change.setting}")


def _describe_rank_node(placed: _Placed | None) -> str | None:
    return f"on node {placed.rank.node}" if placed else None


def _list_rank_settings(placed: _Placed) -> dict[str, str]:
    """Return what a rank is, under names that no variable can have; its arguments are compared apart."""
    rank = placed.rank
    env = {f"env {name}": value for name, value in rank.env.items()}
    ports = {f"port {purpose}": str(port) for purpose, port in rank.ports.items()}
    before = {f"before {number}": shlex.join(words) for number, words in enumerate(rank.before)}
    devices = {"devices": ",".join(map(str, rank.devices))} if rank.devices else {}
    identity = {"role": placed.role, "node": rank.node, "address": rank.address, "architecture": rank.architecture}
    return {**identity, **devices, **split_command_options(rank.argv), **env, **ports, **before}


def split_command_options(argv: tuple[str, ...]) -> dict[str, str]:
    """Return a command as settings: each flag with its values, and what comes before the first flag.

    Values that are empty or have spaces are quoted, so that two values never look like one.
    """
    option_values: dict[str, list[str]] = {"command": []}
    name = "command"
    for word in argv:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            option_values.setdefault(name, []).extend([value] if equals else [])
        else:
            option_values[name].append(word)
    return {name: " ".join(map(_quote_value, values)) for name, values in option_values.items()}


def _quote_value(value: str) -> str:
    return value if value and value.split() == [value] else shlex.quote(value)


def _list_router_settings(plan: TopologyPlan) -> dict[str, str]:
    router = plan.router
    if router is None:
        return {}
    identity = {"name": router.name, "image": router.image, "node": router.node, "address": router.address}
    return {**identity, "port": str(router.port), **split_command_options(router.argv)}


def _compare_place_settings(where: str, first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[Change]:
    yield from (Change(where, *difference) for difference in find_differences(first, second))
