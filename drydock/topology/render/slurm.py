"""A plan → one script for Slurm's sbatch: a task on each node starts the node's containers by Podman. Pure.

Podman, because it takes docker's options: a container has the same rights, files and variables as in the other formats,
needs no daemon, and keeps images by digest. Apptainer and Pyxis have neither capabilities nor volumes of their own.

A container that ends ends the job with its exit code, as Slurm's users expect of a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from string import Template

from drydock.core.files import format_compact_json
from drydock.model.variant import Variant
from drydock.run import podman
from drydock.run.container import is_local
from drydock.run.docker_command import CACHE, ENTRYPOINT_WORDS, STOP_SECONDS, TMP
from drydock.run.user_options import HOST
from drydock.topology import topology_keys
from drydock.topology.plan_model import RouterPlan, TopologyPlan
from drydock.topology.render.parts import (
    RANKTABLES,
    Placed,
    group_by_node,
    is_unpublished,
    list_node_addresses,
    list_router_words,
    make_placed_ranks,
    wants_ranktables,
)
from drydock.topology.render.quoted_text import quote_shell_word

SCRIPT = "topology.sbatch"
_SCRIPT = Template("""\
#!/bin/bash
#SBATCH --job-name=drydock
#SBATCH --nodes=$count
#SBATCH --nodelist=$nodes
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0

set -eu
$secrets
# Every task reads the lines to NODE, and runs those of its node.
srun --kill-on-bad-exit=1 --cpu-bind=none --label bash -s <<'NODE'
set -u
names=()

start() {
  local name=$$1
  shift
  names+=("$$name")
  (
    status=0
    podman run --rm --replace --sig-proxy=false --name "$$name" "$$@" </dev/null || status=$$?
    echo "$$name ended with status $$status" >&2
    exit $$((status ? status : 1))
  ) &
}

stop() {
  podman rm --force --ignore --time $seconds "$${names[@]}" >/dev/null
  wait
}

trap 'exit 0' TERM  # srun's exit code is the highest of a task's
case $$SLURMD_NODENAME in
$cases*)
  echo "$$SLURMD_NODENAME: the plan has no such node" >&2
  exit 1
  ;;
esac
trap stop EXIT
wait -n
NODE
""")
"""--cpu-bind=none: by default Slurm may bind a task to one core. --replace: a job that was killed leaves containers.
--sig-proxy: scancel signals every process; a second SIGTERM would cut requests off, so only `stop` sends one.
--time: Podman is done before Slurm kills the task, by default 30 s after SIGTERM (slurm.conf, KillWait)."""


def render_slurm_files(plan: TopologyPlan, variant: Variant, ranktables: Mapping[str, str]) -> dict[str, str]:
    """Return path → content. `ranktables`: name → content, for ranks that read them. Raises InputError."""
    ranks = make_placed_ranks(plan, variant)
    read = any(wants_ranktables(item.env) for item in ranks)
    tables = {f"ranktables/{name}": text for name, text in ranktables.items() if read}
    return dict(sorted({SCRIPT: _format_batch_script(plan, ranks), **tables}.items()))


def _format_batch_script(plan: TopologyPlan, ranks: Sequence[Placed]) -> str:
    nodes = list_node_addresses(plan)
    return _SCRIPT.substitute(
        count=len(nodes),
        nodes=",".join(nodes),
        seconds=STOP_SECONDS - 2,
        secrets="".join(map(_format_secret_lines, topology_keys.list_secret_names(plan))),
        cases="".join(_format_node_case(plan, node, group_by_node(ranks).get(node, ())) for node in nodes),
    )


def _format_secret_lines(name: str) -> str:
    """Return the lines that read a secret from the folder of the job, so that no argument has it."""
    return f"{name}=$(sed 's/^[^=]*=//' {topology_keys.make_secret_file_name(name)})\nexport {name}\n"


def _format_node_case(plan: TopologyPlan, node: str, node_ranks: Sequence[Placed]) -> str:
    """Return the lines of one node."""
    models = dict.fromkeys(item.container.model for item in node_ranks)
    images = [model.source for model in models if model and model.kind == "image"]
    pulls = [f"podman pull --quiet {quote_shell_word(image)} || exit" for image in images]
    starts = [_format_start_command(item.name, _list_rank_options(item)) for item in node_ranks]
    if plan.router and plan.router.node == node:
        starts.append(
            _format_start_command(
                plan.router.name, _list_router_options(plan.router, topology_keys.list_router_secrets(plan))
            )
        )
    lines = "\n".join([*pulls, *starts]).replace("\n", "\n  ")
    return f"{quote_shell_word(node)})\n  {lines}\n  ;;\n"


def _format_start_command(name: str, lines: Iterable[str]) -> str:
    return " \\\n  ".join([f"start {name}", *lines])


def _list_rank_options(item: Placed) -> Iterable[str]:
    """Yield a rank's options, image and words: those of its record, with the plan's variables."""
    overrides = {"network": HOST, "user_env": item.rank.env, "passed_names": item.secrets}
    container = item.container.model_copy(update=overrides)
    if wants_ranktables(item.env):
        yield f'--volume "$PWD/ranktables:{RANKTABLES}:ro"'
    if is_unpublished(container.image) and not is_local(container.image):
        yield "--pull never"
    yield from (_quote_words(option) for option in podman.list_podman_options(container) if option[0] != "--name")
    yield quote_shell_word(container.image)
    yield _quote_words(container.arguments)


def _list_router_options(router: RouterPlan, secrets: Sequence[str]) -> Iterable[str]:
    """Yield the router's options, image and words."""
    if is_unpublished(router.image):
        yield "--pull never"
    yield from (
        "--network host",
        "--read-only",
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
        f"--stop-timeout {STOP_SECONDS}",
    )
    yield from (f"--tmpfs {folder}" for folder in (TMP, CACHE))
    yield from (f"--env {name}" for name in secrets)
    yield _quote_words(("--entrypoint", format_compact_json(list(ENTRYPOINT_WORDS))))
    yield quote_shell_word(router.image)
    yield _quote_words(list_router_words(router))


def _quote_words(words: Iterable[str]) -> str:
    return " ".join(map(quote_shell_word, words))
