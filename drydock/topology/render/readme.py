"""The README of a rendered folder: the engine's own commands that start, watch, replace and stop it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from drydock.core.console import spell_commands
from drydock.run.access import API_KEY
from drydock.run.kubernetes_manifest import KEY_SECRET
from drydock.topology import topology_keys
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.render import compose, slurm, verify_job
from drydock.topology.render.kubernetes import SERVER

_ASKED = "every server, prefill and decode in every pair, and the router"


def make_readme_name(kind: str) -> str:
    """Return the name of a format's README: several formats can be in one folder."""
    return f"README-{kind}.md"


def format_readme(plan: TopologyPlan, kind: str) -> str:
    """Return the commands of a format, for this plan."""
    formats = {
        "compose": _describe_compose,
        "ansible": _describe_ansible,
        "slurm": _describe_slurm,
        "kubernetes": _describe_kubernetes,
    }
    lines = formats[kind](plan) if kind in formats else _describe_kubernetes(plan, disaggregated=True)
    head = f"# {plan.model}, by {kind}\n\n`./inv topology render` wrote this folder. Run the commands in it.\n\n"
    return spell_commands(head + "".join(f"{line}\n" for line in lines))


def _format_console_block(*lines: str) -> tuple[str, ...]:
    return ("", "```console", *(f"$ {line}" for line in lines), "```", "")


def _describe_verify(plan: TopologyPlan | None = None) -> list[str]:
    """Return the command that asks; with a plan, after the one that reads the key from this folder."""
    keyed = plan and API_KEY in topology_keys.list_secret_names(plan)
    before = [f"export $(cat FOLDER/{topology_keys.make_secret_file_name(API_KEY)})    # this folder"] if keyed else []
    return [f"In the checkout, ask {_ASKED}:", *_format_console_block(*before, "./inv topology verify PLAN")]


def _describe_compose(plan: TopologyPlan) -> list[str]:
    one = "docker compose"
    node_command = f"{one} --file nodes/NODE/compose.yaml"
    commands = ("up --wait", "ps", "logs --follow", "down")
    engine_lines = [
        "Every node as a container of one engine:",
        *_format_console_block(*(f"{one} {words}" for words in commands)),
    ]
    return [
        *(engine_lines if compose.shares_network(plan) else []),
        "Each node on its own machine: copy this folder to every machine, and run there, with the node's name:",
        *_format_console_block(*(f"{node_command} {words}" for words in commands)),
        *_describe_verify(plan),
        "After an edit, render again: `up --wait --remove-orphans` replaces what differs. Prefill and decode servers",
        "of another image or model start as a second topology first (docs/topology.md).",
    ]


def _describe_ansible(plan: TopologyPlan) -> list[str]:
    play = "ansible-playbook --inventory inventory.yml playbook.yml"
    export = [f"export {name}=…" for name in topology_keys.list_secret_names(plan)]
    return [
        "The playbook takes secrets from the shell that runs it, or from the variable topology_secrets. What a model's",
        "hub or bucket requires, such as HF_TOKEN, it takes from the shell.",
        *_format_console_block(
            "ansible-galaxy collection install --requirements-file requirements.yml",
            *export,
            f"{play} --tags check",
            f"{play} --tags ranktable,run",
            f"{play} --tags logs",
            f"{play} --tags stop",
        ),
        "The tag run replaces each container whose options differ, and waits until all are ready. `--tags stop` before",
        "a render removes what the next plan no longer has.",
        *_describe_verify(),
        "Prefill and decode servers of another image or model start as a second topology first (docs/topology.md).",
    ]


def _describe_slurm(plan: TopologyPlan) -> list[str]:
    return [
        "Slurm's nodes have the plan's names, and Podman. Run this in a folder that the first of them has too:",
        *_format_console_block(
            f"sbatch {slurm.SCRIPT}              # --time=…, --partition=… and other options of yours",
            "squeue --name drydock",
            "tail -f slurm-*.out",
            "scancel --name drydock",
        ),
        "The job ends when a container ends, with its exit code.",
        *_describe_verify(plan),
    ]


def format_secret_command(names: Sequence[str]) -> str:
    """Return the command that makes the Secret, without its values in the arguments of a process."""
    lines = "".join(f"{name}=%s\\n" for name in names)
    values = " ".join('"$(openssl rand -hex 32)"' for _ in names)
    create_command = f"kubectl create secret generic {KEY_SECRET} --from-env-file=/dev/stdin"
    return f"printf '{lines}' {values} | {create_command}"


def _describe_kubernetes(plan: TopologyPlan, *, disaggregated: bool = False) -> list[str]:
    nodes = {len(replica.ranks) for replica in plan.replicas}
    kinds = {
        "deployment": plan.router is not None or 1 in nodes,
        "leaderworkerset": disaggregated or max(nodes) > 1,
    }  # kubectl fails for a kind of which there is none
    wait = "kubectl wait --for=condition=Available --timeout=1h"
    names_of_ours = f"{SERVER}, {SERVER}-router"  # the namespace may have deployments of others
    waiting = [
        f"{wait} {kind} --selector 'app.kubernetes.io/name in ({names_of_ours})'"
        for kind, is_there in kinds.items()
        if is_there
    ]
    job = verify_job.FOLDER
    names = topology_keys.list_secret_names(plan)
    secret = ["The pods start only with their Secret:", *_format_console_block(format_secret_command(names))]
    return [
        *(secret if names else []),
        "Start the servers, and wait until they are ready:",
        *_format_console_block("kubectl apply -k .", *waiting, "kubectl get pods --output wide"),
        f"The Job asks {_ASKED}. It fails if an answer is wrong, or",
        "if no KV cache travelled:",
        *_format_console_block(
            f"kubectl delete -k {job} --ignore-not-found",
            f"kubectl apply -k {job}",
            f"kubectl wait --for=condition=complete --timeout=30m job/{verify_job.JOB}",
            f"kubectl logs job/{verify_job.JOB}",
        ),
        "After an edit, render and `kubectl apply -k .` again: Deployments and LeaderWorkerSets replace their pods one",
        "after the other, and a DisaggregatedSet replaces prefill and decode in step. Otherwise prefill and decode",
        "servers of another image or model start as a second topology, in a namespace of its own (docs/topology.md).",
        *_format_console_block(
            *(["kubectl rollout undo deployment/NAME"] if kinds["deployment"] else []), "kubectl delete -k ."
        ),
    ]
