"""A rank → a pod's template. Pure.

Pods of one workload share a template, so what differs by pod is filled in by Kubernetes: the pod's address, the
leader's address and the number of the worker (LeaderWorkerSet sets LWS_LEADER_ADDRESS, LWS_GROUP_SIZE and
LWS_WORKER_INDEX). A pod has a network of its own, so every rank gets the same ports: vLLM's key of compiled code has
VLLM_NIXL_SIDE_CHANNEL_PORT in it (facts of vLLM 0.32, envs.py), but neither the pod's address nor VLLM_HOST_IP.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from drydock.core.dollars import double_dollars
from drydock.core.errors import InputError
from drydock.run import kubernetes_manifest
from drydock.run.access import EVERY_ADDRESS, HOST_FLAG
from drydock.run.container import name_of
from drydock.topology.plan_model import Replica
from drydock.topology.render.compose import INTERFACE, USUAL_INTERFACE
from drydock.topology.render.parts import Placed, is_unpublished, uses_rdma, wants_ranktables
from drydock.topology.render.ranktable import CONFIG

GROUP, COMPONENT = "app.kubernetes.io/part-of", "app.kubernetes.io/component"
"""Labels: the group; and its role, for pods that answer clients, or the role and -worker for others."""
RDMA = "rdma/hca_shared_devices_a"
"""Resource of the RDMA shared device plugin, under the name in its example. A cluster may call it otherwise."""
ADDRESS = "POD_IP"
TPU = "google.com/tpu"
BY_LEADER_WORKER_SET = ("TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID")
"""Variables that LeaderWorkerSet sets for pods with TPUs, unless the template does (pkg/utils/accelerators/tpu.go)."""
CACHE_VOLUME = "cache"

_FLAG = re.compile(r"(--[a-z0-9-]+)=(.*)", re.DOTALL)
_PLACES = {"--node-rank": "$(LWS_WORKER_INDEX)", "--nnodes": "$(LWS_GROUP_SIZE)"}
_NUMBER_OF_JSON = re.compile(r"(?<=:)\d+(?=[,}])")
"""A number that is a value of compact JSON; the connector's port is one."""
_LONGEST_PORT_NAME = 15
"""Characters: Kubernetes takes names of services as IANA does (RFC 6335, section 5.1)."""


def make_pod_template(item: Placed, ports: Mapping[str, int], node_addresses: Iterable[str]) -> dict[str, Any]:
    """Return the template of a rank's pod, without the volume of its cache.

    `node_addresses`: the nodes' addresses. Raises InputError for a rank that reads a ranktable, and for an address that
    the pod would not have.
    """
    if wants_ranktables(item.env):
        raise InputError(
            f"{item.name}: a ranktable names chips, but Kubernetes' device plugin chooses them",
            hint="use --format ansible, compose or slurm",
        )
    _, deployment, _ = kubernetes_manifest.make_objects(item.container)
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    host_network = item.container.network == "host"
    numbers = {str(port): str(ports[purpose]) for purpose, port in item.rank.ports.items()}
    args = [_rewrite_word(item, flag, value, numbers) for flag, value in _pair_flags(item.rank.words)]
    container = pod["containers"][0]
    container["args"] = args
    container["env"] = [
        *_make_address_variable(args),
        *_make_variables(item, numbers, host_network=host_network),
        *_make_secret_variables(item),
    ]
    _check_addresses(item, container, node_addresses)
    container["ports"] = _make_container_ports(item, ports)
    container |= make_pull_policy(item.container.image)
    container |= {"resources": {"limits": limits}} if (limits := _make_device_limits(item)) else {}
    pod["volumes"] = [*_list_volumes(item, pod["volumes"])]
    return {"metadata": {"labels": make_pod_labels(item)}, "spec": pod}


def make_pull_policy(image: str) -> dict[str, str]:
    """Return that a node does not pull an image which no registry has."""
    return {"imagePullPolicy": "Never"} if is_unpublished(image) else {}


def make_pod_labels(item: Placed) -> dict[str, str]:
    """Return the labels of a rank's pod, without its workload's."""
    role = item.replica.role if item.rank.rank == 0 else f"{item.replica.role}-worker"
    return {"app.kubernetes.io/name": "vllm", GROUP: format_group_label(item.replica), COMPONENT: role}


def format_group_label(replica: Replica) -> str:
    """Return a server's group as a label has it."""
    return name_of(replica.group)


def choose_common_ports(ranks: Iterable[Placed]) -> dict[str, int]:
    """Return purpose → port, the same for every pod: the first rank's that has the purpose, and no port twice."""
    ports: dict[str, int] = {}
    for item in ranks:
        for purpose, port in sorted(item.rank.ports.items()):
            if purpose not in ports:
                ports[purpose] = port if port not in ports.values() else max(ports.values()) + 1
    return ports


# --- words and variables --------------------------------------------------------------------------------------------


def _pair_flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each word with the flag whose value it is: `--port 1` and `--port=1` alike."""
    before = ""
    for word in words:
        yield before, word
        before = word if word.startswith("--") and "=" not in word else ""


def _rewrite_word(item: Placed, flag: str, word: str, numbers: Mapping[str, str]) -> str:
    """Return a word of the arguments, with what differs by pod replaced."""
    joined = _FLAG.fullmatch(word) if not flag else None
    if joined:
        return f"{joined[1]}={_rewrite_word(item, joined[1], joined[2], numbers)}"
    if filled := _replace_pod_word(item, flag, word):
        return filled
    if flag == CONFIG:
        return double_dollars(_NUMBER_OF_JSON.sub(lambda found: numbers.get(found[0], found[0]), word))
    return numbers.get(word, word) if flag.endswith("-port") else double_dollars(word)


def _replace_pod_word(item: Placed, flag: str, word: str) -> str:
    """Return what stands for a word that differs by pod; empty for other words."""
    several = len(item.replica.ranks) > 1
    if flag == HOST_FLAG and word == item.rank.address:
        # `kubectl port-forward` connects to the pod's loopback; a NetworkPolicy says who else reaches the pod
        return f"$({ADDRESS})" if item.container.network == "host" else EVERY_ADDRESS
    if several and flag in _PLACES:
        return _PLACES[flag]
    if several and word == item.leader.address:
        return "$(LWS_LEADER_ADDRESS)"
    return f"$({ADDRESS})" if word == item.rank.address else ""


def _make_address_variable(args: Sequence[str]) -> list[dict[str, Any]]:
    """Return the variable with the pod's address, if an argument names it."""
    return [_make_pod_address(ADDRESS)] if any(f"$({ADDRESS})" in word for word in args) else []


def _make_pod_address(name: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def _make_variables(item: Placed, numbers: Mapping[str, str], *, host_network: bool) -> Iterator[dict[str, Any]]:
    """Yield each variable of the container, sorted.

    `host_network`: with the node's own network, whose interfaces keep names.
    """
    env = {**item.container.env, **item.rank.env}  # not `visible`: the device plugin sets it
    interface = "" if host_network else env.get(INTERFACE, "")
    for name, value in sorted(env.items()):
        if name in BY_LEADER_WORKER_SET and len(item.replica.ranks) > 1 and item.container.resource == TPU:
            continue
        if value == item.rank.address:
            yield _make_pod_address(name)
        elif value == item.leader.address:
            yield {"name": name, "value": "$(LWS_LEADER_ADDRESS)"}
        elif interface and value == interface:
            yield {"name": name, "value": USUAL_INTERFACE}
        else:
            yield {
                "name": name,
                "value": double_dollars(numbers.get(value, value) if name.endswith("_PORT") else value),
            }


def _check_addresses(item: Placed, container: Mapping[str, Any], node_addresses: Iterable[str]) -> None:
    """Check that no text has a node's address, which only pods with the node's network have. Raises InputError."""
    if item.container.network == "host":
        return
    texts = [*container["args"], *(variable.get("value", "") for variable in container["env"])]
    for address in node_addresses:
        whole = re.compile(rf"(?<![\w.-]){re.escape(address)}(?![\w-]|\.\w)")
        for text in texts:
            if whole.search(text):
                raise InputError(
                    f"{item.name}: found the node's address {address} in {text!r}, but pods have others",
                    hint="use --format ansible or compose",
                )


def _make_secret_variables(item: Placed) -> Iterator[dict[str, Any]]:
    """Yield the variables of secrets: the hub's token and mirror, and those without which the pod does not start."""
    for name in item.container.downloads:
        if name not in item.rank.env:
            yield kubernetes_manifest.from_secret(name, kubernetes_manifest.secret_of(name), optional=True)
    yield from (
        kubernetes_manifest.from_secret(name, kubernetes_manifest.KEY_SECRET, optional=False) for name in item.secrets
    )


# --- ports, resources, volumes --------------------------------------------------------------------------------------


def make_port_name(purpose: str) -> str:
    """Return a port's name: at most 15 lower-case letters, digits and single hyphens, at least one a letter."""
    text = re.sub(r"[^a-z0-9]+", "-", purpose).strip("-")
    number = re.search(r"(-[0-9]{1,5})?$", text)[0]  # type: ignore[index] # side-channel-100 and -101 stay different
    words = text.removesuffix(number)[: _LONGEST_PORT_NAME - len(number)]
    name = f"{words.strip('-')}{number}".strip("-")
    return name if re.search("[a-z]", name) else f"p-{name}"[:_LONGEST_PORT_NAME].strip("-")


def _make_container_ports(item: Placed, ports: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the ports that a rank listens on: the master's and the RPC's belong to the leader."""
    leaders = ("master", "rpc")
    purposes = [purpose for purpose in sorted(item.rank.ports) if item.rank.rank == 0 or purpose not in leaders]
    return [
        {"name": make_port_name(purpose), "containerPort": ports[purpose], "protocol": "TCP"} for purpose in purposes
    ]


def _make_device_limits(item: Placed) -> dict[str, int]:
    """Return the devices that a rank's pod gets."""
    cards = {item.container.resource: item.container.count} if item.container.resource else {}
    rdma = uses_rdma(item.env) and item.container.network != "host"
    return cards | ({RDMA: 1} if rdma else {})


def _list_volumes(item: Placed, volumes: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the volumes without the cache, which is the workload's matter. The model's folder must exist."""
    model = item.container.model.source if item.container.model else ""
    for volume in volumes:
        if volume.get("hostPath", {}).get("path") == model and model:
            yield {**volume, "hostPath": {"path": model, "type": "Directory"}}
        elif volume["name"] != CACHE_VOLUME:
            yield dict(volume)
