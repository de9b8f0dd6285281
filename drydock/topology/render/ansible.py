"""A plan → an Ansible inventory, a playbook and its roles. Pure.

What a machine runs is data in host_vars; the tasks (drydock/topology/render/roles) are the same for every topology.
Every variable is `!unsafe`, so that Ansible reads no text of the plan as a template.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from drydock.core.errors import InputError
from drydock.core.files import compute_checksum
from drydock.model.variant import Variant
from drydock.run.container import Container
from drydock.run.docker_command import ASK_EVERY, CACHE, ENTRYPOINT_WORDS, START_SECONDS, STOP_SECONDS, TMP
from drydock.topology import topology_keys
from drydock.topology.plan_model import RouterPlan, TopologyPlan
from drydock.topology.render.compose import make_healthcheck
from drydock.topology.render.parts import (
    RANKTABLES,
    Placed,
    choose_router_host,
    group_by_node,
    is_unpublished,
    list_node_addresses,
    list_router_words,
    make_placed_ranks,
    make_router_check,
    wants_ranktables,
)
from drydock.topology.render.quoted_text import Unsafe, format_yaml
from drydock.topology.topology_arguments import make_node_url

FOLDER = Path(__file__).parent
RANKTABLE_FOLDER = "/etc/drydock/ranktables"
"""On a machine."""
LABEL = "drydock.configuration"
"""Label with a hash of a container's options: Ansible makes the container again if one of them changes or goes."""
REQUIREMENTS = {"collections": [{"name": "community.docker", "version": ">=4.8.0"}]}
TOPOLOGY = "topology"
"""Group of all machines."""
_AMBIGUOUS = (".yml", ".yaml", ".json")
_RESERVED = ("all", "ungrouped", "localhost", "127.0.0.1")
"""Groups that every inventory has, and what Ansible calls its own machine (ansible/inventory/data.py, constants.py)."""


def render_ansible_files(
    plan: TopologyPlan, variant: Variant, ranktables: Mapping[str, str], chips: Mapping[str, Mapping[int, str]]
) -> dict[str, str]:
    """Return path → content. `ranktables`: name → content; `chips`: node → device → recorded address.

    Raises InputError for an invalid plan, and for a node whose name Ansible would take for a file's.
    """
    machines = make_inventory(plan)
    ranks = make_placed_ranks(plan, variant)
    tables = {f"files/ranktables/{name}": text for name, text in ranktables.items()}
    variables = {
        f"host_vars/{node}.yml": format_yaml(
            _mark_unsafe(_make_host_variables(plan, node, ranks, ranktables, chips)), start=True
        )
        for node in list_node_addresses(plan)
    }
    machine_files = {
        "inventory.yml": format_yaml(machines, start=True),
        "requirements.yml": format_yaml(REQUIREMENTS, start=True),
    }
    return dict(sorted({**read_playbook_files(), **machine_files, **variables, **tables}.items()))


def make_inventory(plan: TopologyPlan) -> dict[str, Any]:
    """Return the machines, in a group for each role. Raises InputError for a name that Ansible reads as another."""
    roles: dict[str, dict[str, Any]] = {}
    for replica in plan.replicas:
        roles.setdefault(replica.role, {}).update({rank.node: {} for rank in replica.ranks})
    if plan.router:
        roles["router"] = {plan.router.node: {}}
    hosts = {node: {"ansible_host": address} for node, address in list_node_addresses(plan).items()}
    groups = {f"topology_{role}": {"hosts": nodes} for role, nodes in roles.items()}
    problems = [*_find_misread_nodes(hosts, {*_RESERVED, TOPOLOGY, *groups})]
    if problems:
        raise InputError(*problems, hint="rename the node in topology.yaml, and plan again")
    return {TOPOLOGY: {"hosts": hosts, "children": groups}}


def _find_misread_nodes(nodes: Iterable[str], reserved_names: Collection[str]) -> Iterator[str]:
    for node in nodes:
        if node.endswith(_AMBIGUOUS):
            yield f"node {node}: Ansible would read its variables for another node too"
        if node in reserved_names:
            yield f"node {node}: Ansible would take it for a group or for its own machine"


def read_playbook_files() -> dict[str, str]:
    """Return the playbook, its roles and the variables of all machines, as they are."""
    paths = [FOLDER / "playbook.yml", FOLDER / "group_vars" / f"{TOPOLOGY}.yml"]
    paths += sorted((FOLDER / "roles").rglob("*.yml"))
    return {str(path.relative_to(FOLDER)): path.read_text() for path in paths}


# --- one machine ----------------------------------------------------------------------------------------------------


def _make_host_variables(
    plan: TopologyPlan,
    node: str,
    ranks: Iterable[Placed],
    ranktables: Mapping[str, str],
    chips: Mapping[str, Mapping[int, str]],
) -> dict[str, Any]:
    """Return a machine's variables."""
    node_ranks = group_by_node(ranks).get(node, ())
    router = plan.router if plan.router and plan.router.node == node else None
    secrets = {
        *(name for item in node_ranks for name in item.secrets),
        *(topology_keys.list_router_secrets(plan) if router else ()),
    }
    read = any(wants_ranktables(item.env) for item in node_ranks)
    models = {item.container.model for item in node_ranks if item.container.model}
    images = {*(item.container.image for item in node_ranks), *([router.image] if router else [])}
    images |= {model.source for model in models if model.kind == "image"}
    local = {image for image in images if is_unpublished(image)}
    return {
        "topology_images": sorted(images - local),
        "topology_local_images": sorted(local),
        "topology_secret_names": sorted(secrets),
        "topology_folders": sorted(model.source for model in models if model.kind == "bind"),
        "topology_devices": sorted({path for item in node_ranks for path in item.container.devices}),
        "topology_ranks": [_make_rank_options(item) for item in node_ranks],
        "topology_routers": [_make_router_options(router, keyed=bool(topology_keys.list_router_secrets(plan)))]
        if router
        else [],
        "topology_ranktable_folder": RANKTABLE_FOLDER,
        "topology_ranktables": sorted(ranktables) if read else [],
        "topology_chips": [
            {"device": str(device), "address": address} for device, address in sorted(chips.get(node, {}).items())
        ],
    }


def _make_rank_options(item: Placed) -> dict[str, Any]:
    """Return a rank's container, in the terms of community.docker.docker_container."""
    options = item.container
    minutes = max(START_SECONDS // 60, options.start_minutes)
    return _add_label({
        "name": item.name,
        "image": options.image,
        "entrypoint": [],
        "command": list(options.arguments),
        "env": dict(sorted(item.env.items())),
        "downloads": list(item.container.downloads),
        "privileged": options.privileged,
        "cap_drop": [] if options.privileged else ["ALL"],
        "capabilities": [] if options.privileged else list(options.capabilities),
        "security_opts": list(options.security),
        "groups": [name for name in options.groups if name.isdigit()],
        "host_groups": [name for name in options.groups if not name.isdigit()],
        "user": options.user,
        "runtime": options.runtime,
        "devices": [f"{path}:{path}" for path in options.devices],
        "device_requests": _make_device_requests(options),
        "shm_size": options.shm,
        "ipc_mode": options.ipc,
        "ulimits": [limit.replace("=", ":", 1) for limit in options.ulimits],
        "mounts": [*_list_mounts(item)],
        "tmpfs": [f"{TMP}:exec,mode=1777"],
        "healthcheck": make_healthcheck(item),
        "stop_timeout": STOP_SECONDS,
        "ready": f"http://127.0.0.1:{item.rank.ports['status']}/readyz",
        "ready_key": False,
        "tries": minutes * 60 // ASK_EVERY,
    })  # fmt: skip


def _make_router_options(router: RouterPlan, *, keyed: bool) -> dict[str, Any]:
    """Return the router's container."""
    return _add_label({
        "name": router.name,
        "image": router.image,
        "entrypoint": [*ENTRYPOINT_WORDS],
        "command": list(list_router_words(router)),
        "env": {},
        "downloads": [],
        "privileged": False,
        "cap_drop": ["ALL"],
        "capabilities": [],
        "security_opts": ["no-new-privileges"],
        "groups": [],
        "host_groups": [],
        "devices": [],
        "ulimits": [],
        "mounts": [],
        "healthcheck": {"test": ["CMD", *make_router_check(router, choose_router_host(router))]},
        "tmpfs": [TMP, CACHE],  # else the engine makes a volume without a name at CACHE, which stays
        "stop_timeout": STOP_SECONDS,
        "ready": f"{make_node_url(choose_router_host(router), router.port)}/readiness",
        "ready_key": keyed,
        "tries": START_SECONDS // ASK_EVERY,
    })  # fmt: skip


def _add_label(options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "labels": {LABEL: compute_checksum(options)}}


def _make_device_requests(options: Container) -> list[dict[str, Any]]:
    """Return what docker's --gpus asks for."""
    if not options.gpus:
        return []
    _, _, numbers = options.gpus.partition("device=")
    chosen = {"device_ids": numbers.split(",")} if numbers else {"count": -1}
    return [{"driver": "nvidia", "capabilities": [["gpu"]], **chosen}]


def _list_mounts(item: Placed) -> Iterator[dict[str, Any]]:
    options = item.container
    for bind in [*options.mounts, *([options.model] if options.model else [])]:
        yield {"type": bind.kind, "source": bind.source, "target": bind.target, "read_only": True}
    if wants_ranktables(item.env):
        yield {"type": "bind", "source": RANKTABLE_FOLDER, "target": RANKTABLES, "read_only": True}
    yield {"type": "volume", "source": options.cache, "target": CACHE}


def _mark_unsafe(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Mark every variable as no template; not their names, which are ours."""
    return {name: Unsafe(value) for name, value in variables.items()}
