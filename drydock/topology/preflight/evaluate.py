"""What the machines answered → findings, node by node. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from drydock.config.topology_finding_file import read_topology_findings
from drydock.core.errors import InputError
from drydock.topology.preflight.node_request import NodeRequest
from drydock.topology.preflight.node_response import Chip, NodeImage, NodeResponse, Output, read_facts, read_findings
from drydock.topology.render.chips import read_chip_address
from entrypoints.checks.findings import FAIL, INFO, PASS, WARN, choose_outcome
from entrypoints.core.records import Finding

CHECKED = (0, 3)
"""Exit codes of an image's check that ran."""
_TLS = re.compile(r"tls\s+switch\s*(?:\[\s*)?(\d)", re.IGNORECASE)
_LINK = re.compile(r"link\s+status\s*:\s*(\w+)", re.IGNORECASE)
_PING = re.compile(r"(?<!\d)(?:(\d+)\s+packets?\s+received|(\d+)\s+received)", re.IGNORECASE)


class SeenNode(NamedTuple):
    """A machine that answered."""

    asked: NodeRequest
    answer: NodeResponse
    facts: Mapping[str, Any]
    """Empty if they cannot be read."""


def evaluate_answers(
    requests: Sequence[NodeRequest],
    answers: Mapping[str, NodeResponse | str],
    recorded: Mapping[str, Mapping[str, Any]],
    chips: Mapping[str, Mapping[int, str]],
    figures: Collection[str] = (),
) -> tuple[Finding, ...]:
    """Return the findings of all nodes.

    `answers`: node → its answer, or why there is none; `recorded`: node → the facts of its recorded host; `chips`:
    node → device → recorded address; `figures`: ids of findings with a measurement.
    """
    nodes = [
        _make_seen_node(request, answer)
        for request in requests
        if isinstance(answer := answers.get(request.node, _SILENT), NodeResponse)
    ]
    findings: list[Finding] = []
    for request in requests:
        answer = answers.get(request.node, _SILENT)
        failure = answer if isinstance(answer, str) else ""
        findings.append(
            _make_node_finding("TOPO-020", request.node, failure or "answers", "an answer", good=not failure)
        )
    for one in nodes:
        findings += _check_node(one, nodes)
        findings += _check_recorded_host(one, recorded.get(one.asked.node, {}), chips.get(one.asked.node, {}))
        findings += _list_image_findings(one, figures)
    return tuple(findings)


_SILENT = "did not answer"


def _make_seen_node(request: NodeRequest, answer: NodeResponse) -> SeenNode:
    try:
        facts = read_facts(answer.facts)
    except ValueError:
        facts = {}
    return SeenNode(request, answer, facts)


def _make_node_finding(
    number: str, node: str, observed: str, expected: str, *, good: bool | None, bad: str = FAIL
) -> Finding:
    """Return a finding; `good` is None if it is not known."""
    definition = read_topology_findings()[number]
    texts = (template.format(f"node {node}") for template in (definition.text, definition.passed))
    severity, text = choose_outcome(bad, *texts, good=good)
    return Finding(
        number, severity, text, f"{node}: {observed}", expected, definition.remediation, "host", definition.source
    )


def _check_node(one: SeenNode, nodes: Sequence[SeenNode]) -> Iterator[Finding]:
    """Judge a node by itself and with the others."""
    node, answer = one.asked.node, one.answer
    yield from _check_node_images(one, nodes)
    yield from _check_node_model(one, nodes)
    yield from _check_node_versions(one, nodes)
    busy_ports = [f"port {port}: {answer.ports.get(str(port), 'not tried')}" for port in one.asked.ports]
    busy_ports = [text for text in busy_ports if not text.endswith(": ")]
    if one.asked.ports:
        yield _make_node_finding(
            "TOPO-026", node, "; ".join(busy_ports) or "all free", "free ports", good=not busy_ports
        )
    yield from _check_chip_links(one, nodes)


# --- images, model, versions ----------------------------------------------------------------------------------------


def _check_node_images(one: SeenNode, nodes: Sequence[SeenNode]) -> Iterator[Finding]:
    for name in one.asked.images:
        image = one.answer.images.get(name, _NO_IMAGE)
        digest = name.partition("@")[2]
        usual = _find_most_common(
            peer.answer.images.get(name, _NO_IMAGE).id for peer in nodes if name in peer.asked.images
        )
        good = bool(image.id) and (digest in image.digests if digest else image.id == usual)
        observed = ", ".join(image.digests) or image.id or f"no {name}"
        yield _make_node_finding("TOPO-021", one.asked.node, observed, digest or usual or "the image", good=good)


_NO_IMAGE = NodeImage(id="", digests=(), failure="")


def _check_node_model(one: SeenNode, nodes: Sequence[SeenNode]) -> Iterator[Finding]:
    """Judge a model's folder by what most nodes have."""
    model, node = one.answer.model, one.asked.node
    if not one.asked.model or model is None:
        return
    folders = [peer.answer.model.files for peer in nodes if peer.answer.model]
    names = sorted({name for files in folders for name in files})
    usual = {name: _find_most_common(files.get(name) for files in folders) for name in names}
    different = [_describe_file_difference(name, model.files.get(name), usual[name]) for name in names]
    different = [text for text in different if text]
    observed = model.failure or _join_first_texts(different) or f"{len(model.files)} files"
    good = not different and not model.failure and bool(model.files)
    yield _make_node_finding(
        "TOPO-022", node, observed if model.files else model.failure or "no files", "equal files", good=good
    )
    missing = sum(size[0] for name, size in usual.items() if size and name not in model.files)
    observed = f"{_format_gib(model.free)} free, {_format_gib(missing)} of files missing"
    yield _make_node_finding("TOPO-023", node, observed, f"{_format_gib(missing)} free", good=model.free >= missing)


def _describe_file_difference(name: str, actual: tuple[int, str] | None, usual: tuple[int, str] | None) -> str:
    if actual == usual:
        return ""
    if not actual:
        return f"{name} is missing"
    if not usual:
        return f"{name} is there, but not on most nodes"
    return f"{name} has {actual[0]} bytes of sha256 {actual[1][:12]}, most nodes {usual[0]} of {usual[1][:12]}"


def _check_node_versions(one: SeenNode, nodes: Sequence[SeenNode]) -> Iterator[Finding]:
    """Judge driver and firmware: of one server's nodes they must be equal, of others they should."""
    versions = _coerce_texts(one.facts.get("versions"))
    if not versions:
        return
    peer_versions = [_coerce_texts(peer.facts.get("versions")) for peer in nodes]
    together = {item.replica.group for item in one.asked.ranks if len(item.replica.ranks) > 1}
    usual = {name: _find_most_common(values.get(name) for values in peer_versions) for name in versions}
    different = [
        f"{name} {value}, most nodes {usual[name]}" for name, value in versions.items() if value != usual[name]
    ]
    version_text = ", ".join(f"{name} {value}" for name, value in versions.items())
    bad = FAIL if together else WARN
    yield _make_node_finding(
        "TOPO-024", one.asked.node, _join_first_texts(different) or version_text, "equal", good=not different, bad=bad
    )


# --- the chips' network ----------------------------------------------------------------------------------------------


def _check_chip_links(one: SeenNode, nodes: Sequence[SeenNode]) -> Iterator[Finding]:
    """Judge the chips' network, where the machine has hccn_tool."""
    chips, node = one.answer.chips, one.asked.node
    if not chips:
        return
    down = [f"chip {number}: {_read_chip_state(_LINK, chip.link)}" for number, chip in _sort_chips(chips)]
    down = [text for text in down if not text.upper().endswith(": UP")]
    yield _make_node_finding("TOPO-029", node, _join_first_texts(down) or "all up", "UP", good=not down)
    switches = {
        (other.asked.node, number): _read_chip_state(_TLS, chip.tls)
        for other in nodes
        for number, chip in _sort_chips(other.answer.chips)
    }
    usual = _find_most_common(switches.values())
    tls_states = [f"chip {number}: {_read_chip_state(_TLS, chip.tls)}" for number, chip in _sort_chips(chips)]
    other = [text for text in tls_states if not text.endswith(f": {usual}")]
    yield _make_node_finding(
        "TOPO-030", node, _join_first_texts(other) or f"{usual} on all", f"{usual}, as on most chips", good=not other
    )
    unreached = [
        f"chip {number} does not reach {address}"
        for number, chip in _sort_chips(chips)
        for address, output in chip.ping.items()
        if not _is_ping_answered(output)
    ]
    yield _make_node_finding(
        "TOPO-031", node, _join_first_texts(unreached) or "all reached", "answers", good=not unreached
    )


def _read_chip_state(pattern: re.Pattern[str], output: Output) -> str:
    match = pattern.search(output.stdout[:4096])
    return match[1] if match and output.rc == 0 else "not told"


def _is_ping_answered(output: Output) -> bool:
    match = _PING.search(output.stdout[:4096])
    return output.rc == 0 and match is not None and (match[1] or match[2]) != "0"


def _sort_chips(chips: Mapping[str, Chip]) -> list[tuple[str, Chip]]:
    return sorted(chips.items(), key=lambda item: (len(item[0]), item[0]))


# --- what was recorded, what the image says -------------------------------------------------------------------------


def _check_recorded_host(one: SeenNode, recorded: Mapping[str, Any], chips: Mapping[int, str]) -> Iterator[Finding]:
    """Compare the machine with its recorded host, by which it was planned."""
    node = one.asked.node
    if recorded and one.facts:
        different = [*_list_host_changes(one, recorded)]
        yield _make_node_finding(
            "TOPO-027", node, _join_first_texts(different) or "as recorded", "as recorded", good=not different
        )
    if chips and one.answer.chips:
        moved = [*_list_moved_chips(one, chips)]
        yield _make_node_finding(
            "TOPO-028", node, _join_first_texts(moved) or "as recorded", "the recorded addresses", good=not moved
        )


def _list_host_changes(one: SeenNode, recorded: Mapping[str, Any]) -> Iterator[str]:
    for name, actual, recorded_value in (
        ("accelerator", one.facts.get("accelerator"), recorded.get("accelerator")),
        ("devices", _list_device_names(one.facts), _list_device_names(recorded)),
    ):
        if actual != recorded_value:
            yield f"{name} {actual}, recorded {recorded_value}"
    planned_devices = max((len(item.rank.devices) for item in one.asked.ranks[:1]), default=0)
    there = _coerce_list(one.facts.get("devices"))
    if len(there) < planned_devices:
        yield f"{len(there)} devices, planned {planned_devices}"
    now, then = _coerce_texts(one.facts.get("versions")), _coerce_texts(recorded.get("versions"))
    for name in sorted(now.keys() & then.keys()):
        if now[name] != then[name]:
            yield f"{name} {now[name]}, recorded {then[name]}"


def _list_moved_chips(one: SeenNode, chips: Mapping[int, str]) -> Iterator[str]:
    for number, address in sorted(chips.items()):
        chip = one.answer.chips.get(str(number))
        command = f"hccn_tool -i {number} -ip -g"
        try:
            actual = read_chip_address({command: chip.ip.model_dump()}, number) if chip else "not asked"
        except InputError as error:
            actual = str(error.problems[0])
        if actual != address:
            yield f"chip {number} has {actual}, recorded {address}"


def _list_image_findings(one: SeenNode, figures: Collection[str]) -> Iterator[Finding]:
    """Return what the image's own checks found on the node: the machine's settings, its network, the other nodes.

    A figure of the all-reduce is told even if nothing is wrong.
    """
    if one.asked.check:
        yield from _parse_verb_findings(one.asked.node, "check", one.answer.check)
    if one.asked.fabric and one.answer.fabric:
        for finding in _parse_verb_findings(one.asked.node, "fabric", one.answer.fabric):
            figure = finding.severity == PASS and finding.id in figures
            yield finding._replace(severity=INFO) if figure else finding


def _parse_verb_findings(node: str, verb: str, output: Output) -> Iterator[Finding]:
    """Return the findings that a verb of the image printed, and whether it ran."""
    try:
        findings = read_findings(output) if output.rc in CHECKED else ()
        failure = "" if output.rc in CHECKED else f"exit code {output.rc}: {output.stderr.strip()[-300:]}"
    except ValueError as error:
        findings, failure = (), f"{error}"
    yield _make_node_finding("TOPO-034", node, f"{verb}: {failure or 'ran'}", "findings", good=not failure)
    yield from (finding._replace(found=f"{node}: {finding.found}") for finding in findings)


# --- values of strangers --------------------------------------------------------------------------------------------


def _list_device_names(facts: Mapping[str, Any]) -> list[str]:
    """Return the different names of devices."""
    return sorted(
        {
            str(device.get("name", ""))[:200]
            for device in _coerce_list(facts.get("devices"))
            if isinstance(device, Mapping)
        }
    )


def _coerce_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _coerce_texts(value: Any) -> dict[str, str]:
    """Return the texts of an object."""
    items = sorted(value.items())[:64] if isinstance(value, Mapping) else ()
    return {str(name)[:200]: text[:200] for name, text in items if isinstance(text, str)}


def _find_most_common(values: Iterable[Any]) -> Any:
    """Return the most frequent value; of equally frequent ones, the first that is set. None if none is set."""
    counted = Counter(value or None for value in values)
    return max(counted, key=lambda value: (counted[value], value is not None), default=None)


def _join_first_texts(texts: Sequence[str], most: int = 5) -> str:
    more = f"; and {len(texts) - most} more" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more


def _format_gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
