"""Which devices serve together, and whether those that the user chose are near each other. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from entrypoints.checks.findings import make_notice
from entrypoints.core.parse import parse_version_numbers
from entrypoints.core.records import Device, Facts, Notice, Use
from entrypoints.decide.parallelism.devices import FABRIC, find_islands, format_numbers, rate_link
from entrypoints.request.vllm_flags import UserFlags

_HALF = 4
"""Cards that one processor of a usual server has at least. A variable such as CUDA_VISIBLE_DEVICES hides the others, so
that it is not known whether one processor has as many as the user chose."""

_CAPABILITY = "compute_capability"
"""Version of the cards that checks ask for: the lowest; with `_highest` the highest."""

Group = tuple[Device, ...]


def group_by_engine(facts: Facts, uses: Iterable[Use]) -> tuple[Group, ...]:
    """Return the devices of each engine; none if only vLLM knows them."""
    members: dict[int, set[int]] = {}
    for use in uses:
        members.setdefault(use.engine, set()).add(use.number)
    groups = (tuple(device for device in facts.devices if device.number in numbers) for numbers in members.values())
    return tuple(group for group in groups if group)


def narrow_to_engine(facts: Facts, uses: Iterable[Use]) -> Facts:
    """Return the facts with the devices of one engine, the largest: what checks of a plan say of devices is of these.

    What cards need to communicate, such as network cards for more than four Gaudi2E, one card by itself does not need.
    """
    groups = group_by_engine(facts, uses)
    if not groups:
        return facts
    devices = max(groups, key=len)
    return facts._replace(devices=devices, versions=_narrow_versions(facts.versions, devices))


def _narrow_versions(versions: Mapping[str, str], devices: Group) -> Mapping[str, str]:
    """Return versions with the compute capabilities of these devices: an older card that is not used refuses none."""
    numbers = sorted({device.architecture for device in devices if device.architecture}, key=parse_version_numbers)
    if _CAPABILITY not in versions or not numbers:
        return versions
    return {**versions, _CAPABILITY: numbers[0], f"{_CAPABILITY}_highest": numbers[-1]}


def find_distant(
    profile: Mapping[str, Any], facts: Facts, user_flags: UserFlags, uses: Iterable[Use]
) -> Iterator[Notice]:
    """Yield a notice for a group of devices that the user chose, and that are on two NUMA nodes, or not linked."""
    is_chosen = user_flags.intents.devices is not None
    if not is_chosen and not _is_narrowed(profile, user_flags):
        return
    for group in group_by_engine(facts, uses):
        halves, nodes = _find_halves(group, facts), sorted({device.node for device in group if device.node is not None})
        if len(group) < 2 or (len(halves) < 2 and len(nodes) < 2):  # noqa: PLR2004 - a pair
            continue
        nearer = _find_nearer(group, facts)
        hidden = len(group) == len(facts.devices)  # the user's choice is all that is seen here
        if not nearer and (is_chosen or not hidden or len(group) > _HALF):
            continue
        apart = " and ".join(format_numbers(half) for half in halves)
        because = (
            f"no direct link joins {apart}"
            if len(halves) > 1
            else f"they are on NUMA nodes {' and '.join(map(str, nodes))}"
        )
        use = f"--devices {format_numbers(nearer)} are together" if nearer else "choose devices of one NUMA node"
        yield make_notice(
            "PLAN-141", f"{format_numbers(group)}: {because}", "devices in one place", because=because, use=use
        )
        return


def _is_narrowed(profile: Mapping[str, Any], user_flags: UserFlags) -> bool:
    """Tell whether a variable of the vendor's runtime selects devices."""
    names = tuple((profile.get("variables") or {}).get("devices", ()))
    user_values = (value for name, value in user_flags.env.items() if names and name.startswith(names))
    return any(value.strip().lower() not in ("", "all", "void", "none") for value in user_values)


def _find_halves(group: Group, facts: Facts) -> list[Group]:
    """Return the parts of a group that direct links join; one if this machine has no such links."""
    linked = any(rate_link(link.kind) == FABRIC for link in facts.links)
    return find_islands(group, facts.links, FABRIC) if linked else [group]


def _find_nearer(group: Group, facts: Facts) -> Group:
    """Return as many equal devices that are linked and on one NUMA node, or else linked; none if there are none."""
    first = group[0]
    alike = tuple(device for device in facts.devices if (device.name, device.health) == (first.name, first.health))
    alike = tuple(device for device in alike if not device.busy)
    for part in _find_halves(alike, facts):
        for node in sorted({device.node for device in part if device.node is not None}):
            near = tuple(device for device in part if device.node == node)
            if len(near) >= len(group):
                return near[: len(group)]
    halves = [part for part in _find_halves(alike, facts) if len(part) >= len(group)]
    return halves[0][: len(group)] if halves and len(_find_halves(group, facts)) > 1 else ()
