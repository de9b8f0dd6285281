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
from drydock.topology.size import COLUMNS, Capacity, cells
from entrypoints.checks.findings import SEVERITIES
from entrypoints.cli.page_frame import (
    Figure,
    command,
    command_lines,
    frame,
    shortened,
    summary,
)
from entrypoints.core.parse import format_id_list
from entrypoints.core.records import Reason
from entrypoints.core.text import counted
from entrypoints.plan.plan_summary import split_words

SECTIONS = "page.html.j2"
TONES = {"prefill": "e0", "decode": "e2", "serve": "e3", "router": "e1"}
"""Role → its colour, a class of the frame's style."""
_FINDING = re.compile(r"([A-Z]+-\d+): (?:(FAIL|UNKNOWN|WARN): )?(.*)", re.DOTALL)
_SHORT = {"prefill": "P", "decode": "D"}


def page(made: TopologyPlan) -> str:
    """Return the page: the answer, nodes with their ranks, commands with their reasons and what needs attention."""
    environment = _environment()
    nodes = [{"name": name, **node} for name, node in sorted(_nodes(made).items())]
    findings = [_finding(line) for line in made.findings]
    sections = environment.get_template(SECTIONS).render(
        nodes=nodes,
        findings=findings,
        also=_command({}, (), made.reasons),
        servers=[_server(replica) for replica in made.replicas],
        router=_command({}, made.router.argv, ()) if made.router else "",
        tones=TONES,
    )
    about = (counted(len(nodes), "node"), f"variant {made.variant}", f"image {made.image}")
    return frame("Plan for", made.model, about, _answer(made, findings), (sections,))


def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _answer(made: TopologyPlan, findings: list[dict[str, str]]) -> Iterator[Figure]:
    """Yield how many servers there are, how those of each group compute, where clients ask, and the worst finding."""
    roles = [replica.role for replica in made.replicas]
    split = "".join(f"{roles.count(role)}{short}" for role, short in _SHORT.items() if role in roles)
    servers = counted(len(roles), "server")
    words = ", ".join(f"{roles.count(role)} {role}" for role in dict.fromkeys(roles))
    yield Figure(split or servers, f"{servers}: {words}" if split else "each answers requests")
    for group in {replica.group: replica for replica in made.replicas}.values():
        settings = _settings(group.ranks[0].argv)
        length = settings.get("--max-model-len", "")
        longest = f", up to {int(length):,} tokens" if length.isdecimal() else ""
        each = f"{counted(len(group.ranks), 'node')} a server{longest}"
        yield Figure(split_words(settings), f"{group.group}: {each}", TONES[group.role])
    if made.router:
        yield Figure(f"port {made.router.port}", f"the router on {made.router.node} answers clients", TONES["router"])
    severities = [each["severity"] for each in findings]
    worst = min(findings, key=lambda each: SEVERITIES.index(each["severity"]), default=None)
    text = f"{worst['id']}: {shortened(worst['text'])}" if worst else ""
    yield summary({name: severities.count(name) for name in severities}, text)


def _settings(argv: tuple[str, ...]) -> dict[str, str]:
    """Return the flags of a command with their values."""
    lines = (line.partition(" ") for line in command_lines(argv))
    return {flag: value or "true" for flag, _, value in lines}


def _finding(line: str) -> dict[str, str]:
    """Return a finding's parts; those of topologies are warnings."""
    match = _FINDING.fullmatch(line)
    name, severity, text = match.groups() if match else ("", "", line)
    return {"id": name, "severity": severity or "WARN", "text": text}


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
    split = split_words(_settings(rank.argv))
    devices = f"{split} on devices {format_id_list(rank.devices)}" if rank.devices else split
    return [devices, ", ".join(f"{purpose} {port}" for purpose, port in rank.ports.items())]


def _server(replica: Replica) -> dict[str, Any]:
    """Return a server's title, and the command of each of its nodes; the reasons are at the first."""
    commands = [
        {"node": rank.node, "text": _command(rank.env, rank.argv, () if rank.rank else replica.reasons)}
        for rank in replica.ranks
    ]
    role = "" if replica.role == replica.group else f" ({replica.role})"
    return {"title": f"{replica.group} {replica.number}{role}", "commands": commands, "first": replica.number == 0}


def _command(env: Mapping[str, str], argv: tuple[str, ...], reasons: tuple[Because, ...]) -> Markup:
    given = (Reason(each.setting, each.value, "", each.because, each.instead) for each in reasons)
    return Markup(command(env, argv, given))  # noqa: S704 - `command` has escaped it


# --- which machines serve a model -----------------------------------------------------------------------------------


def sizes(model: str, found: Sequence[Capacity]) -> str:
    """Return the page of `size`: the answer, a table of the machines that serve a model, and why others do not."""
    serving = [size for size in found if size.hosts]
    alone = [size for size in serving if size.hosts == 1]
    most = max(alone, key=lambda size: size.tokens, default=None)
    answer = [
        Figure(f"{len(alone)} alone", "kinds of machines that serve it by themselves", "pass" if alone else "fail")
    ]
    if most:
        text = f"has the largest KV cache of these: {most.tokens:,} tokens, {most.split}"
        answer.append(Figure(most.machine, text))
    answer.append(Figure(f"{len(serving) - len(alone)} together", "kinds of which several serve it"))
    others = [size for size in found if not size.hosts]
    answer.append(Figure(f"{len(others)} not", "too small, also sixteen of them, or without a suitable image"))
    body = (
        _environment()
        .get_template("sizes.html.j2")
        .render(serving=serving, others=others, columns=COLUMNS, cells=cells)
    )
    about = (counted(len(found), "recorded machine"), "computed from the model's configuration, not measured")
    return frame("Machines for", model, about, answer, (body,))
