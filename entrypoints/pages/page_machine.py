"""Pictures of a machine as HTML: its nodes and devices with the ranks on them, their links and their memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from math import cos, pi, sin
from typing import NamedTuple

from entrypoints.core.parse import format_id_list
from entrypoints.core.records import Device, Facts, Link, Node, Use
from entrypoints.core.text import format_count
from entrypoints.core.units import GIB
from entrypoints.decide.parallelism.devices import FABRIC, SOCKET, is_healthy, rate_link
from entrypoints.plan.plan_summary import devices_text

_TONES = 6
"""Colours for groups of ranks; more groups repeat them."""
_LINKS_AT_MOST = 4096
"""Links that are drawn; a host has fewer."""
_SPEEDS = {FABRIC: "fabric", SOCKET: "socket"}
_WIDTH, _HEIGHT, _DOT = 480, 240, 14


class _Place(NamedTuple):
    """What runs on a device, or on a node of a host without devices."""

    tone: str
    text: str


def render_machine(facts: Facts, uses: tuple[Use, ...], tensor: int = 1) -> str:
    """Draw NUMA nodes as boxes with their devices; each group of `tensor` ranks has a colour."""
    places = _choose_places(uses, max(1, tensor))
    sizes = {_format_memory(device.memory_total) for device in facts.devices if device.memory_total}
    common_size = sizes.pop() if len(sizes) == 1 else ""
    homes = {node.id for node in facts.nodes}
    homeless = tuple(device for device in facts.devices if device.node not in homes)
    boxes = "".join(_render_node(facts, node, places, not common_size) for node in facts.nodes)
    if homeless:
        cards = "".join(_render_device(device, places, not common_size) for device in homeless)
        boxes += f'<div class="node"><h3>NUMA node unknown</h3><div class="devices">{cards}</div></div>'
    return f'<p>{escape(_format_legend(facts, uses, common_size))}</p><div class="nodes">{boxes}</div>'


def _choose_places(uses: tuple[Use, ...], tensor: int) -> dict[int, _Place]:
    """Return what runs on each device or node; a group of ranks that computes each layer together has one colour."""
    engines = len({use.engine for use in uses})
    ranks: dict[int, int] = {}
    groups: dict[tuple[int, int], int] = {}
    uses_by_number: dict[int, list[tuple[int, int, int]]] = {}
    for use in uses:
        rank = ranks[use.engine] = ranks.get(use.engine, -1) + 1
        group = groups.setdefault((use.engine, rank // tensor), len(groups))
        uses_by_number.setdefault(use.number, []).append((use.engine, rank, group))
    places = {}
    for number, here in uses_by_number.items():
        numbers = tuple(rank for _, rank, _ in here)
        several = "s" if len(here) > 1 else ""
        words = (
            f"engine {here[0][0]}" * (engines > 1),
            f"rank{several} {format_id_list(numbers)}" * any(ranks.values()),
        )
        places[number] = _Place(f"e{here[0][2] % _TONES}", ", ".join(filter(None, words)) or "serves")
    return places


def _format_legend(facts: Facts, uses: tuple[Use, ...], same: str) -> str:
    sizes = f", {same} each" if same and len(facts.devices) > 1 else f", {same}" if same else ""
    there = f"{devices_text(facts)}{sizes}"
    if not uses:
        return there
    what = "device" if facts.devices else "NUMA node"
    used_count, engines = len({use.number for use in uses}), len({use.engine for use in uses})
    copies = "one engine" if engines == 1 else f"{engines} engines"
    return f"{there}: {copies} on {used_count} of {format_count(len(facts.devices or facts.nodes), what)}"


def _render_node(facts: Facts, node: Node, places: Mapping[int, _Place], sized: bool) -> str:
    cpus = {cpu.id: cpu for cpu in facts.cpus if cpu.id in node.cpus}
    cores = len({cpu.core for cpu in cpus.values()})
    what = (
        f"{cores} cores, {_format_memory(node.memory_total)}"
        if cpus
        else f"no usable cores, {_format_memory(node.memory_total)}"
    )
    here = None if facts.devices else places.get(node.id)
    tone, text = (f" {here.tone}", f'<p class="device {here.tone}">{here.text}</p>') if here else ("", "")
    cards = "".join(_render_device(device, places, sized) for device in facts.devices if device.node == node.id)
    return (
        f'<div class="node{tone}"><h3>NUMA node {node.id}</h3><p>{what}'
        f"<br><small>CPUs {format_id_list(tuple(cpus)) or 'none'}</small></p>{text}"
        f'<div class="devices">{cards}</div></div>'
    )


def _render_device(device: Device, places: Mapping[int, _Place], sized: bool) -> str:
    place = places.get(device.number, _Place("idle", "idle" if places else ""))
    tone, state = place.tone, place.text
    if not is_healthy(device) or device.busy:
        tone, state = f"{tone} bad", device.health if not is_healthy(device) else "in use"
    size = _format_memory(device.memory_total) if sized and device.memory_total else ""
    details = "".join(f"<br>{escape(text)}" for text in (state, size) if text)
    return f'<div class="device {tone}" title="{escape(device.name)}"><b>device {device.number}</b>{details}</div>'


# --- links ----------------------------------------------------------------------------------------------------------


def render_links(facts: Facts, uses: tuple[Use, ...], tensor: int = 1) -> str:
    """Draw the devices on an ellipse, with a line for each link; PCIe between processors is left out."""
    drawn_links = tuple(link for link in facts.links if rate_link(link.kind) in _SPEEDS)[:_LINKS_AT_MOST]
    if not drawn_links:
        return ""
    places = _choose_places(uses, max(1, tensor))
    spots = {device.number: _compute_spot(place, len(facts.devices)) for place, device in enumerate(facts.devices)}
    lines = "".join(_render_link(link, spots) for link in drawn_links if link.first in spots and link.second in spots)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_DOT}" class="{places[number].tone if number in places else "idle"}"/>'
        f'<text x="{x:.1f}" y="{y:.1f}">{number}</text>'
        for number, (x, y) in spots.items()
    )
    kinds: dict[str, int] = {}
    for link in drawn_links:
        kinds[link.kind] = kinds.get(link.kind, 0) + 1
    pairs = len(spots) * (len(spots) - 1) // 2
    caption = ", ".join(
        f'<b class="{_SPEEDS[rate_link(kind)]}">{escape(kind)}</b> between '
        + (f"all {pairs} pairs" if count == pairs > 1 else f"{count} of {format_count(pairs, 'pair')}")
        for kind, count in kinds.items()
    )
    return (
        f"<figure><figcaption>{caption}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="links between devices">{lines}{dots}</svg>'
        "</figure>"
    )


def _compute_spot(place: int, count: int) -> tuple[float, float]:
    angle = 2 * pi * (place + 0.5) / count - pi / 2
    across, down = _WIDTH / 2, _HEIGHT / 2
    return across + (across - _DOT - 2) * cos(angle), down + (down - _DOT - 2) * sin(angle)


def _render_link(link: Link, spots: Mapping[int, tuple[float, float]]) -> str:
    (x1, y1), (x2, y2) = spots[link.first], spots[link.second]
    kind = _SPEEDS[rate_link(link.kind)]
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


# --- memory ---------------------------------------------------------------------------------------------------------


def render_memory(facts: Facts, uses: tuple[Use, ...]) -> str:
    """Draw a bar for each group of equal devices or nodes: weights, runtime, KV cache, what is left."""
    alike: dict[tuple[str, ...], list[int]] = {}
    parts: dict[tuple[str, ...], tuple[int, ...]] = {}
    for number in dict.fromkeys(use.number for use in uses):
        sizes = _sum_memory_parts([use for use in uses if use.number == number])
        key = tuple(map(_format_memory, sizes))
        alike.setdefault(key, []).append(number)
        parts[key] = sizes
    what = "device" if facts.devices else "NUMA node"
    return "".join(_render_bar(what, numbers, parts[key]) for key, numbers in alike.items())


def _sum_memory_parts(uses: list[Use]) -> tuple[int, ...]:
    parts = [sum(use.weights for use in uses), sum(use.other for use in uses), sum(use.cache for use in uses)]
    return (*parts, max(0, sum(use.total for use in uses) - sum(parts)))


def _render_bar(what: str, numbers: list[int], parts: tuple[int, ...]) -> str:
    total, several = max(1, sum(parts)), len(numbers) > 1
    segments = "".join(
        f'<span class="m{place}" style="flex-grow:{size / total:.4f}"></span>' for place, size in enumerate(parts)
    )
    names = ("weights", "runtime, graphs and activations", "KV cache", "left free")
    sizes = [_format_memory(size) if size or place else "unknown" for place, size in enumerate(parts)]
    labels = "".join(
        f'<li><i class="m{place}"></i><span><b>{size}</b> {name}</span></li>'
        for place, (name, size) in enumerate(zip(names, sizes, strict=True))
    )
    devices = f"{what}{'s' if several else ''} {format_id_list(tuple(numbers))}"
    title = f"{devices}, {'each ' if several else ''}{_format_memory(total)}"
    return f'<div class="memory"><h3>{title}</h3><div class="bar">{segments}</div><ul>{labels}</ul></div>'


def _format_memory(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size < 10 * GIB else f"{size / GIB:.0f} GiB"
