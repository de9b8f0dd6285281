"""Answers of machines, right, damaged and hostile → findings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from drydock.model.checks import list_findings_about
from drydock.topology.preflight.evaluate import evaluate_answers
from drydock.topology.preflight.node_request import add_all_reduce, make_node_requests
from drydock.topology.preflight.node_response import NodeResponse, read_answer
from entrypoints.checks.findings import format_findings, format_junit
from entrypoints.core.records import Finding
from tests.support import topologies
from tests.support.topologies import DIGEST

PLAN = topologies.two_nodes()
QUESTIONS = make_node_requests(PLAN, topologies.variant(PLAN.variant), {})
ALONE = tuple(question._replace(ports=(20000, 20001, 20002)) for question in QUESTIONS)
"""As machines without peers are asked: the image's own check does not try their ports."""
FILES = {"config.json": [100, "1" * 64], "model.safetensors": [1 << 40, "2" * 64]}
FACTS = {"accelerator": "cuda", "versions": {"driver": "570.1"}, "devices": [{"name": "NVIDIA H100"}] * 8}


def output(value: Any = None, rc: int = 0) -> dict[str, Any]:
    return {"rc": rc, "stdout": value if isinstance(value, str) else json.dumps(value), "stderr": ""}


def answer(**changes: Any) -> dict[str, Any]:
    ports = {"20000": "", "20001": "", "20002": ""}
    return {
        "images": {topologies.IMAGE: {"id": f"sha256:{'3' * 64}", "digests": [DIGEST], "failure": ""}},
        "model": {"files": FILES, "failure": "", "free": 1 << 30},
        "ports": ports,
        "chips": {},
        "check": output([]),
        "facts": output(FACTS),
        "fabric": None,
        **changes,
    }


def chip(address: str = "10.9.0.1", link: str = "UP", tls: str = "0", ping: Mapping[str, str] | None = None) -> Any:
    ping_outputs = {name: output(text) for name, text in (ping or {}).items()}
    return {
        "ip": output(f"ipaddr:{address}\nnetmask:255.255.0.0\n"),
        "link": output(f"link status: {link}\n"),
        "tls": output(f"dev_id:0, tls switch[{tls}](0:disable, 1:enable)\n"),
        "ping": ping_outputs,
    }


def judged(second: Any, first: Any = None, **more: Any) -> tuple[Finding, ...]:
    """Judge two nodes; the second one's answer is given."""
    texts = {"gpu0": json.dumps(first or answer()), "gpu1": second if isinstance(second, str) else json.dumps(second)}
    answers: dict[str, NodeResponse | str] = {}
    for node, text in texts.items():
        try:
            answers[node] = read_answer(text)
        except ValueError as error:
            answers[node] = str(error)
    return evaluate_answers(ALONE, answers, more.get("recorded", {}), more.get("chips", {}))


def bad(findings: tuple[Finding, ...]) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for finding in findings:
        if finding.severity != "PASS":
            result.setdefault(finding.id, []).append(finding.found)
    return result


def test_equal_machines_pass_and_every_finding_is_known() -> None:
    findings = judged(answer())
    assert bad(findings) == {}
    assert {"TOPO-020", "TOPO-021", "TOPO-022", "TOPO-023", "TOPO-024", "TOPO-026"} <= {
        finding.id for finding in findings
    }


def test_ports_that_the_images_check_tries_are_not_asked_for_a_second_time() -> None:
    assert [question.ports for question in QUESTIONS] == [(), ()]
    assert all("--peer-ports" in question.check for question in QUESTIONS)
    plan = topologies.disaggregated(1, 1)
    routed = make_node_requests(plan, topologies.variant(plan.variant), {})
    assert [question.ports for question in routed] == [(), (30000,)]
    one = plan.model_copy(update={"replicas": plan.replicas[:1], "router": None})
    (alone,) = make_node_requests(one, topologies.variant(plan.variant), {})
    assert alone.ports == (20000, 20001, 20005)
    assert "--peers" not in alone.check


NO_FINDINGS: list[Any] = [{}, [{"severity": "GOOD"}], [[]], [None], [7], [{"severity": "FAIL"}] * 5000, "x"]
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "no image": ({"images": {}}, "TOPO-021"),
    "another digest": (
        {"images": {topologies.IMAGE: {"id": f"sha256:{'3' * 64}", "digests": [f"sha256:{'4' * 64}"], "failure": ""}}},
        "TOPO-021",
    ),
    "another file": (
        {"model": {"files": FILES | {"config.json": [100, "5" * 64]}, "failure": "", "free": 1 << 30}},
        "TOPO-022",
    ),
    "another file of the same hash": (
        {"model": {"files": FILES | {"config.json": [99, "1" * 64]}, "failure": "", "free": 1 << 30}},
        "TOPO-022",
    ),
    "a file less": (
        {"model": {"files": {"config.json": FILES["config.json"]}, "failure": "", "free": 1 << 30}},
        "TOPO-022",
    ),
    "no room": ({"model": {"files": {}, "failure": "No such file", "free": 1 << 30}}, "TOPO-023"),
    "driver": ({"facts": output(FACTS | {"versions": {"driver": "580.2"}})}, "TOPO-024"),
    "port": ({"ports": {"20000": "Address already in use", "20001": "", "20002": ""}}, "TOPO-026"),
    "port not tried": ({"ports": {}}, "TOPO-026"),
    "no check": ({"check": output("", 125)}, "TOPO-034"),
    "another program's check": ({"check": output("hello")}, "TOPO-034"),
    **{
        f"findings that are none, {number}": ({"check": output(json.dumps(value))}, "TOPO-034")
        for number, value in enumerate(NO_FINDINGS)
    },
}


@pytest.mark.parametrize(("change", "number"), CHANGES.values(), ids=list(CHANGES))
def test_a_fault_is_found_on_its_node_alone(change: dict[str, Any], number: str) -> None:
    bad_findings = bad(judged(answer(**change)))
    assert number in bad_findings
    assert all(text.startswith("gpu1: ") for texts in bad_findings.values() for text in texts)


DAMAGED = {
    "empty": "",
    "no object": "[]",
    "deep": "[" * 5000,
    "nan": '{"ports": NaN}',
    "a field more": json.dumps(answer(more=1)),
    "a field less": json.dumps({name: value for name, value in answer().items() if name != "ports"}),
    "negative size": json.dumps(answer(model={"files": {"a": [-1, "1" * 64]}, "failure": "", "free": 0})),
    "no hash": json.dumps(answer(model={"files": {"a": [1, "../x"]}, "failure": "", "free": 0})),
    "long text": json.dumps(answer(ports={"20000": "x" * 100_000})),
    "many ports": json.dumps(answer(ports={str(number): "" for number in range(5000)})),
    "long": " " * (17 << 20),
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=list(DAMAGED))
def test_a_damaged_answer_is_a_finding_of_its_node(text: str) -> None:
    bad_findings = bad(judged(text))
    assert [*bad_findings] == ["TOPO-020"]
    assert bad_findings["TOPO-020"][0].startswith("gpu1: ")
    assert len(bad_findings["TOPO-020"][0]) < 1000


def test_findings_of_the_image_say_which_node_they_are_of_and_end_in_every_form() -> None:
    image_finding = {"id": "NET-004", "severity": "FAIL", "found": "10.1.0.10 port 20000: refused\x1b[31m", "text": "t"}
    findings = judged(answer(check=output([{**image_finding, "more": 7}], 3)))
    assert bad(findings)["NET-004"] == ["gpu1: 10.1.0.10 port 20000: refused\x1b[31m"]
    assert "\x1b" not in format_junit(findings, "drydock.topology")
    assert "NET-004" in format_findings(findings)


def test_another_machine_than_the_recorded_one_is_found() -> None:
    live = FACTS | {"devices": [{"name": "NVIDIA H200"}] * 4}
    bad_findings = bad(judged(answer(facts=output(live)), recorded={"gpu0": FACTS, "gpu1": FACTS}))
    (text,) = bad_findings["TOPO-027"]
    assert text.startswith("gpu1: devices ['NVIDIA H200'], recorded ['NVIDIA H100']; 4 devices, planned 8")


@pytest.mark.parametrize("facts", [[], {"versions": 7, "devices": {"a": 1}}, {"devices": [7]}, "no"])
def test_facts_of_another_form_are_not_compared(facts: Any) -> None:
    findings = judged(answer(facts=output(facts)), recorded={"gpu1": FACTS})
    assert "TOPO-024" in bad(judged(answer(facts=output(FACTS | {"versions": {"driver": "1"}}))))  # else it is compared
    assert "TOPO-024" not in bad(findings)
    assert {finding.id for finding in findings} >= {"TOPO-020", "TOPO-021", "TOPO-022"}  # the rest is judged


CHIPS: dict[str, tuple[Any, str, str]] = {
    "moved": ({"address": "10.9.0.7"}, "TOPO-028", "chip 0 has 10.9.0.7, recorded 10.9.0.1"),
    "down": ({"link": "DOWN"}, "TOPO-029", "chip 0: DOWN"),
    "tls": ({"tls": "1"}, "TOPO-030", "chip 0: 1"),
    "lost": ({"ping": {"10.9.0.2": "3 packets transmitted, 0 received, 100% packet loss"}}, "TOPO-031", "10.9.0.2"),
}


@pytest.mark.parametrize(("change", "number", "text"), CHIPS.values(), ids=list(CHIPS))
def test_a_chip_with_a_fault_is_found(change: Any, number: str, text: str) -> None:
    good = {"0": chip(), "1": chip(ping={"10.9.0.2": "3 packets transmitted, 3 received, 0.00% packet loss"})}
    first = answer(chips=good)
    recorded = {"gpu0": {0: "10.9.0.1"}, "gpu1": {0: "10.9.0.1"}}
    assert bad(judged(answer(chips=good), first, chips=recorded)) == {}
    bad_findings = bad(judged(answer(chips=good | {"0": chip(**change)}), first, chips=recorded))
    assert [*bad_findings] == [number]
    assert text in bad_findings[number][0]


def test_an_image_that_only_one_node_runs_is_compared_with_no_other() -> None:
    """The router's, which may have a tag while it is not published."""
    questions = (QUESTIONS[0]._replace(images=("router:latest",)), QUESTIONS[1])
    router_answer = answer(images={"router:latest": {"id": f"sha256:{'3' * 64}", "digests": [], "failure": ""}})
    answers = {"gpu0": read_answer(json.dumps(router_answer)), "gpu1": read_answer(json.dumps(answer()))}
    assert bad(evaluate_answers(questions, answers, {}, {})) == {}


def test_a_node_that_nobody_heard_of_is_a_finding() -> None:
    findings = evaluate_answers(QUESTIONS, {"gpu0": "ssh: connect to host 10.1.0.10 port 22: refused"}, {}, {})
    assert bad(findings) == {
        "TOPO-020": ["gpu0: ssh: connect to host 10.1.0.10 port 22: refused", "gpu1: did not answer"]
    }


def test_the_figure_of_an_all_reduce_is_told_though_nothing_is_wrong() -> None:
    questions = add_all_reduce(QUESTIONS)
    figures = list_findings_about(topologies.variant("cuda").findings, "figure")
    figure = {"id": "NET-011", "severity": "PASS", "found": "43.10 GB/s", "text": "t"}
    fabric_answer = answer(fabric=output({"program": "nccl-tests", "findings": [figure]}))
    answers = {entry.node: read_answer(json.dumps(fabric_answer)) for entry in questions}
    fabric_findings = [
        entry for entry in evaluate_answers(questions, answers, {}, {}, figures) if entry.id == "NET-011"
    ]
    assert [(entry.severity, entry.found) for entry in fabric_findings] == [
        ("INFO", "gpu0: 43.10 GB/s"),
        ("INFO", "gpu1: 43.10 GB/s"),
    ]


@pytest.mark.parametrize(
    ("fabric_output", "number", "text"),
    [
        (output("", 4), "TOPO-034", "gpu1: fabric: exit code 4: "),
        (output({"figures": []}), "TOPO-034", "gpu1: fabric: expected a list of findings"),
        (
            output({"findings": [{"id": "NET-011", "severity": "FAIL", "found": "no end"}]}, 3),
            "NET-011",
            "gpu1: no end",
        ),
    ],
)
def test_an_all_reduce_that_fails_is_a_finding_of_its_node(fabric_output: Any, number: str, text: str) -> None:
    questions = add_all_reduce(QUESTIONS)
    good = answer(fabric=output({"findings": []}))
    answers = {"gpu0": read_answer(json.dumps(good)), "gpu1": read_answer(json.dumps(answer(fabric=fabric_output)))}
    assert bad(evaluate_answers(questions, answers, {}, {})) == {number: [text]}


def test_all_nodes_of_a_kind_measure_together() -> None:
    first, second = add_all_reduce(QUESTIONS)
    assert first.fabric[:6] == ("fabric", "--json", "--peers", "10.1.0.10,10.1.0.11", "--node-rank", "0")
    assert second.fabric[4:8] == ("--node-rank", "1", "--master-port", "20000")


def test_a_node_alone_measures_over_its_own_devices() -> None:
    one = add_all_reduce(QUESTIONS[:1])[0]
    assert one.fabric == ("fabric", "--json")
    plan = topologies.disaggregated(1, 1)
    assert add_all_reduce(make_node_requests(plan, topologies.variant(plan.variant), {})[:1])[0].fabric == ()
