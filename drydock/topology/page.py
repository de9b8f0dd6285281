"""A planned topology as one self-contained HTML page, to look at, to print and to attach.

Every text is escaped. The page loads nothing and runs no script. Frame and style are those of the
image's `plan --html`.
"""

from __future__ import annotations

import shlex
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from drydock.core.paths import ROOT
from drydock.topology.plan_model import Rank, Replica, TopologyPlan

FRAME = ROOT / "entrypoints" / "cli" / "page.html"
SECTIONS = "page.html.j2"
TONES = {"prefill": "e0", "decode": "e2", "serve": "e3", "router": "e1"}
"""Role → its colour, a class of the frame's style."""


def page(made: TopologyPlan) -> str:
    """Return the page: nodes with their ranks, commands, reasons and what needs attention."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    nodes = [{"name": name, **node} for name, node in sorted(_nodes(made).items())]
    sections = environment.get_template(SECTIONS).render(
        plan=made,
        nodes=nodes,
        servers=[_server(replica) for replica in made.replicas],
        router=shlex.join(made.router.argv) if made.router else "",
        tones=TONES,
    )
    return Template(FRAME.read_text(encoding="utf-8")).substitute(
        title=escape(f"Plan for {made.model}"),
        variant=escape(made.variant),
        host=f"{len(nodes)} nodes" if len(nodes) > 1 else "one node",
        sections=sections,
    )


def _nodes(made: TopologyPlan) -> dict[str, dict[str, Any]]:
    """Return node → its address, and a box for each thing that runs on it."""
    found: dict[str, dict[str, Any]] = {}
    for replica in made.replicas:
        for rank in replica.ranks:
            node = found.setdefault(rank.node, {"address": rank.address, "boxes": []})
            node["boxes"].append({"role": replica.role, "title": _title(replica, rank), "lines": _lines(rank)})
    if made.router:
        node = found.setdefault(made.router.node, {"address": made.router.address, "boxes": []})
        node["boxes"].append({"role": "router", "title": "router", "lines": [f"port {made.router.port}"]})
    return found


def _title(replica: Replica, rank: Rank) -> str:
    several = f", rank {rank.rank} of {len(replica.ranks)}" if len(replica.ranks) > 1 else ""
    return f"{replica.group} {replica.number}{several}"


def _lines(rank: Rank) -> list[str]:
    devices = [f"devices {', '.join(map(str, rank.devices))}"] if rank.devices else []
    return [*devices, *(f"{purpose} {port}" for purpose, port in rank.ports.items())]


def _server(replica: Replica) -> dict[str, Any]:
    commands = [
        {
            "node": rank.node,
            "text": "\n".join(
                [*(f"{name}={shlex.quote(value)} \\" for name, value in rank.env.items()), shlex.join(rank.argv)]
            ),
        }
        for rank in replica.ranks
    ]
    return {
        "title": f"{replica.group} {replica.number} ({replica.role})",
        "commands": commands,
        "reasons": replica.reasons,
    }
