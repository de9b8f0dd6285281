"""The candidates: every split of a model over the devices, whether or not the model allows it and fits. Pure.

On one host they stand in this order: tensor parallelism over the fastest links, then pipelines, then tensor parallelism
over slow links; of each, few devices first.

Over several equal hosts, ranks that exchange data in every layer (tensor parallelism) share a host, or a fabric that
joins hosts. Pipeline stages exchange only activations, so any link does. Engines of a mixture-of-experts model exchange
tokens in every layer, which takes RDMA. Sources: vLLM docs, parallelism and scaling (tensor parallelism within a node,
pipeline parallelism across) and data parallel deployment (engines over nodes, with expert parallelism); vLLM 0.32
config/parallel.py (nnodes_within_dp, local_world_size): all ranks together are divisible by the number of nodes, and
each node holds consecutive ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

from entrypoints.decide.parallelism.fit_input import FitCase
from entrypoints.decide.parallelism.hosts import ENGINES, NATIVE, RAY
from entrypoints.decide.parallelism.rules import READ_FOR_LATENCY, Rules, Space, Split
from entrypoints.model.read import ModelFacts


def list_split_candidates(case: FitCase) -> Iterator[Split]:
    """Yield the splits, each with as many engines as there are devices for; on one host they keep what the user set."""
    return _over_hosts(case) if case.space.hosts > 1 else _on_one_host(case)


# --- one host -------------------------------------------------------------------------------------------------------


def _on_one_host(case: FitCase) -> Iterator[Split]:
    rules, space = case.rules, case.space
    for tensor, stages in _list_shapes(case.model, rules, space):
        data = space.data or 1
        if rules.data and not space.data and (space.aim or not space.tensor):  # else the user chose the ranks
            data = max(1, space.devices // (tensor * stages))
        yield Split(tensor, stages, data, engines=space.engines or data)


def _list_shapes(model: ModelFacts, rules: Rules, space: Space) -> Iterator[tuple[int, int]]:
    """Yield (tensor size, stages)."""
    stages = space.pipeline or 1
    if space.needs_more_hosts:
        yield space.tensor or 1, stages
        return
    sizes = (space.tensor,) if space.tensor else range(1, space.most // stages + 1)
    yield from ((size, stages) for size in sizes if size <= space.wide)
    if rules.pipeline and not space.tensor and not space.pipeline:
        yield from _list_staged_shapes(model, min(space.wide, space.most), space.most)
    yield from ((size, stages) for size in sizes if size > space.wide)


def _list_staged_shapes(model: ModelFacts, widest: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield (tensor size, stages): the widest stages first, of these the fewest; a stage has at least one layer."""
    for size in range(widest, 0, -1):
        for stages in range(2, min(most // size, _count_layers(model, most)) + 1):
            yield size, stages


def _count_layers(model: ModelFacts, unknown: int) -> int:
    """Return the number of the model's layers, the most stages of a pipeline."""
    return model.geometry.layers if model.geometry else unknown


# --- several hosts --------------------------------------------------------------------------------------------------


def _over_hosts(case: FitCase) -> Iterator[Split]:
    """Yield engines inside a host, pipelines, and tensor parallelism over hosts, few hosts first."""
    space, within = case.space, _list_sizes_in_host(case.rules, case.space)
    for span in _list_host_spans(case.rules, space):
        if span == 1:
            for tensor in _by_aim(case, within):
                groups_per_host = space.devices // tensor
                yield Split(tensor, 1, groups_per_host, engines=groups_per_host * space.hosts)
        else:
            most = span * space.devices
            sizes = [most] if case.rules.whole else range(most, 0, -span)
            yield from (Split(tensor, 1, 1, engines=space.hosts // span) for tensor in sizes)
        for tensor in within if case.rules.pipeline else ():
            stages = span * (space.devices // tensor)
            if 1 < stages <= _count_layers(case.model, stages):
                yield Split(tensor, stages, 1, engines=space.hosts // span)


def _list_host_spans(rules: Rules, space: Space) -> list[int]:
    """Return the numbers of hosts that one engine can span, ascending. Ray's executor runs one engine."""
    ways = set(rules.ways)
    several = [span for span in range(2, space.hosts + 1) if space.hosts % span == 0]
    if not rules.data or NATIVE not in ways:
        several = several[-1:] if {NATIVE, RAY} & ways else []
    return [1, *several] if rules.data and {NATIVE, ENGINES} & ways else several


def _list_sizes_in_host(rules: Rules, space: Space) -> list[int]:
    """Return the tensor-parallel sizes inside a host: those that use most devices, of these the widest."""
    if rules.whole:
        return [space.devices] if space.devices <= space.wide else []
    devices_used = {size: space.devices // size * size for size in range(1, min(space.devices, space.wide) + 1)}
    return sorted(devices_used, key=lambda size: (-devices_used[size], -size))


def _by_aim(case: FitCase, within: list[int]) -> list[int]:
    """Return the sizes for engines that each fit a host: for throughput the narrowest first, else the widest useful."""
    if case.space.aim == "throughput":
        return sorted(within)
    return sorted(within, key=lambda size: size > 1 and case.loaded // size < READ_FOR_LATENCY)


def with_users_numbers(space: Space) -> Iterator[Split]:
    """Yield splits over several hosts that have the user's numbers but no usual form, such as two pipelines a host."""
    pipeline, engines = space.pipeline or 1, space.engines or 1
    most = max(1, space.devices * space.hosts // (pipeline * engines))
    for tensor in [space.tensor] if space.tensor else range(most, 0, -1):
        if tensor <= most and tensor * pipeline * engines % space.hosts == 0:
            yield Split(tensor, pipeline, space.data or max(1, engines // space.hosts), engines=engines)
