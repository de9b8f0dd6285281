"""The splits of a model over several equal hosts, best first, and why. Pure.

Ranks that exchange data in every layer (tensor parallelism) share a host, or a fabric that joins hosts. Pipeline stages
exchange only activations, so any link does. Engines of a mixture-of-experts model exchange tokens in every layer, which
takes RDMA. Sources: vLLM docs, parallelism and scaling (tensor parallelism within a node, pipeline parallelism across)
and data parallel deployment (engines over nodes, with expert parallelism); vLLM 0.32 config/parallel.py: all ranks
together are divisible by the number of nodes, and each node holds consecutive ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.records import Facts, Value
from entrypoints.core.text import counted
from entrypoints.decide.records import Thresholds
from entrypoints.decide.spread.obstacles import expert_obstacle, keeps_experts_whole, sizes
from entrypoints.decide.spread.room import READ_FOR_LATENCY, DeviceRoom, Rules, Split
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import DATA, EXECUTOR, EXPERT, LOCAL, NODES, PIPELINE, TENSOR
from entrypoints.request.vllm_flags import UserFlags

if TYPE_CHECKING:
    from entrypoints.decide.spread.layouts import Space

NATIVE, RAY, ENGINES = "native", "ray", "engines"
"""Ways to run on several hosts: vLLM's own launcher (--nnodes), Ray, or only data-parallel engines (vLLM before
0.12, which has no --nnodes)."""

FABRIC, RDMA, SLICE = "fabric", "rdma", "slice"
"""Links between hosts: one domain of the devices' own links, RDMA. A slice is a fabric if the environment names its
hosts."""

SLICE_HOSTS = "TPU_WORKER_HOSTNAMES"
"""The hosts of a TPU slice, separated by commas. Source: Google Kubernetes Engine docs, TPU environment variables."""

_MOST_HOSTS = 16


class Reach(NamedTuple):
    """How an image runs a model over several hosts: data of its accelerator and stack."""

    ways: tuple[str, ...] = ()
    """NATIVE, RAY, ENGINES; none if it serves on one host only."""
    link: str = ""
    """The link between hosts that the devices themselves have: FABRIC, RDMA, SLICE; empty if it is the machine's."""
    interfaces: tuple[str, ...] = ("GLOO_SOCKET_IFNAME",)
    """Variables that name the network interface, one for each communicator."""
    environment: tuple[str, ...] = ()
    """NAME=VALUE for each rank."""
    module: str = "vllm.entrypoints.cli.main"
    """Module that starts ranks without an API server."""


def read_reach(thresholds: Thresholds) -> Reach:
    """Return how the image runs a model over several hosts."""
    table, usual = thresholds.table, Reach()

    def words(name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(str, table[name]["value"])) if name in table else default

    return Reach(
        ways=words("hosts_ways", ()),
        link=str(table["hosts_link"]["value"]) if "hosts_link" in table else "",
        interfaces=words("hosts_interfaces", usual.interfaces),
        environment=words("hosts_environment", ()),
        module=str(table["hosts_module"]["value"]) if "hosts_module" in table else usual.module,
    )


def reach(thresholds: Thresholds) -> dict[str, Any]:
    """Return the fields of Rules about several hosts."""
    found = read_reach(thresholds)
    return {"ways": found.ways, "link": found.link}


def link_between(facts: Facts, env: Mapping[str, str], usual: str) -> str:
    """Return the link between hosts: FABRIC, RDMA, or empty if nothing is known of it."""
    if usual == SLICE:
        return FABRIC if "," in env.get(SLICE_HOSTS, "") else ""
    return usual or (RDMA if facts.kernel.get("rdma_devices") else "")


def count_hosts(given: UserFlags) -> int:
    """Return the number of hosts that the user gives, 1 by default. Raises USAGE."""
    return given.number(NODES) or 1


def check_ways(ways: tuple[str, ...], hosts: int) -> None:
    """Raise USAGE if the image cannot serve on several hosts."""
    if not ways:
        hint = "use one host, or an image whose stack serves on several: docs/fit.md"
        raise EntrypointError(USAGE, f"{NODES} {hosts}: this image serves a model on one host only", hint)


# --- the splits -----------------------------------------------------------------------------------------------------


def over_hosts(model: ModelFacts, rules: Rules, space: Space, loaded: int) -> tuple[Split, ...]:
    """Return every split over `space.hosts` equal hosts that keeps the user's parallelism, best first.

    `loaded` is the bytes of all weights. Raises USAGE if the image serves on one host only, HOST if no split exists.
    """
    check_ways(rules.ways, space.hosts)
    found = (_finished(model, rules, space, split) for split in _ordered(model, rules, space, loaded))
    possible = [split for split in found if split is not None and _is_as_set(split, space)]
    if not possible and (space.tensor or space.pipeline or space.engines):
        possible = list(_as_set(model, rules, space))
    if not possible:
        total = space.devices * space.hosts
        message = (
            f"no parallelism uses {counted(space.devices, 'device')} on each of {space.hosts} hosts ({total} in all)"
        )
        raise EntrypointError(HOST, message, "leave out -tp, -pp and -dp, or change the number of hosts")
    return tuple(dict.fromkeys(possible))


def _ordered(model: ModelFacts, rules: Rules, space: Space, loaded: int) -> Iterator[Split]:
    """Yield the splits, best first, by the link between hosts, the kind of model and the aim."""
    within = _within(model, rules, space)
    copies = list(_copies(rules, space, _by_aim(within, space, loaded)))
    inner = list(_pipelined_copies(model, rules, space, within))
    stages = list(_stages(model, rules, space, within))
    wide = list(_wide(model, rules, space))
    whole = [split for split in stages if split.engines == 1]
    order: tuple[list[Split], ...]
    if space.between == FABRIC and space.aim == "latency":
        order = (wide[::-1], copies, inner, stages)
    elif space.between == FABRIC:
        order = (copies, wide, inner, stages)
    elif not (model.geometry and model.geometry.experts):
        order = (copies, stages, inner, wide) if space.pipeline else (copies, inner, stages, wide)
    elif space.between == RDMA or space.aim == "throughput":
        order = (copies, stages, inner, wide)
    else:  # engines of a mixture of experts would exchange tokens over a link that may be slow
        order = (whole, copies, stages, inner, wide)
    for splits in order:
        yield from splits


def _within(model: ModelFacts, rules: Rules, space: Space) -> list[int]:
    """Return the tensor-parallel sizes inside a host: those that use most devices, of these the widest."""
    most = min(space.devices, space.wide)
    possible = sizes(model, rules, most, space.experts)
    used = {size: space.devices // size * size for size in possible if not rules.whole or size == space.devices}
    return sorted(used, key=lambda size: (-used[size], -size))


def _by_aim(within: list[int], space: Space, loaded: int) -> list[int]:
    """Return the sizes for engines that each fit a host: for throughput the narrowest first, else the widest useful."""
    if space.aim == "throughput":
        return sorted(within)
    useful = [size for size in within if size == 1 or loaded // size >= READ_FOR_LATENCY]
    return [*useful, *(size for size in within if size not in useful)]


def _has_engines(rules: Rules) -> bool:
    """Return whether data-parallel engines run on several hosts."""
    return rules.data and bool({NATIVE, ENGINES} & set(rules.ways))


def _copies(rules: Rules, space: Space, within: list[int]) -> Iterator[Split]:
    """Yield engines that each fit a host."""
    for tensor in within if _has_engines(rules) else ():
        each = space.devices // tensor
        yield Split(tensor, 1, each, engines=each * space.hosts)


def _pipelined_copies(model: ModelFacts, rules: Rules, space: Space, within: list[int]) -> Iterator[Split]:
    """Yield one engine for each host, with stages inside it."""
    for tensor in within if _has_engines(rules) and rules.pipeline else ():
        stages = space.devices // tensor
        if 1 < stages <= _layers(model, stages):
            yield Split(tensor, stages, 1, engines=space.hosts)


def _spans(rules: Rules, space: Space) -> list[int]:
    """Return the numbers of hosts that one engine can span, ascending. Ray's executor runs one engine."""
    every = [span for span in range(2, space.hosts + 1) if space.hosts % span == 0]
    if NATIVE in rules.ways:
        return every if rules.data else every[-1:]
    return every[-1:] if RAY in rules.ways else []


def _stages(model: ModelFacts, rules: Rules, space: Space, within: list[int]) -> Iterator[Split]:
    """Yield pipelines over hosts, each stage inside one: engines of fewest hosts first, of these the widest stages."""
    if not rules.pipeline:
        return
    for span in _spans(rules, space):
        for tensor in within:
            stages = span * (space.devices // tensor)
            if stages <= _layers(model, stages):
                yield Split(tensor, stages, 1, engines=space.hosts // span)


def _wide(model: ModelFacts, rules: Rules, space: Space) -> Iterator[Split]:
    """Yield tensor parallelism over hosts, over few hosts first."""
    for span in _spans(rules, space):
        most = span * space.devices
        wider = rules._replace(sizes=tuple(span * size for size in rules.sizes))  # the runtime's sizes are of one host
        even = [size for size in sizes(model, wider, most, space.experts) if size % span == 0]
        if even and not (rules.whole and even[-1] < most):
            yield Split(even[-1], 1, 1, engines=space.hosts // span)


def _layers(model: ModelFacts, unknown: int) -> int:
    return model.geometry.layers if model.geometry else unknown


def _finished(model: ModelFacts, rules: Rules, space: Space, split: Split) -> Split | None:
    """Return the split with its experts placed; None if its ranks cannot hold them."""
    ranks = split.tensor * split.engines
    if split.engines > 1 and rules.expert in ("needed", "many"):  # as in layouts: slices would make the engines wait
        rules = rules._replace(expert="tp")
    if split.engines > 1 and expert_obstacle(model, rules, ranks, space.experts):
        return None
    whole = keeps_experts_whole(model, rules, ranks) if space.experts is None else space.experts
    return split._replace(experts=whole)


def _is_as_set(split: Split, space: Space) -> bool:
    """Return whether a split keeps what the user set."""
    pairs = (
        (space.tensor, split.tensor),
        (space.pipeline, split.pipeline),
        (space.data, split.data),
        (space.engines, split.engines),
    )
    return all(user in (None, own) for user, own in pairs)


def _as_set(model: ModelFacts, rules: Rules, space: Space) -> Iterator[Split]:
    """Yield splits with the user's numbers that no order above has, such as two pipelines on the same hosts."""
    pipeline, engines = space.pipeline or 1, space.engines or 1
    most = max(1, space.devices * space.hosts // (pipeline * engines))
    tensors = [space.tensor] if space.tensor else reversed(sizes(model, rules, most, space.experts))
    for tensor in tensors:
        if tensor <= most and tensor * pipeline * engines % space.hosts == 0:
            split = Split(tensor, pipeline, space.data or max(1, engines // space.hosts), engines=engines)
            yield _finished(model, rules, space, split) or split


def more_hosts(space: Space, fitting: Callable[[Space], Split | None]) -> str:
    """Return the smallest number of such hosts that holds the model, for a hint; empty if 16 do not.

    `fitting` returns the first split in a space that holds the model.
    """
    hosts = 2 * space.hosts
    while hosts <= _MOST_HOSTS:
        split = fitting(space._replace(hosts=hosts, tensor=None, pipeline=None, data=None, engines=None))
        if split is not None:
            return f"{NODES} {hosts} fits: {split.as_flags()}"
        hosts *= 2
    return ""


# --- the values and their reasons -----------------------------------------------------------------------------------


def span(hosts: int, engines: int) -> int:
    """Return the number of hosts that one engine is on."""
    return max(1, hosts // engines)


def host_values(rules: Rules, space: Space, split: Split, room: DeviceRoom) -> dict[str, Value]:
    """Return the parallelism over hosts as settings, with reasons. Empty for one host."""
    if space.hosts == 1:
        return {}
    values = {TENSOR: _tensor_value(space, split, room)}
    if split.pipeline > 1:
        values[PIPELINE] = _pipeline_value(space, split)
    if split.engines > 1:
        values[DATA] = _data_value(space, split)
        values[LOCAL] = _local_value(space, split)
    if split.experts and space.experts is None:
        ranks, where = split.tensor * split.engines, "each pipeline stage" if split.pipeline > 1 else "all hosts"
        values[EXPERT] = Value(value=True, because=f"whole experts are distributed over {ranks} ranks of {where}")
    kind = _executor(rules, space, split)
    return values | ({EXECUTOR: kind} if kind and rules.executors else {})


def describe_link(between: str) -> str:
    """Return what is known of the link between hosts, as a part of a reason."""
    known = {FABRIC: "the devices' own links also join the hosts", RDMA: "RDMA joins the hosts"}
    return known.get(between, "what joins the hosts is not known from this one")


def _tensor_value(space: Space, split: Split, room: DeviceRoom) -> Value:
    link = describe_link(space.between)
    if split.pipeline == 1 and span(space.hosts, split.engines) > 1:
        because = f"one group over {span(space.hosts, split.engines)} hosts: {link}; {room.describe()}"
        return Value(str(split.tensor), because, (f"{space.devices}: only as many devices as one host has",))
    total = space.devices * space.hosts
    because = (
        f"inside a host, {counted(space.devices, 'device')} on each of {space.hosts} equal hosts; {room.describe()}"
    )
    slow = f"{total}: every layer would wait for the network between hosts; {link}"
    fast = f"{total}: not needed; {link}"
    return Value(str(split.tensor), because, (fast if space.between == FABRIC else slow,))


def _pipeline_value(space: Space, split: Split) -> Value:
    spanned = span(space.hosts, split.engines)
    if spanned == 1:
        return Value(str(split.pipeline), f"{split.pipeline} stages in each engine, which is inside one host")
    because = f"the stages of one engine are on {spanned} hosts: only activations cross the link between them"
    one = f"1: with -tp {split.world} every layer would wait for that link"
    return Value(str(split.pipeline), f"{because}; {describe_link(space.between)}", (one,))


def _data_value(space: Space, split: Split) -> Value:
    work = "each with a full copy"
    if split.experts:
        work = f"each with its own attention, the experts distributed over all; {describe_link(space.between)}"
    because = f"{split.engines} engines of {counted(split.world, 'device')} on {space.hosts} hosts, {work}"
    return Value(str(split.engines), because, ("1: the devices of the other engines would stay idle",))


def _local_value(space: Space, split: Split) -> Value:
    spanned = span(space.hosts, split.engines)
    if spanned > 1:
        return Value("1", f"every {spanned} hosts share one engine; vLLM takes its rank from the host's")
    return Value(str(split.data), f"engines on each host, of {split.engines} on all")


def crosses(space: Space, split: Split) -> bool:
    """Return whether a tensor-parallel group uses slower links than the fastest inside a host."""
    spanned = span(space.hosts, split.engines) if split.pipeline == 1 else 1
    slow_network = spanned > 1 and space.between != FABRIC
    return slow_network or -(-split.tensor // spanned) > space.wide


def _executor(rules: Rules, space: Space, split: Split) -> Value | None:
    if span(space.hosts, split.engines) == 1:
        return Value("mp", "worker processes; each engine is inside one host") if "mp" in rules.executors else None
    if NATIVE in rules.ways:
        instead = ("ray: one more service on each host",)
        return Value("mp", f"vLLM's own launcher starts the workers on every host ({NODES})", instead)
    return Value("ray", "Ray starts the workers on every host", ("mp: this version starts them on one host only",))
