"""The task topology check. IO."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import NamedTuple

from drydock.config.matrix import find, read_matrix
from drydock.core.console import emit, log, spelled
from drydock.core.errors import InputError, PreflightError, nearest
from drydock.core.files import dumps, unwritable, write_atomically
from drydock.core.project import Project
from drydock.model.variant import Variant
from drydock.topology import tasks as topologies
from drydock.topology.findings import read_words, translate_finding
from drydock.topology.entrypoint_client import Entrypoint
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.playbook.run import Ssh
from drydock.topology.preflight import cluster, reach
from drydock.topology.preflight.evaluate import evaluate
from drydock.topology.preflight.node_request import NodeRequest, measured, node_requests
from drydock.topology.preflight.pods import check_pods
from drydock.topology.read import read_topology
from drydock.topology.render import ansible, chips_of, compose, hosts_of, parts, ranktable
from entrypoints.checks.findings import FAIL, PASS, as_junit, as_text, failed, summary, worst_first
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


def check(project: Project, file: Path, options: CheckOptions) -> tuple[Finding, ...]:
    """Ask every node of a topology and return the findings. Raises DrydockError."""
    if options.format not in FORMATS:
        raise InputError(f"--format {options.format}: unknown format", hint=nearest(options.format, FORMATS))
    plan = ranktable.reading(topologies.planned(project, file, options.model, options.target))
    variant = find(read_matrix(project), plan.variant)
    chips = _chips(file, plan, options.hosts)
    questions = node_requests(plan, variant, chips)
    if options.format == "compose":  # each node gets a new network, in which all ports are free
        questions = tuple(each._replace(ports=(), address="") for each in questions)
    if options.format == "kubernetes":
        pods = check_pods(plan, variant, secrets.token_hex(4))
        questions, answers = cluster.by_kubectl(questions, pods, options.namespace, fabric=options.fabric)
    else:
        questions = measured(questions) if options.fabric else questions
        answers = _answers(plan, variant, questions, options)
    if options.format == "local":
        questions = tuple(each for each in questions if each.node in answers)
    return evaluate(questions, answers, _recorded(project, file, variant), chips)


def _answers(
    plan: TopologyPlan, variant: Variant, questions: tuple[NodeRequest, ...], options: CheckOptions
) -> reach.Answers:
    if options.format == "local":
        return reach.here(questions)
    if options.format == "compose":
        ranks = parts.placed(plan, variant)
        return reach.by_compose(questions, compose.engine(plan, ranks, hold=True))
    return reach.by_ansible(questions, ansible.files(plan, variant, {}, {}), options.ssh)


def _chips(file: Path, plan: TopologyPlan, folder: str) -> dict[str, dict[int, str]]:
    """Return node → chip → recorded address. Raises InputError if --hosts has none."""
    try:
        return chips_of(plan, hosts_of(file, plan, folder))
    except InputError as error:
        if folder:
            raise
        log(f"the chips' addresses are not compared: {error.problems[0]}")
        return {}


def _recorded(project: Project, file: Path, variant: Variant) -> dict[str, dict[str, object]]:
    """Return the facts of each node's recorded host; none for a plan, which does not name them. Raises InputError."""
    if file.suffix == ".json":
        return {}
    hosts = read_topology(file).hosts
    facts = {path: Entrypoint(project, variant).facts(path) for path in {*hosts.values()}}
    return {node: facts[path] for node, path in hosts.items()}


def report(findings: tuple[Finding, ...], junit: str, *, json: bool) -> None:
    """Print findings, write JUnit XML, and raise PreflightError if a check failed."""
    if junit:
        with unwritable(Path(junit), "--junit"):
            write_atomically(Path(junit), as_junit(findings, "drydock.topology"))
    shown = [finding for finding in worst_first(findings) if finding.severity != PASS]
    words = {} if json else read_words(os.environ)
    text = f"{as_text([translate_finding(words, each) for each in shown], words)}{summary(findings)}\n"
    emit(dumps(to_json(findings)) if json else spelled(text))
    if failed(findings):
        ids = ", ".join(sorted({finding.id for finding in findings if finding.severity == FAIL}))
        raise PreflightError(f"the topology is not ready to start: {ids}", hint="each finding says what to do")
