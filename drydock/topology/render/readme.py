"""The README of a rendered folder: the engine's own commands that start, watch, replace and stop it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from drydock.run.access import API_KEY
from drydock.run.kubernetes import KEY_SECRET
from drydock.topology import keys
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.render import verify_job

_VERIFY = "`./inv topology verify PLAN`, in the checkout, asks every prefill server with every decode server"


def name(kind: str) -> str:
    """Return the name of a format's README: several formats can be in one folder."""
    return f"README-{kind}.md"


def text(plan: TopologyPlan, kind: str) -> str:
    """Return the commands of a format, for this plan."""
    formats = {"compose": _compose, "ansible": _ansible, "kubernetes": _kubernetes}
    lines = formats[kind](plan) if kind in formats else _kubernetes(plan, disaggregated=True)
    head = f"# {plan.model}, by {kind}\n\n`./inv topology render` wrote this folder. Run the commands in it.\n\n"
    return head + "".join(f"{line}\n" for line in lines)


def _block(*lines: str) -> tuple[str, ...]:
    return ("", "```console", *(f"$ {line}" for line in lines), "```", "")


def _compose(plan: TopologyPlan) -> list[str]:
    names = keys.names(plan)
    exported = [f"export $(cat {keys.file_name(API_KEY)})"] if API_KEY in names else []
    return [
        "Every node as a container of one engine:",
        *_block("docker compose up --wait", "docker compose ps", "docker compose logs --follow", "docker compose down"),
        "Each node on its own machine: copy this folder to every machine, and run there, with the node's name:",
        *_block("docker compose --file nodes/NODE/compose.yaml up --wait"),
        f"{_VERIFY}, and the router:",
        *_block(*exported, "./inv topology verify PLAN"),
        "After an edit, render again: `docker compose up --wait --remove-orphans` replaces what differs. Prefill and",
        "decode servers of another image or model start as a second topology first (docs/topology.md).",
    ]


def _ansible(plan: TopologyPlan) -> list[str]:
    play = "ansible-playbook --inventory inventory.yml playbook.yml"
    export = [f"export {name}=…" for name in keys.names(plan)]
    return [
        "Install the collection of requirements.yml. The playbook takes secrets from the shell that runs it, or from",
        "the variable topology_secrets.",
        *_block(
            *export,
            f"{play} --tags check",
            f"{play} --tags ranktable,run",
            f"{play} --tags logs",
            f"{play} --tags stop",
        ),
        "The tag run replaces each container whose options differ, and waits until all are ready. `--tags stop` before",
        "a render removes what the next plan no longer has.",
        f"{_VERIFY}, and the router:",
        *_block("./inv topology verify PLAN"),
        "Prefill and decode servers of another image or model start as a second topology first (docs/topology.md).",
    ]


def secret_command(names: Sequence[str]) -> str:
    """Return the command that makes the Secret, without its values in the arguments of a process."""
    lines = "".join(f"{name}=%s\\n" for name in names)
    values = " ".join('"$(openssl rand -hex 32)"' for _ in names)
    made = f"kubectl create secret generic {KEY_SECRET} --from-env-file=/dev/stdin"
    return f"printf '{lines}' {values} | {made}"


def _kubernetes(plan: TopologyPlan, *, disaggregated: bool = False) -> list[str]:
    several = disaggregated or any(len(replica.ranks) > 1 for replica in plan.replicas)
    waiting = ["kubectl wait --for=condition=Available --timeout=1h deployment --all"]
    waiting += ["kubectl wait --for=condition=Available --timeout=1h leaderworkerset --all"] if several else []
    job = verify_job.FOLDER
    names = keys.names(plan)
    secret = ["The pods start only with their Secret:", *_block(secret_command(names))]
    return [
        *(secret if names else []),
        *_block("kubectl apply -k .", *waiting, "kubectl get pods --output wide"),
        "The Job asks every prefill server with every decode server, and the router. It fails if an answer is wrong,",
        "or if no KV cache travelled:",
        *_block(
            f"kubectl delete -k {job} --ignore-not-found",
            f"kubectl apply -k {job}",
            f"kubectl wait --for=condition=complete --timeout=30m job/{verify_job.JOB}",
            f"kubectl logs job/{verify_job.JOB}",
        ),
        "After an edit, render and `kubectl apply -k .` again: Deployments and LeaderWorkerSets replace their pods one",
        "after the other, and a DisaggregatedSet replaces prefill and decode in step. Otherwise prefill and decode",
        "servers of another image or model start as a second topology, in a namespace of its own (docs/topology.md).",
        *_block("kubectl rollout undo deployment/NAME", "kubectl delete -k ."),
    ]
