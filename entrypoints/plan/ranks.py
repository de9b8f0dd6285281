"""What each of several hosts runs: flags, environment, and Ray's commands. Pure.

With vLLM's own launcher every host runs the same command but for its rank, and all but the first are headless. With
Ray, the first host starts Ray's head and then the server, and the others only join. Sources: vLLM 0.32
config/parallel.py (nnodes, node_rank, data_parallel_start_rank) and entrypoints/cli/serve.py (run_headless); Ray docs,
`ray start`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.records import Facts, Group, Notice, Value
from entrypoints.core.settings_precedence import Chosen
from entrypoints.decide.parallelism.hosts import ENGINES, NATIVE, RAY, Reach, check_ways, count_hosts, read_reach
from entrypoints.decide.records import Thresholds
from entrypoints.request.flags import (
    COMMANDS,
    DATA,
    DATA_ADDRESS,
    GROUP_SECRET,
    HEADLESS,
    HOSTS,
    LOCAL,
    MASTER,
    MASTER_PORT,
    MODEL_NAME,
    NODE_RANK,
    NODES,
    PIPELINE,
    RPC_PORT,
    SECRET_FILE,
    START_RANK,
    TENSOR,
)
from entrypoints.request.vllm_flags import UserFlags, remove_flag

HEAD = "host0"
"""Stands for the address of the first host where it is not given."""

MASTER_DEFAULT, RPC_DEFAULT, RAY_PORT = 29501, 29550, 6379
"""vLLM's defaults (config/parallel.py) and Ray's, written out so that every host has the same."""

HOST_IP = "VLLM_HOST_IP"
_OF_ONE_RANK = (NODE_RANK, HEADLESS, START_RANK)
"""Flags that differ between hosts."""
_OWN_SERVERS = {"--data-parallel-hybrid-lb", "--data-parallel-external-lb", "--data-parallel-rank"}
"""Flags with which every host has an API server of its own, behind the user's load balancer."""


class Across(NamedTuple):
    """Several hosts, of which this one has `rank`."""

    reach: Reach
    hosts: int
    rank: int
    address: str
    """Of the first host."""
    given: bool
    """Whether the user gave that address."""
    port: int
    rpc: int
    interface: str
    """The network interface between hosts; empty if none is known."""
    because: str
    """Why that interface."""


def read_across(profile: Mapping[str, Any], facts: Facts, user_flags: UserFlags) -> Across | None:
    """Return how a model is served on several hosts; None on one. Raises USAGE for an impossible rank."""
    hosts, rank = count_hosts(user_flags), user_flags.number(NODE_RANK) or 0
    if hosts == 1:
        return None
    if rank >= hosts:
        message = f"{NODE_RANK} {rank}: expected a rank from 0 to {hosts - 1}"
        raise EntrypointError(USAGE, message, f"{NODES} {hosts} starts {hosts} hosts")
    reach = read_reach(Thresholds(profile["thresholds"]))
    check_ways(reach.ways, hosts)
    address = user_flags.flag(MASTER) or user_flags.flag(DATA_ADDRESS)
    port, rpc = user_flags.number(MASTER_PORT) or MASTER_DEFAULT, user_flags.number(RPC_PORT) or RPC_DEFAULT
    interface, because = _choose_rank_interface(reach, facts, user_flags)
    return Across(reach, hosts, rank, address or HEAD, bool(address), port, rpc, interface, because)


def _choose_rank_interface(reach: Reach, facts: Facts, user_flags: UserFlags) -> tuple[str, str]:
    """Return the network interface between hosts, and why: the user's for any communicator, else the first that is up.

    Each communicator has its own variable, and setting one does not set another.
    """
    user = next((name for name in reach.interfaces if user_flags.variable(name)), "")
    if user:
        return user_flags.variable(user) or "", f"as in {user}, which the container's environment sets"
    names = facts.kernel.get("interfaces", "").split()
    return (names[0], f"the first interface that is up, out of {', '.join(names)}") if names else ("", "")


def find_rank_notices(across: Across, user_flags: UserFlags) -> tuple[Notice, ...]:
    """Return what is assumed of the other hosts, and whether their reports are signed."""
    rank_notices = [make_notice("PLAN-120", f"{across.hosts} hosts, one of them read", "the facts of every host")]
    if not across.given:
        rank_notices.append(make_notice("PLAN-121", f"{HEAD} in the commands", f"{MASTER} with an address", head=HEAD))
    if not (user_flags.signs or user_flags.variable(GROUP_SECRET)):
        rank_notices.append(make_notice("PLAN-122", "no secret", f"{GROUP_SECRET}, or {SECRET_FILE} FILE"))
    return tuple(rank_notices)


# --- settings of a rank ---------------------------------------------------------------------------------------------


def rank_settings(across: Across, values: Mapping[str, Value], user_flags: UserFlags, rank: int) -> dict[str, Value]:
    """Return the settings of one host's command; `values` are the decided ones."""
    way = _choose_start_way(across, values, user_flags)
    settings = _make_rank_variables(across, way, rank)
    if way == RAY:
        return settings
    settings |= _make_node_settings(across, rank) if way == NATIVE else {}
    engines, local = _read_flag_number(values, user_flags, DATA), _read_flag_number(values, user_flags, LOCAL)
    if engines == local * across.hosts:  # each engine is inside one host
        settings |= _make_engine_settings(across, local, rank)
    if not is_client_facing(user_flags, rank):
        because = "this host computes for the first one, which alone answers clients"
        settings[HEADLESS] = Value(value=True, because=because)
    return settings


def is_client_facing(user_flags: UserFlags, rank: int) -> bool:
    """Return whether a host answers clients: the first, or every one behind the user's load balancer."""
    return rank == 0 or bool(_OWN_SERVERS & set(user_flags.flags))


def _choose_start_way(across: Across, values: Mapping[str, Value], user_flags: UserFlags) -> str:
    """Return how the ranks are started."""
    ways = across.reach.ways
    if NATIVE in ways and (not user_flags.known or NODES in user_flags.known):
        return NATIVE
    return ENGINES if ENGINES in ways and _read_flag_number(values, user_flags, DATA) > 1 else RAY


def _read_flag_number(values: Mapping[str, Value], user_flags: UserFlags, name: str) -> int:
    """Return a flag's number, the user's or the decided one; 1 if there is none."""
    return user_flags.number(name) or int(str(values[name].value) if name in values else 1)


def _make_rank_variables(across: Across, way: str, rank: int) -> dict[str, Value]:
    settings = {}
    if across.interface:
        settings = {name: Value(across.interface, across.because) for name in across.reach.interfaces}
    if rank == 0 and is_ip(across.address):
        because = "the address of this host that the others connect to; else vLLM takes that of the default route"
        settings[HOST_IP] = Value(across.address, because)
    if way == RAY:
        for words in across.reach.environment:
            name, _, value = words.partition("=")
            settings[name] = Value(value, "Ray's workers need it on every host")
    return settings


def _make_node_settings(across: Across, rank: int) -> dict[str, Value]:
    because = f"rank {rank} of {across.hosts} hosts" + (f"; {NODE_RANK} selects another" if rank == 0 else "")
    address = "the first host, where all ranks meet" + ("" if across.given else f"; {HEAD} stands for its address")
    return {
        NODE_RANK: Value(str(rank), because),
        MASTER: Value(across.address, address),
        MASTER_PORT: Value(str(across.port), "vLLM's usual port, the same on every host"),
    }


def _make_engine_settings(across: Across, local: int, rank: int) -> dict[str, Value]:
    settings = {
        DATA_ADDRESS: Value(across.address, "the first host, whose API server distributes the requests"),
        RPC_PORT: Value(str(across.rpc), "vLLM's usual port, the same on every host"),
    }
    if rank:  # on the first host it would make the API server one of this host's engines only
        last = (rank + 1) * local - 1
        settings[START_RANK] = Value(str(rank * local), f"engines {rank * local} to {last} run on this host")
    return settings


def is_ip(address: str) -> bool:
    """Return whether an address is a number, which Ray and vLLM's sockets can bind to, and not a name."""
    return ":" in address or address.replace(".", "").isdecimal()


# --- commands -------------------------------------------------------------------------------------------------------


def of_rank(across: Across, values: Mapping[str, Value], user_flags: UserFlags, rank: int) -> UserFlags:
    """Return the user's command line for one host: without the ranks of another, and without what vLLM refuses."""
    native = _choose_start_way(across, values, user_flags) == NATIVE
    refused = {name for name in HOSTS if not native or (user_flags.known and name not in user_flags.known)}
    foreign_flags = set(_OF_ONE_RANK) if rank != across.rank else set()
    tokens = user_flags
    for name in refused | foreign_flags:
        tokens = tokens._replace(tokens=remove_flag(name, tokens)[1])
    flags = {name: flag for name, flag in user_flags.flags.items() if name not in foreign_flags}
    return tokens._replace(flags=flags)


def keep_rank_settings(values: Mapping[str, Value], mine: UserFlags) -> dict[str, Value]:
    """Return a layer of settings without the flags that only another host's command line has."""
    return {name: value for name, value in values.items() if name not in _OF_ONE_RANK or name in mine.flags}


def make_serve_command(
    profile: Mapping[str, Any], chosen: Mapping[str, Chosen], words: tuple[str, ...], user_flags: UserFlags
) -> tuple[str, ...]:
    """Return the server's command; `words` are its flags. Only `vllm serve` starts a host without an API server."""
    headless = HEADLESS in chosen and chosen[HEADLESS].value.value is True
    if not headless:
        return (profile["python"], "-m", profile["module"], *words)
    model_names, rest = remove_flag(MODEL_NAME, user_flags._replace(tokens=words))
    return (profile["python"], "-m", COMMANDS, "serve", *model_names, *rest)


def ray_head(python: str, across: Across, devices: int) -> tuple[str, ...]:
    """Return the command that starts Ray's head on a host with so many devices."""
    address = ("--node-ip-address", across.address) if is_ip(across.address) else ()
    return (*_make_ray_start(python), "--head", "--port", str(RAY_PORT), *address, *_make_gpu_count(across, devices))


def ray_worker(python: str, across: Across, devices: int) -> tuple[str, ...]:
    """Return the command that joins Ray's head with so many devices, and runs until it ends."""
    head = f"{across.address}:{RAY_PORT}" if ":" not in across.address else f"[{across.address}]:{RAY_PORT}"
    return (*_make_ray_start(python), "--address", head, *_make_gpu_count(across, devices), "--block")


def _make_ray_start(python: str) -> tuple[str, ...]:
    return (python, "-m", "ray.scripts.scripts", "start")


def _make_gpu_count(across: Across, devices: int) -> tuple[str, ...]:
    return ("--num-gpus", str(devices)) if across.reach.ray_counts else ()


def devices_of_rank(across: Across, values: Mapping[str, Value], user_flags: UserFlags) -> int:
    """Return the devices of each host that serve."""
    sizes = (_read_flag_number(values, user_flags, name) for name in (TENSOR, PIPELINE, DATA))
    return prod(sizes) // across.hosts


def make_group(across: Across, values: Mapping[str, Value], user_flags: UserFlags) -> Group:
    """Return the place of this host among the others."""
    silent = not is_client_facing(user_flags, across.rank)
    return Group(across.rank, across.hosts, across.address, silent, uses_ray(across, values, user_flags), across.given)


def uses_ray(across: Across, values: Mapping[str, Value], user_flags: UserFlags) -> bool:
    """Return whether Ray starts the ranks."""
    return _choose_start_way(across, values, user_flags) == RAY
