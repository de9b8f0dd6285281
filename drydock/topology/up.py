"""Starting and stopping a topology: the engine's own command, then the known answer. IO."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from drydock.core.errors import EngineError, InputError, suggest_nearest
from drydock.core.files import format_compact_json, parse_json_object
from drydock.core.paths import cache_home
from drydock.core.project import Project
from drydock.engine.compose_plugin import ensure_compose
from drydock.model.record import IDENTIFIER_AT_MOST
from drydock.run.docker_command import ENTRYPOINT_WORDS, PYTHON, START_SECONDS
from drydock.topology import planned_file, topology_keys, verify
from drydock.topology.answer_program import make_answer_program
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.render import compose, folder, write_plan
from drydock.topology.render.chips import Commands
from drydock.topology.render.parts import is_unpublished, list_node_addresses, name_rank_container
from entrypoints.serve.topology_answer import ShownAnswers

COMPOSE, ANSIBLE = "compose", "ansible"
FORMATS = (COMPOSE, ANSIBLE)
STDERR = 2
"""The descriptor of standard error: what a tool prints is no data of ours."""
VERB = "health --topology"
_IN_CLUSTERS = ("kubernetes", "disaggregatedset", "slurm")


def write_files_to_start(
    project: Project, plan: TopologyPlan, kind: str, output: Path, hosts: Mapping[str, Commands]
) -> dict[str, str]:
    """Render a plan for the engine that starts it; return the secrets of its servers. Raises InputError."""
    if kind == COMPOSE:
        compose.make_engine_network(plan)  # raises InputError if one engine's network cannot have the nodes' addresses
    write_plan(project, plan, kind, output, hosts)
    return topology_keys.ensure_secrets(output, topology_keys.list_secret_names(plan))


def start_by_compose(plan: TopologyPlan, file: Path, output: Path, seconds: int) -> ShownAnswers:
    """Start what was rendered for Compose, and ask for the known answer in a container. Raises DrydockError."""
    ensure_compose()
    _check_images(plan)
    command = _make_compose_command(file, output)
    _run_compose((*command, "up", "--wait", "--wait-timeout", str(seconds), "--remove-orphans"))
    return _prove_inside(plan, command)


def find_started_format(output: Path, kind: str) -> str:
    """Return the format in which `up` started what is in a folder. Raises InputError."""
    started = [name for name in FORMATS if (output / folder.make_list_name(name)).is_file()]
    if len(started) != 1 and kind not in started:
        started_names = " and ".join(started) or "nothing that up started"
        raise InputError(
            f"{output}: found {started_names}", hint="--output FOLDER, and --format if several formats are there"
        )
    return kind or started[0]


def stop_by_compose(file: Path, output: Path) -> None:
    """Stop and remove the containers. Raises EngineError."""
    ensure_compose()
    _run_compose((*_make_compose_command(file, output), "down", "--remove-orphans"))


def show_topology_logs(file: Path, output: Path, lines: int) -> None:
    """Show the last lines of each container that `up` started by Compose. Raises EngineError."""
    _run_compose((*_make_compose_command(file, output), "logs", "--tail", str(lines)))


def check_format(plan: TopologyPlan, kind: str) -> None:
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
    start = planned_file.find_planned_variant(project, plan).run.start
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
    images = {plan.image: plan.variant} | ({plan.router.image: planned_file.ROUTER} if plan.router else {})
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
