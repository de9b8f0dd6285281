"""The possible splits of a model over devices, best first. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.text import counted
from entrypoints.decide.spread.hosts import count_hosts, over_hosts
from entrypoints.decide.spread.obstacles import expert_obstacle, keeps_experts_whole, obstacle, sizes
from entrypoints.decide.spread.room import Rules, Split
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import DATA, EXECUTOR, EXPERT, LOCAL, NODES, PIPELINE, TENSOR
from entrypoints.request.vllm_flags import UserFlags

_SEVERAL_HOSTS = {
    "--data-parallel-address",
    "--data-parallel-start-rank",
    "--data-parallel-hybrid-lb",
    "--data-parallel-backend",
    "--node-rank",
}
"""Flags that are set only for a server on several hosts."""


class Space(NamedTuple):
    """The available devices, and the parallelism that the user set."""

    devices: int
    """Of this host."""
    wide: int
    """The number of devices that the fastest links join."""
    aim: str | None
    """latency, throughput, or None."""
    tensor: int | None
    pipeline: int | None
    data: int | None
    """Engines on this host."""
    engines: int | None
    """On all hosts."""
    experts: bool | None
    nodes: bool
    """Whether the user runs the server on several hosts."""
    hosts: int = 1
    """Equal hosts that serve one model together."""
    between: str = ""
    """The link between hosts: fabric, rdma; empty if it is not known."""


def read_space(given: UserFlags, count: int, wide: int, between: str = "") -> Space:
    """Return the available devices and the user's parallelism. Raises USAGE."""
    expert = given.flag(EXPERT)
    hosts = count_hosts(given)
    several = hosts > 1 or bool(_SEVERAL_HOSTS & set(given.flags))
    engines = given.number(DATA)
    ray = given.flag(EXECUTOR) == "ray" or bool(given.variable("RAY_ADDRESS"))
    return Space(
        devices=count,
        wide=wide,
        aim=given.intents.optimize,
        tensor=given.number(TENSOR),
        pipeline=given.number(PIPELINE),
        data=given.number(LOCAL) or (engines and max(1, engines // hosts)),
        engines=engines or given.number(LOCAL),
        experts=None if expert is None else expert != "False",
        nodes=several or ray,
        hosts=hosts,
        between=between,
    )


def splits(model: ModelFacts, rules: Rules, space: Space, loaded: int) -> tuple[Split, ...]:
    """Return every split that keeps the user's parallelism, each with as many engines as there are devices for.

    `loaded` is the bytes of all weights. On one host the order is tensor parallelism over the fastest links, then
    pipelines, then tensor parallelism over slow links; of each, few devices first. Several hosts have an order of their
    own, best first. Raises USAGE, and HOST for too few devices.
    """
    most = space.devices // min(space.data or 1, space.devices)
    _check_fixed(model, rules, space)
    if space.hosts > 1:
        return over_hosts(model, rules, space, loaded)
    pipeline = space.pipeline or 1
    if space.nodes and fixed(space).world * (space.data or 1) > space.devices:
        return (_split(model, rules, space, space.tensor or 1, pipeline),)
    possible = (space.tensor,) if space.tensor else sizes(model, rules, most, space.experts)
    within = [size for size in possible if size <= space.wide]
    shapes = [(size, pipeline) for size in within]
    if rules.pipeline and not space.tensor and not space.pipeline:
        shapes += _staged(model, within, most)
    shapes += [(size, pipeline) for size in possible if size > space.wide]
    fitting = [(tensor, stages) for tensor, stages in shapes if tensor * stages <= most]
    if not fitting:
        raise _too_few(rules, space, most)
    return tuple(_split(model, rules, space, tensor, stages) for tensor, stages in fitting)


def _too_few(rules: Rules, space: Space, most: int) -> EntrypointError:
    stages = f" with {space.pipeline} pipeline stages" if space.pipeline else ""
    supported = ", ".join(map(str, rules.sizes)) or "1"
    verb = "is" if most == 1 else "are"
    message = (
        f"the runtime supports tensor-parallel sizes {supported}{stages}: {counted(most, 'device')} {verb} available"
    )
    return EntrypointError(HOST, message, "give the container more devices, or lower -pp and -dp")


def _staged(model: ModelFacts, within: list[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield (tensor size, stages): the widest stages first, of these the fewest; a stage has at least one layer."""
    layers = model.geometry.layers if model.geometry else most
    for size in sorted(within, reverse=True):
        for stages in range(2, min(most // size, layers) + 1):
            yield size, stages


def _split(model: ModelFacts, rules: Rules, space: Space, tensor: int, pipeline: int) -> Split:
    data = space.data or _most_engines(model, rules, space, tensor, pipeline)
    engines = space.engines or data
    if engines > 1 and rules.expert in (
        "needed",
        "many",
    ):  # with slices of every expert the engines would wait for each other
        rules = rules._replace(expert="tp")
    experts = space.experts
    if experts is None:
        experts = keeps_experts_whole(model, rules, tensor * engines)
    return Split(tensor, pipeline, data, experts, engines)


def _most_engines(model: ModelFacts, rules: Rules, space: Space, tensor: int, pipeline: int) -> int:
    """Return how many engines the devices are enough for; one if the user chose the ranks and named no aim."""
    if not rules.data or (space.tensor and not space.aim):
        return 1
    counts = range(space.devices // (tensor * pipeline), 1, -1)
    return next((count for count in counts if not expert_obstacle(model, rules, tensor * count, space.experts)), 1)


def way(split: Split, space: Space) -> int:
    """Return 0 for a split over the fastest links only, 1 for a pipeline of such groups, 2 for one over slow links."""
    if split.tensor > space.wide:
        return 2
    return 0 if split.pipeline == (space.pipeline or 1) else 1


def fixed(space: Space) -> Split:
    """Return the user's parallelism, 1 where it is not set."""
    return Split(space.tensor or 1, space.pipeline or 1, space.data or 1)


def _check_fixed(model: ModelFacts, rules: Rules, space: Space) -> None:
    """Raise USAGE for an impossible parallelism of the user's, with the nearest possible sizes."""
    split, tensor = fixed(space), space.tensor or 1
    needed = split.world * split.data
    if space.hosts > 1 and split.world * (space.engines or 1) > space.devices * space.hosts:
        ranks = counted(split.world * (space.engines or 1), "device")
        message = f"{split.as_flags()} needs {ranks}, {space.hosts} hosts have"
        raise EntrypointError(USAGE, f"{message} {space.devices * space.hosts}", f"lower it, or raise {NODES}")
    if needed > space.devices and not space.nodes:
        hint = f"lower {split.as_flags()}, or set {EXECUTOR} ray or {NODES} for several hosts"
        message = f"{split.as_flags()} needs {counted(needed, 'device')}, available: {space.devices}"
        raise EntrypointError(USAGE, message, hint)
    why = obstacle(model, rules, tensor, space.experts) if space.tensor else ""
    if why:
        near = sizes(model, rules, max(2 * tensor, *rules.sizes, 1), space.experts)
        below, above = [size for size in near if size < tensor], [size for size in near if size > tensor]
        nearest = [*below[-1:], *above[:1]]
        hint = "possible: " + (" or ".join(f"-tp {size}" for size in nearest) or "no size close to it")
        raise EntrypointError(USAGE, f"-tp {tensor}: {why}", hint)
    cut = expert_obstacle(model, rules, (space.engines or 1) * tensor, space.experts)
    if cut and space.engines:
        raise EntrypointError(USAGE, f"-dp {space.engines}: {cut}", f"{EXPERT} keeps experts whole")
    if split.pipeline > 1 and not rules.pipeline:
        raise EntrypointError(USAGE, f"-pp {split.pipeline}: this stack has no pipeline parallelism", "leave out -pp")
