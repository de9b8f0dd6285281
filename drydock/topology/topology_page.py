"""A planned topology as one self-contained HTML page, to look at, to print and to attach.

Every text is escaped. The page loads nothing and runs no script. Frame and style are those of the
image's `plan --html`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from drydock.topology.plan_model import Because, Rank, Replica, TopologyPlan
from drydock.topology.size import Capacity, format_capacity_cells, list_columns
from entrypoints.checks.findings import SEVERITIES
from entrypoints.core.parse import format_id_list
from entrypoints.core.records import Reason
from entrypoints.core.text import format_count
from entrypoints.pages.page_frame import (
    Figure,
    make_summary_figure,
    render_command,
    render_page,
    shorten_to_clause,
    split_command_lines,
)
from entrypoints.plan.plan_summary import split_words

SECTIONS = "page.html.j2"
TONES = {"prefill": "e0", "decode": "e2", "serve": "e3", "router": "e1"}
"""Role → its colour, a class of the frame's style."""
_FINDING = re.compile(r"([A-Z]+-\d+): (?:(FAIL|UNKNOWN|WARN): )?(.*)", re.DOTALL)
_SHORT = {"prefill": "P", "decode": "D"}


def render_topology_page(plan: TopologyPlan) -> str:
    """Return the page: the answer, nodes with their ranks, commands with their reasons and what needs attention."""
    environment = _make_template_environment()
    nodes = [{"name": name, **node} for name, node in sorted(_collect_node_boxes(plan).items())]
    findings = [_parse_finding_line(line) for line in plan.findings]
    sections = environment.get_template(SECTIONS).render(
        nodes=nodes,
        findings=findings,
        also=_render_plan_command({}, (), plan.reasons),
        servers=[_describe_server(replica) for replica in plan.replicas],
        router=_render_plan_command({}, plan.router.argv, ()) if plan.router else "",
        tones=TONES,
    )
    about = (format_count(len(nodes), "node"), f"variant {plan.variant}", f"image {plan.image}")
    return render_page("Plan for", plan.model, about, _list_plan_figures(plan, findings), (sections,))


def _make_template_environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _list_plan_figures(plan: TopologyPlan, findings: list[dict[str, str]]) -> Iterator[Figure]:
    """Yield how many servers there are, how those of each group compute, where clients ask, and the worst finding."""
    roles = [replica.role for replica in plan.replicas]
    split = "".join(f"{roles.count(role)}{short}" for role, short in _SHORT.items() if role in roles)
    servers = format_count(len(roles), "server")
    words = ", ".join(f"{roles.count(role)} {role}" for role in dict.fromkeys(roles))
    yield Figure(split or servers, f"{servers}: {words}" if split else "each answers requests")
    for group in {replica.group: replica for replica in plan.replicas}.values():
        settings = _parse_settings(group.ranks[0].argv)
        length = settings.get("--max-model-len", "")
        longest = f", up to {int(length):,} tokens" if length.isdecimal() else ""
        detail = f"{format_count(len(group.ranks), 'node')} a server{longest}"
        yield Figure(split_words(settings), f"{group.group}: {detail}", TONES[group.role])
    if plan.router:
        yield Figure(f"port {plan.router.port}", f"the router on {plan.router.node} answers clients", TONES["router"])
    severities = [detail["severity"] for detail in findings]
    worst = min(findings, key=lambda detail: SEVERITIES.index(detail["severity"]), default=None)
    text = f"{worst['id']}: {shorten_to_clause(worst['text'])}" if worst else ""
    yield make_summary_figure({name: severities.count(name) for name in severities}, text)


def _parse_settings(argv: tuple[str, ...]) -> dict[str, str]:
    """Return the flags of a command with their values."""
    lines = (line.partition(" ") for line in split_command_lines(argv))
    return {flag: value or "true" for flag, _, value in lines}


def _parse_finding_line(line: str) -> dict[str, str]:
    """Return a finding's parts; those of topologies are warnings."""
    match = _FINDING.fullmatch(line)
    name, severity, text = match.groups() if match else ("", "", line)
    return {"id": name, "severity": severity or "WARN", "text": text}


def _collect_node_boxes(plan: TopologyPlan) -> dict[str, dict[str, Any]]:
    """Return node → its address, and a box for each thing that runs on it."""
    nodes: dict[str, dict[str, Any]] = {}
    for replica in plan.replicas:
        for rank in replica.ranks:
            node = nodes.setdefault(rank.node, {"address": rank.address, "boxes": []})
            node["boxes"].append(
                {"role": replica.role, "title": _format_rank_title(replica, rank), "lines": _list_box_lines(rank)}
            )
    if plan.router:
        node = nodes.setdefault(plan.router.node, {"address": plan.router.address, "boxes": []})
        node["boxes"].append({"role": "router", "title": "router", "lines": [f"port {plan.router.port}"]})
    return nodes


def _format_rank_title(replica: Replica, rank: Rank) -> str:
    several = f", rank {rank.rank} of {len(replica.ranks)}" if len(replica.ranks) > 1 else ""
    return f"{replica.group} {replica.number}{several}"


def _list_box_lines(rank: Rank) -> list[str]:
    split = split_words(_parse_settings(rank.argv))
    devices = f"{split} on devices {format_id_list(rank.devices)}" if rank.devices else split
    return [devices, ", ".join(f"{purpose} {port}" for purpose, port in rank.ports.items())]


def _describe_server(replica: Replica) -> dict[str, Any]:
    """Return a server's title, and the command of each of its nodes; the reasons are at the first."""
    commands = [
        {"node": rank.node, "text": _render_plan_command(rank.env, rank.argv, () if rank.rank else replica.reasons)}
        for rank in replica.ranks
    ]
    role = "" if replica.role == replica.group else f" ({replica.role})"
    return {"title": f"{replica.group} {replica.number}{role}", "commands": commands, "first": replica.number == 0}


def _render_plan_command(env: Mapping[str, str], argv: tuple[str, ...], reasons: tuple[Because, ...]) -> Markup:
    page_reasons = (Reason(reason.setting, reason.value, "", reason.because, reason.instead) for reason in reasons)
    return Markup(render_command(env, argv, page_reasons))  # noqa: S704 - `render_command` has escaped it


# --- which machines serve a model -----------------------------------------------------------------------------------


def render_sizes_page(model: str, capacities: Sequence[Capacity]) -> str:
    """Return the page of `size`: the answer, a table of the machines that serve a model, and why others do not."""
    serving = [size for size in capacities if size.hosts]
    alone = [size for size in serving if size.hosts == 1]
    most = max(alone, key=lambda size: size.tokens, default=None)
    answer = [
        Figure(f"{len(alone)} alone", "kinds of machines that serve it by themselves", "pass" if alone else "fail")
    ]
    if most:
        text = f"has the largest KV cache of these: {most.tokens:,} tokens, {most.split}"
        answer.append(Figure(most.machine, text))
    answer.append(Figure(f"{len(serving) - len(alone)} together", "kinds of which several serve it"))
    not_serving = [size for size in capacities if not size.hosts]
    answer.append(Figure(f"{len(not_serving)} not", "too small, also sixteen of them, or without a suitable image"))
    body = (
        _make_template_environment()
        .get_template("sizes.html.j2")
        .render(serving=serving, others=not_serving, columns=list_columns(capacities), cells=format_capacity_cells)
    )
    about = (
        format_count(len(capacities), "recorded machine"),
        "each idle and whole",
        "computed from the model's configuration, not measured",
    )
    return render_page("Machines for", model, about, answer, (body,))
