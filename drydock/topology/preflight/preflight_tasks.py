"""The task topology check. IO."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import NamedTuple

from drydock.config.matrix import find_variant, read_matrix
from drydock.core.console import log, spell_commands, write_output
from drydock.core.errors import InputError, PreflightError, suggest_nearest
from drydock.core.files import explain_unwritable, format_json, write_atomically
from drydock.core.project import Project
from drydock.model.checks import list_findings_about
from drydock.model.variant import Variant
from drydock.topology import topology_tasks as topologies
from drydock.topology.entrypoint_client import Entrypoint
from drydock.topology.findings import read_words, translate_finding
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.playbook.playbook_run import Ssh
from drydock.topology.preflight import cluster, reach
from drydock.topology.preflight.evaluate import evaluate_answers
from drydock.topology.preflight.node_pods import make_check_pods
from drydock.topology.preflight.node_request import NodeRequest, add_all_reduce, make_node_requests
from drydock.topology.render import ansible, collect_chip_addresses, compose, find_host_commands, parts, ranktable
from drydock.topology.topology_file import read_topology
from entrypoints.checks.findings import (
    FAIL,
    PASS,
    format_findings,
    format_junit,
    has_failures,
    sort_worst_first,
    summarize_findings,
)
from entrypoints.core.records import Finding, to_json

FORMATS = ("ansible", "compose", "kubernetes", "local")


class CheckOptions(NamedTuple):
    """The options of the task."""

    format: str = "ansible"
    model: str = ""
    target: str = ""
    hosts: str = ""
    """Folder with recorded hosts, for the chips' addresses; without it, a topology.yaml's own, if they have them."""
    ssh: Ssh = Ssh()
    namespace: str = ""
    """Of Kubernetes; without it, that of kubectl's context."""
    fabric: bool = False
    """Whether an all-reduce is measured, for which the devices must be free."""


def check_topology(project: Project, file: Path, options: CheckOptions) -> tuple[Finding, ...]:
    """Ask every node of a topology and return the findings. Raises DrydockError."""
    if options.format not in FORMATS:
        raise InputError(f"--format {options.format}: unknown format", hint=suggest_nearest(options.format, FORMATS))
    plan = ranktable.add_ranktable_paths(topologies.plan_topology_file(project, file, options.model, options.target))
    variant = find_variant(read_matrix(project), plan.variant)
    chips = _read_chip_addresses(file, plan, options.hosts)
    questions = make_node_requests(plan, variant, chips)
    if options.format == "compose":  # each node gets a new network, in which all ports are free
        questions = tuple(question._replace(ports=(), address="") for question in questions)
    if options.format == "kubernetes":
        pods = make_check_pods(plan, variant, secrets.token_hex(4))
        questions, answers = cluster.ask_by_kubectl(questions, pods, options.namespace, fabric=options.fabric)
    else:
        questions = add_all_reduce(questions) if options.fabric else questions
        answers = _ask_nodes(plan, variant, questions, options)
    if options.format == "local":
        questions = tuple(question for question in questions if question.node in answers)
    figures = list_findings_about(variant.findings, "figure")
    return evaluate_answers(questions, answers, _read_recorded_facts(project, file, variant), chips, figures)


def _ask_nodes(
    plan: TopologyPlan, variant: Variant, questions: tuple[NodeRequest, ...], options: CheckOptions
) -> reach.Answers:
    if options.format == "local":
        return reach.ask_here(questions)
    if options.format == "compose":
        ranks = parts.make_placed_ranks(plan, variant)
        return reach.ask_by_compose(questions, compose.make_engine_project(plan, ranks, hold=True))
    return reach.ask_by_ansible(questions, ansible.render_ansible_files(plan, variant, {}, {}), options.ssh)


def _read_chip_addresses(file: Path, plan: TopologyPlan, folder: str) -> dict[str, dict[int, str]]:
    """Return node → chip → recorded address. Raises InputError if --root has none."""
    try:
        return collect_chip_addresses(plan, find_host_commands(file, plan, folder))
    except InputError as error:
        if folder:
            raise
        log(f"the chips' addresses are not compared: {error.problems[0]}")
        return {}


def _read_recorded_facts(project: Project, file: Path, variant: Variant) -> dict[str, dict[str, object]]:
    """Return the facts of each node's recorded host; none for a plan, which does not name them. Raises InputError."""
    if file.suffix == ".json":
        return {}
    hosts = read_topology(file).hosts
    facts = {path: Entrypoint(project, variant).facts(path) for path in {*hosts.values()}}
    return {node: facts[path] for node, path in hosts.items()}


def report_topology_check(findings: tuple[Finding, ...], junit: str, *, json: bool) -> None:
    """Print findings, write JUnit XML, and raise PreflightError if a check failed."""
    if junit:
        with explain_unwritable(Path(junit), "--junit"):
            write_atomically(Path(junit), format_junit(findings, "drydock.topology"))
    open_findings = [finding for finding in sort_worst_first(findings) if finding.severity != PASS]
    words = {} if json else read_words(os.environ)
    translated_findings = [translate_finding(words, finding) for finding in open_findings]
    text = f"{format_findings(translated_findings, words)}{summarize_findings(findings)}\n"
    write_output(format_json(to_json(findings)) if json else spell_commands(text))
    if has_failures(findings):
        ids = ", ".join(sorted({finding.id for finding in findings if finding.severity == FAIL}))
        raise PreflightError(f"the topology is not ready to start: {ids}", hint="each finding says what to do")
