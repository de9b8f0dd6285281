"""Verbs of several machines: topology init, plan, diff, render, check, up, verify, down."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from drydock.cli.options import JsonOption, Verb, VerbOptions
from drydock.cli.task_helpers import here
from drydock.core.console import write_output
from drydock.core.files import explain_unwritable, format_json, write_atomically
from drydock.model.record import dump_record

if TYPE_CHECKING:
    from drydock.topology.playbook.playbook_run import Ssh


class TopologyInitOptions(VerbOptions):
    """What a topology.yaml is made from."""

    root: str
    """folder with recorded hosts (facts --record): NAME.json or NAME/host.json"""
    output: str = "topology.yaml"
    """file to write, which must not exist [default: topology.yaml]"""
    model: str = ""
    """hub id of the model, oci://…@sha256:…, or a folder that every node has"""
    target: str = ""
    """variant id, alias or accelerator [default: what fits the hosts]"""
    shape: Literal["", "1p1d", "2p1d"] = ""
    """1p1d or 2p1d: one or two servers compute prompts, one computes answers [default: all serve]"""


@Verb
def init_topology(options: TopologyInitOptions) -> None:
    """Write a topology.yaml for several machines, from their recorded hosts."""
    from drydock.topology import topology_tasks

    topology_tasks.init_topology(
        here(), Path(options.root), Path(options.output), options.model, options.target, options.shape
    )


class PlannedOptions(VerbOptions):
    """Whose plan it is."""

    model: str = ""
    """folder on this machine with the model's config.json, if the nodes' is elsewhere"""
    target: str = ""
    """the row that the image was built from, if no lock here has its digest"""


class FileOptions(PlannedOptions):
    """A topology, planned or not."""

    file: str
    """a topology.yaml, or its plan: topology plan --json"""


class SshOptions(VerbOptions):
    """How nodes are reached."""

    user: str = ""
    """with ansible: user to log in as [default: as in ~/.ssh/config]"""
    ssh_key: str = ""
    """file with the private key of ssh"""
    known_hosts: str = ""
    """file with the nodes' host keys [default: ~/.ssh/known_hosts]"""
    become: bool = False
    """run as root on the nodes, by sudo"""

    def make_ssh(self) -> Ssh:
        """Return how Ansible logs in."""
        from drydock.topology.playbook.playbook_run import Ssh

        return Ssh(self.user, self.ssh_key, self.known_hosts, become=self.become)


class TopologyPlanOptions(PlannedOptions, JsonOption):
    """What is planned, and written."""

    file: str
    """a topology.yaml"""
    html: str = ""
    """also write a page with pictures to this file"""
    rehearse: bool = False
    """let the image's vLLM check the plan of each node here; exit with 14 if it refuses one"""


@Verb
def plan_topology(options: TopologyPlanOptions) -> None:
    """Print what each node of a topology runs, and why."""
    from drydock.topology import topology_page, topology_tasks

    plan = topology_tasks.plan_topology_file(here(), Path(options.file), options.model, options.target)
    if options.html:
        with explain_unwritable(Path(options.html), "--html"):
            write_atomically(Path(options.html), topology_page.render_topology_page(plan))
    write_output(format_json(dump_record(plan)) if options.json else topology_tasks.format_topology_plan(plan))
    if options.rehearse:
        sys.exit(topology_tasks.report_rehearsal(here(), plan, Path(options.file), options.model))


class TopologyDiffOptions(PlannedOptions, JsonOption):
    """Two topologies."""

    old: str
    """topology.yaml, or its plan as JSON"""
    new: str
    """topology.yaml, or its plan as JSON"""


@Verb
def compare_topologies(options: TopologyDiffOptions) -> None:
    """Print what differs between the plans of two topologies."""
    from drydock.topology import plan_diff, topology_tasks

    plans = topology_tasks.plan_two_files(here(), Path(options.old), Path(options.new), options.model, options.target)
    changes = plan_diff.compare_topology_plans(*plans)
    write_output(
        format_json([change._asdict() for change in changes])
        if options.json
        else plan_diff.format_plan_changes(changes)
    )


class TopologyRenderOptions(PlannedOptions, JsonOption):
    """What is rendered, for which engine."""

    plan: str
    """a topology.yaml, or its plan: topology plan --json"""
    format: Literal["compose", "kubernetes", "disaggregatedset", "ansible", "slurm", "ranktable"]
    """compose, kubernetes, disaggregatedset, ansible, slurm or ranktable"""
    output: str
    """folder to write to"""
    root: str = ""
    """folder with recorded hosts, NODE.json or NODE/host.json; ranktables are made of them"""


@Verb
def render_topology(options: TopologyRenderOptions) -> None:
    """Write a planned topology for Compose, Kubernetes, Ansible or Slurm, or its ranktables."""
    from drydock.topology import render

    where = (Path(options.plan), options.format, Path(options.output), options.root)
    written = render.render_topology(here(), *where, model=options.model, target=options.target)
    if options.json:
        write_output(format_json({"wrote": [*map(str, written)]}))
    else:
        write_output("".join(f"wrote {path}\n" for path in written))


class TopologyStartOptions(FileOptions, SshOptions):
    """What is started or stopped, and how."""

    format: Literal["", "ansible", "compose"] = ""
    """ansible: on the nodes, by ssh; compose: all nodes as containers of this machine's engine"""
    output: str = ""
    """folder for the rendered files [default: .cache/topology/NAME]"""


class TopologyUpOptions(TopologyStartOptions, JsonOption):
    """What is started."""

    root: str = ""
    """folder with recorded hosts, for ranks that read ranktables [default: those of a topology.yaml]"""
    wait: int = 0
    """with compose: seconds that the start may take [default: an hour, or more by accelerator]"""


@Verb
def start_topology(options: TopologyUpOptions) -> None:
    """Render and start a topology by its engine's command, then verify it."""
    from drydock.topology import up, verify

    what = (options.format, options.output, options.model, options.target, options.root, options.wait)
    write_output(
        verify.format_shown_answers(
            up.start_topology(here(), Path(options.file), up.Options(*what, options.make_ssh())), json=options.json
        )
    )


@Verb
def stop_topology(options: TopologyStartOptions) -> None:
    """Stop what `topology up` started, and remove its containers. Models and compiled code stay."""
    from drydock.topology import up

    up.stop_topology(here(), Path(options.file), up.Options(options.format, options.output, ssh=options.make_ssh()))


class TopologyVerifyOptions(FileOptions, JsonOption):
    """Which topology is asked."""


@Verb
def verify_topology(options: TopologyVerifyOptions) -> None:
    """Ask a running topology: a right answer of every pair of prefill and decode, and of the router."""
    from drydock.topology import verify

    answers = verify.verify_topology(here(), Path(options.file), options.model, options.target)
    write_output(verify.format_shown_answers(answers, json=options.json))


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
    from drydock.topology.preflight import preflight_tasks

    what = (
        options.format,
        options.model,
        options.target,
        options.root,
        options.make_ssh(),
        options.namespace,
        options.fabric,
    )
    findings = preflight_tasks.check_topology(here(), Path(options.file), preflight_tasks.CheckOptions(*what))
    preflight_tasks.report_topology_check(findings, options.junit, json=options.json)
