"""The tasks topology up and down: the engine's own command, then the known answer. IO."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from drydock.config.matrix import find_variant, read_matrix
from drydock.core.errors import EngineError, InputError, suggest_nearest
from drydock.core.files import format_compact_json, parse_json_object
from drydock.core.paths import cache_home
from drydock.core.project import Project
from drydock.engine import compose_plugin as plugin
from drydock.model.record import IDENTIFIER_AT_MOST
from drydock.run.access import API_KEY
from drydock.run.docker_command import ENTRYPOINT_WORDS, PYTHON, START_SECONDS
from drydock.topology import topology_keys, verify
from drydock.topology import topology_tasks as topologies
from drydock.topology.answer_program import make_answer_program
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.playbook.playbook_run import Ssh, run_playbook
from drydock.topology.render import compose, find_host_commands, folder, write_plan
from drydock.topology.render.parts import is_unpublished, list_node_addresses, name_rank_container
from entrypoints.serve.topology_answer import ShownAnswers

COMPOSE, ANSIBLE = "compose", "ansible"
FORMATS = (COMPOSE, ANSIBLE)
STDERR = 2
"""The descriptor of standard error: what a tool prints is no data of ours."""
VERB = "health --topology"
_IN_CLUSTERS = ("kubernetes", "disaggregatedset", "slurm")


class Options(NamedTuple):
    """The options of up and down."""

    format: str = ""
    output: str = ""
    model: str = ""
    target: str = ""
    hosts: str = ""
    """Folder with recorded hosts, for ranktables; without it, a topology.yaml's own."""
    seconds: int = 0
    """How long a start may take; 0: as the accelerator's record says."""
    ssh: Ssh = Ssh()


def start_topology(project: Project, file: Path, options: Options) -> ShownAnswers:
    """Render a topology, start it by its engine's command, and ask for the known answer. Raises DrydockError."""
    plan = topologies.plan_topology_file(project, file, options.model, options.target)
    _check_format(plan, options.format)
    if options.format == COMPOSE:
        compose.make_engine_network(plan)  # raises InputError if one engine's network cannot have the nodes' addresses
    output = choose_output_folder(project, file, options.output)
    write_plan(project, plan, options.format, output, find_host_commands(file, plan, options.hosts))
    secrets = topology_keys.ensure_secrets(output, topology_keys.list_secret_names(plan))
    if options.format == ANSIBLE:
        run_playbook(output, ("check", "ranktable", "run"), ssh=options.ssh, variables={"topology_secrets": secrets})
        return verify.prove_plan(plan, secrets.get(API_KEY, ""))
    plugin.ensure_compose()
    _check_images(plan)
    wait = str(options.seconds or compute_start_seconds(project, plan))
    _run_compose((*_make_compose_command(file, output), "up", "--wait", "--wait-timeout", wait, "--remove-orphans"))
    return _prove_inside(plan, _make_compose_command(file, output))


def stop_topology(project: Project, file: Path, options: Options) -> None:
    """Stop what `up` started, and remove its containers. Raises DrydockError."""
    output = choose_output_folder(project, file, options.output)
    started = [kind for kind in FORMATS if (output / folder.make_list_name(kind)).is_file()]
    if len(started) != 1 and options.format not in started:
        started_names = " and ".join(started) or "nothing that up started"
        raise InputError(
            f"{output}: found {started_names}", hint="--output FOLDER, and --format if several formats are there"
        )
    if (options.format or started[0]) == ANSIBLE:
        run_playbook(output, ("stop",), ssh=options.ssh)
    else:
        plugin.ensure_compose()
        _run_compose((*_make_compose_command(file, output), "down", "--remove-orphans"))


def show_topology_logs(project: Project, file: Path, options: Options, lines: int) -> None:
    """Show the last lines of each container that `up` started by Compose. Raises EngineError."""
    _run_compose(
        (
            *_make_compose_command(file, choose_output_folder(project, file, options.output)),
            "logs",
            "--tail",
            str(lines),
        )
    )


def _check_format(plan: TopologyPlan, kind: str) -> None:
    """Raise InputError unless a format is named that starts something; a plan names its machines."""
    if kind in _IN_CLUSTERS:
        hint = f"`./inv topology render PLAN --format {kind} --output FOLDER`; its README has the cluster's commands"
        raise InputError(f"--format {kind}: the cluster starts, watches and replaces it, not this program", hint=hint)
    if not kind:
        machines = ", ".join(f"{node} ({address})" for node, address in list_node_addresses(plan).items())
        hint = "--format ansible starts it there by ssh; --format compose starts containers on this machine instead"
        raise InputError(f"--format: missing; the plan's machines are {machines}", hint=hint)
    if kind not in FORMATS:
        raise InputError(f"--format {kind}: unknown format", hint=suggest_nearest(kind, FORMATS))


def choose_output_folder(project: Project, file: Path, output: str = "") -> Path:
    """Return the folder of what is rendered: one that the user names, or topology/NAME in `.cache` of the project.

    Without a project, an installed drydock keeps it in its cache folder.
    """
    cache = cache_home() if project.is_installed else project.root / ".cache"
    return Path(output).absolute() if output else cache / "topology" / name_topology(file)


def name_topology(file: Path) -> str:
    """Return a topology's name: that of its file, or of the folder of a topology.yaml or plan.json."""
    stem = file.absolute().parent.name if file.stem in ("topology", "plan") else file.stem
    return re.sub(r"[^a-z0-9]+", "-", stem.lower())[:IDENTIFIER_AT_MOST].strip("-") or "topology"


def compute_start_seconds(project: Project, plan: TopologyPlan) -> int:
    """Return the seconds that a first start may take: it loads weights and compiles."""
    start = find_variant(read_matrix(project), plan.variant).run.start
    return max(START_SECONDS, 60 * int(start.value.removesuffix("m")) if start else 0)


# --- docker compose -------------------------------------------------------------------------------------------------


def _make_compose_command(file: Path, output: Path) -> tuple[str, ...]:
    return (
        "docker",
        "compose",
        "--project-name",
        f"drydock-{name_topology(file)}",
        "--file",
        str(output / "compose.yaml"),
    )


def _check_images(plan: TopologyPlan) -> None:
    """Raise EngineError for an image that is neither here nor in a registry: it must be built."""
    images = {plan.image: plan.variant} | ({plan.router.image: topologies.ROUTER} if plan.router else {})
    for image, target in images.items():
        command = ("docker", "image", "inspect", image)
        if is_unpublished(image) and subprocess.run(command, capture_output=True, check=False).returncode:
            text = f"image {image}: not in this machine's engine, and no registry has it"
            raise EngineError(text, hint=f"build it with ./inv build --target {target}")


def _run_compose(command: Sequence[str]) -> None:
    """Run docker compose; what it tells goes to standard error. Raises EngineError."""
    result = subprocess.run(command, stdout=STDERR, check=False, env={**os.environ, "COMPOSE_MENU": "0"})
    if result.returncode:
        hint = f"its messages are above; `{' '.join((*command[:6], 'logs'))}` shows the containers'"
        raise EngineError(f"docker compose {command[6]}: exit {result.returncode}", hint=hint)


def _prove_inside(plan: TopologyPlan, compose: Sequence[str]) -> ShownAnswers:
    """Ask from a container of the project, which knows the nodes' names and has the key. Raises VerifyError."""
    first = plan.replicas[0]
    service = plan.router.name if plan.router else name_rank_container(first, first.ranks[0])
    command = (*compose, "exec", "--no-TTY", service)
    words = ("--topology", format_compact_json(verify.make_servers_question(plan)), "--json")
    result = subprocess.run(
        (*command, *ENTRYPOINT_WORDS, "health", *words), stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if not result.stdout:  # `health` of an older image: it knows no --topology, and only its exit code answers
        program = make_answer_program().encode()
        result = subprocess.run(
            (*command, PYTHON, "-I", "-S", "-", *words), input=program, capture_output=True, check=False
        )
    if not result.stdout:
        raise verify.make_verify_error(tuple(result.stderr.decode(errors="replace").splitlines()))
    answer = parse_json_object(result.stdout.decode(errors="replace"), VERB, EngineError)
    try:
        if result.returncode:
            raise verify.make_verify_error(tuple(map(str, answer["problems"])), tuple(map(str, answer["right"])))
        return ShownAnswers.read(answer)
    except (LookupError, TypeError) as error:
        raise EngineError(f"{VERB}: an answer of another shape: {error!r}") from error
