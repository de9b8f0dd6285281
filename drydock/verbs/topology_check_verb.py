"""The verb `topology check`."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from drydock.cli.task_helpers import here, write_result
from drydock.cli.verb import Verb
from drydock.core.console import name_program
from drydock.core.errors import PreflightError
from drydock.core.files import explain_unwritable, write_atomically
from drydock.core.project import Project
from drydock.model.shared_options import FileOptions, JsonOption, SshOptions

if TYPE_CHECKING:
    from drydock.model.variant import Variant
    from drydock.topology.plan_model import TopologyPlan
    from drydock.topology.preflight.node_request import NodeRequest
    from drydock.topology.preflight.reach import Answers
    from entrypoints.core.records import Finding


class TopologyCheckOptions(FileOptions, SshOptions, JsonOption):
    """Which nodes are checked, and where the report goes."""

    format: Literal["ansible", "kubernetes", "compose", "local"] = "ansible"
    """ansible: on the nodes, by ssh; kubernetes: in pods, by kubectl exec; compose: in containers on this machine;
    local: this node alone"""
    root: str = ""
    """folder with recorded hosts, whose chips' addresses are compared [default: those of a topology.yaml]"""
    junit: str = ""
    """file to write JUnit XML to"""
    namespace: str = ""
    """namespace of the pods, with --format kubernetes [default: that of kubectl's context]"""
    fabric: bool = False
    """measure an all-reduce between the nodes too; their devices must be free"""


@Verb
def check_topology(options: TopologyCheckOptions) -> None:
    """Check the nodes of a topology before it starts: image, model, driver, ports, network, recorded host."""
    report_findings(find_node_findings(here(), options), options)


def find_node_findings(project: Project, options: TopologyCheckOptions) -> tuple[Finding, ...]:
    """Ask every node of a topology and return the findings. Raises DrydockError."""
    from drydock.model.checks import list_findings_about
    from drydock.topology.planned_file import find_planned_variant, plan_topology_file
    from drydock.topology.preflight import evaluate, node_request, recorded_nodes
    from drydock.topology.render import ranktable

    file = Path(options.file)
    plan = ranktable.add_ranktable_paths(plan_topology_file(project, file, options.model, options.target))
    variant = find_planned_variant(project, plan)
    chips = recorded_nodes.read_chip_addresses(file, plan, options.root)
    questions, answers = _ask_nodes(plan, variant, node_request.make_node_requests(plan, variant, chips), options)
    facts = recorded_nodes.read_recorded_facts(project, file, variant)
    figures = list_findings_about(variant.findings, "figure")
    return evaluate.evaluate_answers(questions, answers, facts, chips, figures)


def _ask_nodes(
    plan: TopologyPlan, variant: Variant, questions: tuple[NodeRequest, ...], options: TopologyCheckOptions
) -> tuple[tuple[NodeRequest, ...], Answers]:
    """Return what each node was asked, and what it answered."""
    from drydock.topology.preflight import cluster, node_pods, reach
    from drydock.topology.preflight.node_request import add_all_reduce
    from drydock.topology.render import ansible, compose, parts

    if options.format == "kubernetes":
        check_pods = node_pods.make_check_pods(plan, variant, secrets.token_hex(4))
        return cluster.ask_by_kubectl(questions, check_pods, options.namespace, fabric=options.fabric)
    if options.format == "compose":  # each node gets a new network, in which all ports are free
        questions = tuple(question._replace(ports=(), address="") for question in questions)
    questions = add_all_reduce(questions) if options.fabric else questions
    if options.format == "local":
        answers = reach.ask_here(questions)
        return tuple(question for question in questions if question.node in answers), answers
    if options.format == "compose":
        ranks = parts.make_placed_ranks(plan, variant)
        return questions, reach.ask_by_compose(questions, compose.make_engine_project(plan, ranks, hold=True))
    files = ansible.render_ansible_files(plan, variant, {}, {})
    return questions, reach.ask_by_ansible(questions, files, options)


def report_findings(findings: tuple[Finding, ...], options: TopologyCheckOptions) -> None:
    """Print findings, write JUnit XML, and raise PreflightError if a check failed."""
    from drydock.topology.findings import read_words, translate_finding
    from entrypoints.checks.findings import (
        FAIL,
        PASS,
        format_findings,
        format_junit,
        has_failures,
        sort_worst_first,
        summarize_findings,
    )
    from entrypoints.core.records import to_json

    if options.junit:
        with explain_unwritable(Path(options.junit), "--junit"):
            write_atomically(Path(options.junit), format_junit(findings, "drydock.topology"))
    open_findings = [finding for finding in sort_worst_first(findings) if finding.severity != PASS]
    words = {} if options.json else read_words(os.environ)
    translated = [translate_finding(words, finding) for finding in open_findings]
    text = f"{format_findings(translated, words)}{summarize_findings(findings)}\n"
    write_result(to_json(findings), name_program(text), json=options.json)
    if has_failures(findings):
        ids = ", ".join(sorted({finding.id for finding in findings if finding.severity == FAIL}))
        raise PreflightError(f"the topology is not ready to start: {ids}", hint="each finding says what to do")
