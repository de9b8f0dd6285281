"""What the machines answered → findings, node by node. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from drydock.core.errors import InputError
from drydock.model.topology_findings import FINDINGS
from drydock.topology.preflight.node_request import NodeRequest
from drydock.topology.preflight.node_response import Chip, NodeImage, NodeResponse, Output, read_facts, read_findings
from drydock.topology.render.chips import address as chip_address
from entrypoints.checks.findings import FAIL, INFO, PASS, WARN, outcome
from entrypoints.core.records import Finding

CHECKED = (0, 3)
"""Exit codes of an image's check that ran."""
FIGURES = ("NET-011", "NET-012")
"""Findings of the image's all-reduce, with its bandwidth."""
_TLS = re.compile(r"tls\s+switch\s*\[?\s*(\d)", re.IGNORECASE)
_LINK = re.compile(r"link\s+status\s*:\s*(\w+)", re.IGNORECASE)
_PING = re.compile(r"(\d+)\s+packets?\s+received|(\d+)\s+received", re.IGNORECASE)


class SeenNode(NamedTuple):
    """A machine that answered."""

    asked: NodeRequest
    answer: NodeResponse
    facts: Mapping[str, Any]
    """Empty if they cannot be read."""


def evaluate(
    asked: Sequence[NodeRequest],
    answers: Mapping[str, NodeResponse | str],
    recorded: Mapping[str, Mapping[str, Any]],
    chips: Mapping[str, Mapping[int, str]],
) -> tuple[Finding, ...]:
    """Return the findings of all nodes.

    `answers`: node → its answer, or why there is none; `recorded`: node → the facts of its recorded host; `chips`:
    node → device → recorded address.
    """
    seen = [
        _seen(each, answer) for each in asked if isinstance(answer := answers.get(each.node, _SILENT), NodeResponse)
    ]
    found: list[Finding] = []
    for each in asked:
        answer = answers.get(each.node, _SILENT)
        failure = answer if isinstance(answer, str) else ""
        found.append(_finding("TOPO-020", each.node, failure or "answers", "an answer", good=not failure))
    for one in seen:
        found += _node(one, seen)
        found += _recorded(one, recorded.get(one.asked.node, {}), chips.get(one.asked.node, {}))
        found += _of_image(one)
    return tuple(found)


_SILENT = "did not answer"


def _seen(asked: NodeRequest, answer: NodeResponse) -> SeenNode:
    try:
        facts = read_facts(answer.facts)
    except ValueError:
        facts = {}
    return SeenNode(asked, answer, facts)


def _finding(number: str, node: str, found: str, expected: str, *, good: bool | None, bad: str = FAIL) -> Finding:
    """Return a finding; `good` is None if it is not known."""
    known = FINDINGS[number]
    texts = (each.format(f"node {node}") for each in (known.text, known.passed))
    severity, text = outcome(bad, *texts, good=good)
    return Finding(number, severity, text, f"{node}: {found}", expected, known.remediation, "host", known.source)


def _node(one: SeenNode, seen: Sequence[SeenNode]) -> Iterator[Finding]:
    """Judge a node by itself and with the others."""
    node, answer = one.asked.node, one.answer
    yield from _images(one, seen)
    yield from _model(one, seen)
    yield from _versions(one, seen)
    taken = [f"port {port}: {answer.ports.get(str(port), 'not tried')}" for port in one.asked.ports]
    taken = [text for text in taken if not text.endswith(": ")]
    if one.asked.ports:
        yield _finding("TOPO-026", node, "; ".join(taken) or "all free", "free ports", good=not taken)
    yield from _links(one, seen)


# --- images, model, versions ----------------------------------------------------------------------------------------


def _images(one: SeenNode, seen: Sequence[SeenNode]) -> Iterator[Finding]:
    for name in one.asked.images:
        image = one.answer.images.get(name, _NO_IMAGE)
        wanted = name.partition("@")[2]
        usual = _usual(other.answer.images.get(name, _NO_IMAGE).id for other in seen if name in other.asked.images)
        good = bool(image.id) and (wanted in image.digests if wanted else image.id == usual)
        found = ", ".join(image.digests) or image.id or f"no {name}"
        yield _finding("TOPO-021", one.asked.node, found, wanted or usual or "the image", good=good)


_NO_IMAGE = NodeImage(id="", digests=(), failure="")


def _model(one: SeenNode, seen: Sequence[SeenNode]) -> Iterator[Finding]:
    """Judge a model's folder by what most nodes have."""
    model, node = one.answer.model, one.asked.node
    if not one.asked.model or model is None:
        return
    folders = [other.answer.model.files for other in seen if other.answer.model]
    names = sorted({name for files in folders for name in files})
    usual = {name: _usual(files.get(name) for files in folders) for name in names}
    different = [_difference(name, model.files.get(name), usual[name]) for name in names]
    different = [text for text in different if text]
    found = model.failure or _few(different) or f"{len(model.files)} files"
    good = not different and not model.failure and bool(model.files)
    yield _finding("TOPO-022", node, found if model.files else model.failure or "no files", "equal files", good=good)
    missing = sum(size[0] for name, size in usual.items() if size and name not in model.files)
    found = f"{_gib(model.free)} free, {_gib(missing)} of files missing"
    yield _finding("TOPO-023", node, found, f"{_gib(missing)} free", good=model.free >= missing)


def _difference(name: str, found: tuple[int, str] | None, usual: tuple[int, str] | None) -> str:
    if found == usual:
        return ""
    if not found:
        return f"{name} is missing"
    if not usual:
        return f"{name} is there, but not on most nodes"
    return f"{name} has {found[0]} bytes of sha256 {found[1][:12]}, most nodes {usual[0]} of {usual[1][:12]}"


def _versions(one: SeenNode, seen: Sequence[SeenNode]) -> Iterator[Finding]:
    """Judge driver and firmware: of one server's nodes they must be equal, of others they should."""
    own = _strings(one.facts.get("versions"))
    if not own:
        return
    others = [_strings(other.facts.get("versions")) for other in seen]
    together = {item.replica.group for item in one.asked.ranks if len(item.replica.ranks) > 1}
    usual = {name: _usual(found.get(name) for found in others) for name in own}
    different = [f"{name} {value}, most nodes {usual[name]}" for name, value in own.items() if value != usual[name]]
    shown = ", ".join(f"{name} {value}" for name, value in own.items())
    bad = FAIL if together else WARN
    yield _finding("TOPO-024", one.asked.node, _few(different) or shown, "equal", good=not different, bad=bad)


# --- the chips' network ----------------------------------------------------------------------------------------------


def _links(one: SeenNode, seen: Sequence[SeenNode]) -> Iterator[Finding]:
    """Judge the chips' network, where the machine has hccn_tool."""
    chips, node = one.answer.chips, one.asked.node
    if not chips:
        return
    down = [f"chip {number}: {_state(_LINK, chip.link)}" for number, chip in _in_order(chips)]
    down = [text for text in down if not text.upper().endswith(": UP")]
    yield _finding("TOPO-029", node, _few(down) or "all up", "UP", good=not down)
    switches = {
        (other.asked.node, number): _state(_TLS, chip.tls)
        for other in seen
        for number, chip in _in_order(other.answer.chips)
    }
    usual = _usual(switches.values())
    own = [f"chip {number}: {_state(_TLS, chip.tls)}" for number, chip in _in_order(chips)]
    other = [text for text in own if not text.endswith(f": {usual}")]
    yield _finding("TOPO-030", node, _few(other) or f"{usual} on all", f"{usual}, as on most chips", good=not other)
    lost = [
        f"chip {number} does not reach {address}"
        for number, chip in _in_order(chips)
        for address, said in chip.ping.items()
        if not _arrived(said)
    ]
    yield _finding("TOPO-031", node, _few(lost) or "all reached", "answers", good=not lost)


def _state(pattern: re.Pattern[str], said: Output) -> str:
    found = pattern.search(said.stdout[:4096])
    return found[1] if found and said.rc == 0 else "not told"


def _arrived(said: Output) -> bool:
    found = _PING.search(said.stdout[:4096])
    return said.rc == 0 and found is not None and (found[1] or found[2]) != "0"


def _in_order(chips: Mapping[str, Chip]) -> list[tuple[str, Chip]]:
    return sorted(chips.items(), key=lambda item: (len(item[0]), item[0]))


# --- what was recorded, what the image says -------------------------------------------------------------------------


def _recorded(one: SeenNode, recorded: Mapping[str, Any], chips: Mapping[int, str]) -> Iterator[Finding]:
    """Compare the machine with its recorded host, by which it was planned."""
    node = one.asked.node
    if recorded and one.facts:
        different = [*_changes(one, recorded)]
        yield _finding("TOPO-027", node, _few(different) or "as recorded", "as recorded", good=not different)
    if chips and one.answer.chips:
        moved = [*_moved(one, chips)]
        yield _finding("TOPO-028", node, _few(moved) or "as recorded", "the recorded addresses", good=not moved)


def _changes(one: SeenNode, recorded: Mapping[str, Any]) -> Iterator[str]:
    for name, found, known in (
        ("accelerator", one.facts.get("accelerator"), recorded.get("accelerator")),
        ("devices", _devices(one.facts), _devices(recorded)),
    ):
        if found != known:
            yield f"{name} {found}, recorded {known}"
    wanted = max((len(item.rank.devices) for item in one.asked.ranks[:1]), default=0)
    there = _list(one.facts.get("devices"))
    if len(there) < wanted:
        yield f"{len(there)} devices, planned {wanted}"
    now, then = _strings(one.facts.get("versions")), _strings(recorded.get("versions"))
    for name in sorted(now.keys() & then.keys()):
        if now[name] != then[name]:
            yield f"{name} {now[name]}, recorded {then[name]}"


def _moved(one: SeenNode, chips: Mapping[int, str]) -> Iterator[str]:
    for number, address in sorted(chips.items()):
        chip = one.answer.chips.get(str(number))
        command = f"hccn_tool -i {number} -ip -g"
        try:
            found = chip_address({command: chip.ip.model_dump()}, number) if chip else "not asked"
        except InputError as error:
            found = str(error.problems[0])
        if found != address:
            yield f"chip {number} has {found}, recorded {address}"


def _of_image(one: SeenNode) -> Iterator[Finding]:
    """Return what the image's own checks found on the node: the machine's settings, its network, the other nodes.

    A figure of the all-reduce is told even if nothing is wrong.
    """
    if one.asked.check:
        yield from _told(one.asked.node, "check", one.answer.check)
    if one.asked.fabric and one.answer.fabric:
        for each in _told(one.asked.node, "fabric", one.answer.fabric):
            figure = each.severity == PASS and each.id in FIGURES
            yield each._replace(severity=INFO) if figure else each


def _told(node: str, verb: str, said: Output) -> Iterator[Finding]:
    """Return the findings that a verb of the image printed, and whether it ran."""
    try:
        found = read_findings(said) if said.rc in CHECKED else ()
        failure = "" if said.rc in CHECKED else f"exit code {said.rc}: {said.stderr.strip()[-300:]}"
    except ValueError as error:
        found, failure = (), f"{error}"
    yield _finding("TOPO-034", node, f"{verb}: {failure or 'ran'}", "findings", good=not failure)
    yield from (each._replace(found=f"{node}: {each.found}") for each in found)


# --- values of strangers --------------------------------------------------------------------------------------------


def _devices(facts: Mapping[str, Any]) -> list[str]:
    """Return the different names of devices."""
    return sorted(
        {str(each.get("name", ""))[:200] for each in _list(facts.get("devices")) if isinstance(each, Mapping)}
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _strings(value: Any) -> dict[str, str]:
    """Return the texts of an object."""
    items = sorted(value.items())[:64] if isinstance(value, Mapping) else ()
    return {str(name)[:200]: found[:200] for name, found in items if isinstance(found, str)}


def _usual(values: Iterable[Any]) -> Any:
    """Return the most frequent value; of equally frequent ones, the first that is set. None if none is set."""
    counted = Counter(value or None for value in values)
    return max(counted, key=lambda value: (counted[value], value is not None), default=None)


def _few(texts: Sequence[str], most: int = 5) -> str:
    more = f"; and {len(texts) - most} more" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
