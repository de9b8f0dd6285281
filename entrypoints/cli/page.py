"""A plan or findings as one self-contained HTML page, to look at, to print and to attach. Pure.

Everything that comes from the host or the user is escaped. The page loads nothing and runs no script.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from math import cos, pi, sin
from pathlib import Path
from shlex import join, quote
from string import Template

from entrypoints.core.parse import format_id_list
from entrypoints.core.records import Device, Facts, Finding, Link, Node, Reason, ServePlan, Use
from entrypoints.core.units import GIB
from entrypoints.decide.parallelism.devices import FABRIC, SOCKET, is_healthy, speed
from entrypoints.plan.plan import redacted

_ENGINES = 6
"""Colours for engines; more engines repeat them."""
_LINKS_AT_MOST = 4096
"""Links that are drawn; a host has fewer."""

_SEVERITIES = ("FAIL", "UNKNOWN", "WARN", "INFO", "PASS")
_SPEEDS = {FABRIC: "fabric", SOCKET: "socket"}


def plan_page(variant: str, facts: Facts, plan: ServePlan) -> str:
    """Return the page of a plan: machine, memory, command, decisions and findings."""
    shown = redacted(plan)
    environment = "".join(f"{name}={quote(value)} \\\n" for name, value in shown.env.items())
    sections = (
        _section("Machine", _machine(facts, shown.uses)),
        _section("Memory", _memory(facts, shown.uses)) if shown.uses else "",
        _section("Command", f"<pre>{escape(environment + join(shown.argv))}</pre>"),
        _section("Decisions", "".join(map(_decision, shown.reasons))),
        _section("Findings", _findings(shown.findings)),
    )
    return _page(f"Plan for {shown.model}", variant, facts, sections)


def check_page(variant: str, facts: Facts, findings: Iterable[Finding]) -> str:
    """Return the page of a check: machine and findings."""
    sections = (_section("Machine", _machine(facts, ())), _section("Findings", _findings(tuple(findings))))
    return _page("Check of this host", variant, facts, sections)


def _page(title: str, variant: str, facts: Facts, sections: Iterable[str]) -> str:
    kinds: dict[str, int] = {}
    for device in facts.devices:
        kinds[device.name] = kinds.get(device.name, 0) + 1
    cards = (f"{count} x {name}" for name, count in kinds.items())
    host = ", ".join((facts.processor.model or facts.processor.architecture, *cards))
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(title), variant=escape(variant), host=escape(host), sections="".join(sections)
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>\n{body}</section>\n"


# --- machine --------------------------------------------------------------------------------------------------------


def _machine(facts: Facts, uses: tuple[Use, ...]) -> str:
    """Draw NUMA nodes as boxes with their devices, and the links between devices as a ring."""
    engines = {use.number: use.engine for use in uses}
    homes = {node.id for node in facts.nodes}
    homeless = tuple(device for device in facts.devices if device.node not in homes)
    boxes = "".join(_node(facts, node, engines) for node in facts.nodes)
    if homeless:
        cards = "".join(_device(device, engines) for device in homeless)
        boxes += f'<div class="node"><h3>NUMA node unknown</h3><div class="devices">{cards}</div></div>'
    return f'<div class="nodes">{boxes}</div>{_legend(facts, uses)}{_ring(facts, engines)}'


def _node(facts: Facts, node: Node, engines: dict[int, int]) -> str:
    cpus = {cpu.id: cpu for cpu in facts.cpus if cpu.id in node.cpus}
    cores = len({cpu.core for cpu in cpus.values()})
    what = f"{cores} cores, {_size(node.memory_total)}" if cpus else f"no usable cores, {_size(node.memory_total)}"
    tone = f" e{engines[node.id] % _ENGINES}" if not facts.devices and node.id in engines else ""
    cards = "".join(_device(device, engines) for device in facts.devices if device.node == node.id)
    return (
        f'<div class="node{tone}"><h3>NUMA node {node.id}</h3><p>{what}'
        f'<br><small>CPUs {format_id_list(tuple(cpus)) or "none"}</small></p><div class="devices">{cards}</div></div>'
    )


def _device(device: Device, engines: dict[int, int]) -> str:
    tone, state = "idle", "idle" if engines else ""
    if device.number in engines:
        tone = state = f"e{engines[device.number] % _ENGINES}"
        state = f"engine {engines[device.number]}"
    if not is_healthy(device) or device.busy:
        tone, state = f"{tone} bad", device.health if not is_healthy(device) else "in use"
    size = _size(device.memory_total) if device.memory_total else ""
    details = " ".join(filter(None, (size, state)))
    return f'<div class="device {tone}" title="{escape(device.name)}"><b>{device.number}</b><br>{escape(details)}</div>'


def _legend(facts: Facts, uses: tuple[Use, ...]) -> str:
    if not uses:
        return ""
    what = "device" if facts.devices else "NUMA node"
    used = len({use.number for use in uses})
    there = len(facts.devices or facts.nodes)
    engines = len({use.engine for use in uses})
    copies = "one engine" if engines == 1 else f"{engines} engines"
    return f"<p>{copies} on {used} of {there} {what}{'' if there == 1 else 's'}</p>"


def _ring(facts: Facts, engines: dict[int, int]) -> str:
    """Draw the devices on a circle, with a line for each link; slow links over PCIe are left out where others exist."""
    links = tuple(link for link in facts.links if speed(link.kind) in _SPEEDS)[:_LINKS_AT_MOST]
    if not links:
        return ""
    spots = {device.number: _spot(place, len(facts.devices)) for place, device in enumerate(facts.devices)}
    lines = "".join(_line(link, spots) for link in links if link.first in spots and link.second in spots)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" class="{_tone(number, engines)}"/>'
        f'<text x="{x:.1f}" y="{y:.1f}">{number}</text>'
        for number, (x, y) in spots.items()
    )
    kinds: dict[str, int] = {}
    for link in links:
        kinds[link.kind] = kinds.get(link.kind, 0) + 1
    named = ", ".join(
        f'{count} x <b class="{_SPEEDS[speed(kind)]}">{escape(kind)}</b>' for kind, count in kinds.items()
    )
    return (
        f'<figure><svg viewBox="0 0 240 240" role="img" aria-label="links between devices">{lines}{dots}</svg>'
        f"<figcaption>Links: {named}</figcaption></figure>"
    )


def _tone(number: int, engines: dict[int, int]) -> str:
    return f"e{engines[number] % _ENGINES}" if number in engines else "idle"


def _spot(place: int, count: int) -> tuple[float, float]:
    angle = 2 * pi * place / count - pi / 2
    return 120 + 100 * cos(angle), 120 + 100 * sin(angle)


def _line(link: Link, spots: dict[int, tuple[float, float]]) -> str:
    (x1, y1), (x2, y2) = spots[link.first], spots[link.second]
    kind = _SPEEDS[speed(link.kind)]
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


# --- memory ---------------------------------------------------------------------------------------------------------


def _memory(facts: Facts, uses: tuple[Use, ...]) -> str:
    """Draw one stacked bar for each device or node: weights, runtime, KV cache, free."""
    label = "device" if facts.devices else "node"
    numbers = dict.fromkeys(use.number for use in uses)
    bars = "".join(_bar(label, number, [use for use in uses if use.number == number]) for number in numbers)
    names = ("weights", "runtime, graphs and activations", "KV cache", "free")
    keys = "".join(f'<span class="m{place}">{name}</span>' for place, name in enumerate(names))
    return f'<p class="keys">{keys}</p>{bars}'


def _bar(label: str, number: int, uses: list[Use]) -> str:
    total = sum(use.total for use in uses)
    parts = [sum(use.weights for use in uses), sum(use.other for use in uses), sum(use.cache for use in uses)]
    parts.append(max(0, total - sum(parts)))
    shown = "".join(
        f'<span class="m{place}" style="flex-grow:{size / max(1, total):.4f}" title="{_size(size)}"></span>'
        for place, size in enumerate(parts)
    )
    sizes = " + ".join(_size(size) for size in parts)
    if not parts[0]:
        sizes = f"weights unknown; {sizes}"
    return f'<div class="row"><b>{label} {number}</b><div class="bar">{shown}</div><small>{sizes}</small></div>'


def _size(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size < 10 * GIB else f"{size / GIB:.0f} GiB"


# --- decisions and findings -----------------------------------------------------------------------------------------


def _decision(reason: Reason) -> str:
    refused = "".join(f"<li>not {escape(text)}</li>" for text in reason.instead)
    return (
        f"<article><h3><code>{escape(reason.setting)} = {escape(reason.value)}</code>"
        f" <small>{escape(reason.origin)}</small></h3>"
        f"<p>{escape(reason.because)}</p>{f'<ul>{refused}</ul>' if refused else ''}</article>\n"
    )


def _findings(findings: tuple[Finding, ...]) -> str:
    """List findings, the worst first; those that pass are counted."""
    wrong = [each for each in findings if each.severity != "PASS"]
    wrong.sort(key=lambda finding: _SEVERITIES.index(finding.severity))
    passed = sum(each.severity == "PASS" for each in findings)
    return "".join(map(_finding, wrong)) + f"<p>{passed} checks pass</p>"


def _finding(finding: Finding) -> str:
    return (
        f'<article class="{finding.severity.lower()}"><h3><span>{finding.severity}</span> {finding.id}'
        f" <small>{escape(finding.scope)}</small></h3><p>{escape(finding.text)}</p>{_details(finding)}</article>\n"
    )


def _details(finding: Finding) -> str:
    named = (("found", finding.found), ("expected", finding.expected), ("fix", finding.remediation))
    rows = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in named if text)
    source = f"<p><small>Source: {escape(finding.source)}</small></p>" if finding.source else ""
    return f"<dl>{rows}</dl>{source}"
