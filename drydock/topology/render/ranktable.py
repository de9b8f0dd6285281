"""Recorded hosts of a plan → Ascend's ranktables: which chip has which address and which rank. Pure.

Version 1.0 is omni-infer's (tools/scripts/pd_ranktable_tools.py: gen, merge-local, merge-all), for each rank, for each
server of several nodes, and for all. Version 1.2 is vllm-ascend's up to 0.11 (examples/disaggregate_prefill_v1/
gen_ranktable.py, #1528), for prefill and decode. Texts and numbers are of the same type as the tools write them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, StringConstraints

from drydock.core.errors import InputError
from drydock.core.files import format_json, parse_any_json
from drydock.model.record import Record, dump_record
from drydock.topology.plan_model import Rank, Replica, TopologyPlan
from drydock.topology.render.chips import Commands, read_chip_address, read_chip_super_pod
from drydock.topology.render.parts import RANKTABLES
from drydock.topology.topology_arguments import is_ip

CONFIG = "--kv-transfer-config"
READ_BY: Mapping[str, Mapping[str, str]] = {
    "AscendHcclConnectorV1": {"RANK_TABLE_FILE_PATH": "local", "GLOBAL_RANK_TABLE_FILE_PATH": "global"},
    "LLMDataDistCMgrConnector": {"DISAGGREGATED_PREFILL_RANK_TABLE_PATH": "disaggregated"},
}
"""KV connector → variables with the paths of its tables (omni-infer, tools/scripts/pd_run.sh; vllm-ascend #1528)."""


_Number = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,9})$")]
_Address = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$")]
_Many = Annotated[int, Field(ge=1)]


class RankedDevice(Record):
    """A chip of a server."""

    device_id: _Number
    device_ip: _Address
    rank_id: _Number
    """Of the server's or, merged, of the replica's chips."""


class RankedServer(Record):
    """A node."""

    server_id: _Address
    server_ip: _Address
    device: tuple[RankedDevice, ...] = Field(min_length=1)


class LocalTable(Record):
    """One node (server_count is text), or a replica's nodes (a number)."""

    version: Literal["1.0"] = "1.0"
    status: Literal["completed"] = "completed"
    group_id: Literal["0"] = "0"
    server_count: Literal["1"] | _Many
    server_list: tuple[RankedServer, ...] = Field(min_length=1)


class RankedGroup(Record):
    """A replica: prefill first, then decode; omni-infer tells them apart by the number."""

    group_id: _Number
    server_count: _Many
    server_list: tuple[RankedServer, ...] = Field(min_length=1)


class GlobalTable(Record):
    """All replicas."""

    version: Literal["1.0"] = "1.0"
    status: Literal["completed"] = "completed"
    server_group_list: tuple[RankedGroup, ...] = Field(min_length=1)


class RankedChip(Record):
    """A chip of version 1.2; those of a super pod (A3) have its numbers too."""

    server_id: _Address
    device_id: _Number
    device_ip: _Address
    super_pod_id: _Number | None = None
    super_device_id: _Number | None = None
    cluster_id: _Number


class RoleTable(Record):
    """Version 1.2."""

    version: Literal["1.2"] = "1.2"
    server_count: _Number
    prefill_device_list: tuple[RankedChip, ...] = Field(min_length=1)
    decode_device_list: tuple[RankedChip, ...] = Field(min_length=1)
    status: Literal["completed"] = "completed"


class Place(NamedTuple):
    """A replica and one of its ranks."""

    replica: Replica
    rank: Rank


def make_ranktables(plan: TopologyPlan, hosts: Mapping[str, Commands]) -> dict[str, str]:
    """Return name → ranktable; `hosts`: node → recorded commands. Raises InputError with every problem found."""
    problems = [*_find_table_problems(plan, hosts)]
    if problems:
        raise InputError(*problems, hint="record the nodes again, with hccn_tool: facts --record host.json")
    tables: dict[str, Record] = {}
    for replica in plan.replicas:
        servers = _make_servers(replica, hosts)
        for rank, server in zip(replica.ranks, servers, strict=True):
            name = make_local_table_name(rank)
            if name in tables:
                raise InputError(f"node {rank.node}: two ranks would have the ranktable {name}")
            tables[name] = LocalTable(server_count="1", server_list=(server,))
        if len(servers) > 1:
            tables[make_merged_table_name(replica)] = _merge_servers(servers)
    if {"prefill", "decode"} <= {replica.role for replica in plan.replicas}:
        tables[GLOBAL] = _make_global_table(plan, hosts)
        tables[DISAGGREGATED] = _make_role_table(plan, hosts)
    return {name: format_json(_drop_absent(dump_record(table))) for name, table in sorted(tables.items())}


GLOBAL = "global_ranktable_merge.json"
DISAGGREGATED = "ranktable.json"


def make_local_table_name(rank: Rank) -> str:
    """Return the name of a rank's table, which omni-infer makes of the address and the devices."""
    return f"local_ranktable_{rank.address}_{''.join(map(str, rank.devices))}.json"


def make_merged_table_name(replica: Replica) -> str:
    """Return the name of a server's table over its nodes."""
    return f"local_ranktable_merge_{replica.group}-{replica.number}.json"


def add_ranktable_paths(plan: TopologyPlan) -> TopologyPlan:
    """Return the plan with the variables of READ_BY for ranks whose connector reads a table; what is set wins."""
    replicas = tuple(
        replica.model_copy(
            update={
                "ranks": tuple(
                    rank.model_copy(update={"env": {**_list_table_variables(replica, rank), **rank.env}})
                    for rank in replica.ranks
                )
            }
        )
        for replica in plan.replicas
    )
    return plan.model_copy(update={"replicas": replicas})


def _list_table_variables(replica: Replica, rank: Rank) -> dict[str, str]:
    """Return the variables with which a rank finds its tables. Of a server on several nodes, all read one."""
    local = make_merged_table_name(replica) if len(replica.ranks) > 1 else make_local_table_name(rank)
    names = {"local": local, "global": GLOBAL, "disaggregated": DISAGGREGATED}
    variables = READ_BY.get(_read_connector_name(rank), {})
    return {variable: locate_ranktable(names[kind]) for variable, kind in variables.items()}


def _read_connector_name(rank: Rank) -> str:
    """Return the name of a rank's KV connector; empty without one, or if its data is not JSON."""
    pairs = zip(rank.words, (*rank.words[1:], ""), strict=True)
    texts = [word.partition("=")[2] or after for word, after in pairs if word.partition("=")[0] == CONFIG]
    try:
        data = parse_any_json(texts[-1]) if texts else {}
    except ValueError:
        return ""
    return str(data.get("kv_connector", "")) if isinstance(data, dict) else ""


def locate_ranktable(name: str) -> str:
    """Return where a container has a ranktable."""
    return f"{RANKTABLES}/{name}"


# --- version 1.0 ----------------------------------------------------------------------------------------------------


def _make_servers(replica: Replica, hosts: Mapping[str, Commands]) -> list[RankedServer]:
    """Return a replica's nodes in the order of their ranks, with each node's own rank numbers."""
    return [
        RankedServer(
            server_id=rank.address,
            server_ip=rank.address,
            device=tuple(
                RankedDevice(
                    device_id=str(device), device_ip=read_chip_address(hosts[rank.node], device), rank_id=str(place)
                )
                for place, device in enumerate(rank.devices)
            ),
        )
        for rank in replica.ranks
    ]


def _number_chips(servers: Sequence[RankedServer]) -> tuple[RankedServer, ...]:
    """Return nodes whose chips are numbered from 0 on, in order."""
    numbers = iter(range(sum(len(server.device) for server in servers)))
    return tuple(
        server.model_copy(
            update={
                "device": tuple(device.model_copy(update={"rank_id": str(next(numbers))}) for device in server.device)
            }
        )
        for server in servers
    )


def _merge_servers(servers: Sequence[RankedServer]) -> LocalTable:
    return LocalTable(server_count=len(servers), server_list=_number_chips(servers))


def _make_global_table(plan: TopologyPlan, hosts: Mapping[str, Commands]) -> GlobalTable:
    """Return the groups: 0 … nP-1 are the prefill replicas, nP … the decode replicas."""
    tables = [_number_chips(_make_servers(replica, hosts)) for replica in _order_replicas(plan)]
    groups = (
        RankedGroup(group_id=str(number), server_count=len(servers), server_list=servers)
        for number, servers in enumerate(tables)
    )
    return GlobalTable(server_group_list=tuple(groups))


def _order_replicas(plan: TopologyPlan) -> list[Replica]:
    """Return the replicas, prefill first."""
    return [replica for role in ("prefill", "decode") for replica in plan.replicas if replica.role == role]


# --- version 1.2 ----------------------------------------------------------------------------------------------------


def _make_role_table(plan: TopologyPlan, hosts: Mapping[str, Commands]) -> RoleTable:
    """Return vllm-ascend's table; cluster_id counts all chips from 1 on, prefill first."""
    places = [Place(replica, rank) for replica in _order_replicas(plan) for rank in replica.ranks]
    chips: dict[str, list[RankedChip]] = {"prefill": [], "decode": []}
    number = 0
    for replica, rank in places:
        for device in rank.devices:
            number += 1
            chips[replica.role].append(_make_ranked_chip(rank, device, number, hosts[rank.node]))
    return RoleTable(
        server_count=str(len({rank.node for _, rank in places})),
        prefill_device_list=tuple(chips["prefill"]),
        decode_device_list=tuple(chips["decode"]),
    )


def _make_ranked_chip(rank: Rank, device: int, number: int, commands: Commands) -> RankedChip:
    pod = read_chip_super_pod(commands, device)
    return RankedChip(
        server_id=rank.address,
        device_id=str(device),
        device_ip=read_chip_address(commands, device, kind="-vnic" if pod else "-ip"),
        super_pod_id=pod[0] if pod else None,
        super_device_id=pod[1] if pod else None,
        cluster_id=str(number),
    )


def _drop_absent(table: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the super pod's numbers where there are none."""
    fields = {key: value for key, value in table.items() if value is not None}
    for key, value in fields.items():
        if isinstance(value, list):
            fields[key] = [_drop_absent(item) for item in value]
    return fields


# --- checks ---------------------------------------------------------------------------------------------------------


def _find_table_problems(plan: TopologyPlan, hosts: Mapping[str, Commands]) -> Iterator[str]:
    places = [Place(replica, rank) for replica in plan.replicas for rank in replica.ranks]
    for replica, rank in places:
        yield from _find_host_problems(rank, hosts.get(rank.node), f"{replica.group}-{replica.number} rank {rank.rank}")
    yield from _find_uneven_roles(plan)
    yield from _find_unordered_replicas(plan)
    yield from _find_repeated_names(
        "chip", ((f"{rank.node} {device}", "") for _, rank in places for device in rank.devices)
    )
    yield from _find_repeated_names("address", _list_known_addresses(places, hosts))


def _find_host_problems(rank: Rank, commands: Commands | None, where: str) -> Iterator[str]:
    if not is_ip(rank.address) or ":" in rank.address:
        yield f"{where}: node {rank.node}: found the address {rank.address!r}, expected an IPv4 address for server_id"
    if not rank.devices:
        yield f"{where}: found no device; a ranktable lists chips"
    if commands is None:
        yield f"{where}: node {rank.node} has no recorded host"
        return
    for device in rank.devices:
        try:
            pod = read_chip_super_pod(commands, device)
            read_chip_address(commands, device)
            if pod:
                read_chip_address(commands, device, kind="-vnic")
        except InputError as error:
            yield from (f"{where}: node {rank.node}: {problem}" for problem in error.problems)


def _find_uneven_roles(plan: TopologyPlan) -> Iterator[str]:
    """Yield a role whose nodes have different numbers of chips, which omni-infer's tool refuses."""
    for role in ("prefill", "decode"):
        numbers = {len(rank.devices) for replica in plan.replicas if replica.role == role for rank in replica.ranks}
        if len(numbers) > 1:
            yield f"{role}: found {sorted(numbers)} chips on a node, expected the same number on each"


def _find_unordered_replicas(plan: TopologyPlan) -> Iterator[str]:
    """Yield a prefill replica whose ranks are not in the order in which omni-infer's Ray starts them.

    That is the first node, and then the others sorted by address as text.
    """
    for replica in plan.replicas:
        later_addresses = [rank.address for rank in replica.ranks[1:]]
        if replica.role == "prefill" and later_addresses != sorted(later_addresses):
            name = f"{replica.group}-{replica.number}"
            yield f"{name}: found the nodes {', '.join(later_addresses)} after the first, expected them sorted as text"


def _list_known_addresses(places: Iterable[Place], hosts: Mapping[str, Commands]) -> Iterator[tuple[str, str]]:
    """Yield each chip's address, as far as one is known."""
    for _, rank in places:
        for device in rank.devices:
            try:
                yield read_chip_address(hosts.get(rank.node, {}), device), f"{rank.node} {device}"
            except InputError:
                continue


def _find_repeated_names(what: str, items: Iterable[tuple[str, str]]) -> Iterator[str]:
    owners: dict[str, str] = {}
    for name, owner in items:
        if name in owners:
            pair_text = f" of {owners[name]} and {owner}" if owner else ""
            yield f"{what} {name}: found twice{pair_text}, expected once"
        owners[name] = owner
