"""Which ways there are to spread a model over devices, best first, and why a way is not possible. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from entrypoints.decide import GIB
from entrypoints.decide.room import Rules, Split
from entrypoints.errors import USAGE, EntrypointError
from entrypoints.modelfacts import ModelFacts
from entrypoints.vllm_flags import Given

TENSOR = "--tensor-parallel-size"
PIPELINE = "--pipeline-parallel-size"
DATA = "--data-parallel-size"
LOCAL = "--data-parallel-size-local"
EXPERT = "--enable-expert-parallel"
NODES = "--nnodes"
EXECUTOR = "--distributed-executor-backend"

WORTH_SPLITTING = GIB
"""Bytes of weights per rank below which splitting further makes no answer faster: a device reads them in about the
0.3 ms (at 3 TB/s) to 1 ms that the all-reduces of one token take."""


class Space(NamedTuple):
    """What there is to spread over, and what the user fixed."""

    devices: int
    """Of this host."""
    wide: int
    """Of these, how many the fastest links join."""
    aim: str | None
    """latency, throughput, or None."""
    tensor: int | None
    pipeline: int | None
    data: int | None
    """Engines on this host."""
    experts: bool | None
    nodes: bool
    """Whether the user spreads one engine over several hosts."""


def space(given: Given, count: int, wide: int) -> Space:
    """Read what the user fixed. Raises USAGE."""
    expert = given.flag(EXPERT)
    nodes = (given.number(NODES) or 1) > 1 or given.flag(EXECUTOR) == "ray" or bool(given.variable("RAY_ADDRESS"))
    return Space(
        devices=count,
        wide=wide,
        aim=given.wishes.optimize,
        tensor=given.number(TENSOR),
        pipeline=given.number(PIPELINE),
        data=given.number(LOCAL) or given.number(DATA),
        experts=None if expert is None else expert != "False",
        nodes=nodes,
    )


# --- one model over so many ranks -----------------------------------------------------------------------------------


def obstacle(model: ModelFacts, rules: Rules, tensor: int, experts: bool | None = None) -> str:
    """Say why tensor parallelism over so many ranks is impossible; empty where it is possible."""
    geometry = model.geometry
    if rules.sizes and tensor not in rules.sizes:
        return f"the runtime splits over {', '.join(map(str, rules.sizes))} only"
    if geometry is None or tensor == 1:
        return ""
    if not rules.pads_heads and not geometry.divides(tensor):
        return f"{geometry.heads} heads and {geometry.kv_heads} KV heads do not divide by {tensor}"
    if geometry.experts:
        spread = experts if experts is not None else _spreads(model, rules, tensor)
        return "" if spread else _cut(geometry.expert_width, tensor, model.group, "an expert's width")
    return _cut(geometry.intermediate, tensor, model.group, "the feed-forward width")


def _cut(width: int, ranks: int, group: int, what: str) -> str:
    if not width or width % (ranks * max(1, group)) == 0:
        return ""
    if width % ranks:
        return f"{what} of {width} does not divide by {ranks}"
    return f"{what} of {width} over {ranks} ranks cuts the {group} numbers that share a quantisation scale"


def _spreads(model: ModelFacts, rules: Rules, tensor: int) -> bool:
    """Tell whether ranks hold whole experts, where the user does not say."""
    geometry = model.geometry
    if geometry is None or tensor == 1 or geometry.experts < tensor:
        return False
    needed = bool(_cut(geometry.expert_width, tensor, model.group, ""))
    return rules.expert == "tp" or (rules.expert == "needed" and needed)


def spread_because(model: ModelFacts, tensor: int) -> str:
    """Say why ranks hold whole experts."""
    geometry = model.geometry
    if geometry is None:
        return ""
    cut = _cut(geometry.expert_width, tensor, model.group, "an expert's width")
    each = f"each of {tensor} ranks holds {geometry.experts // tensor} of {geometry.experts} experts whole"
    return f"{cut}; so {each}" if cut else f"{each}, which computes larger matrices than {tensor} slices of every one"


def sizes(model: ModelFacts, rules: Rules, most: int, experts: bool | None = None) -> tuple[int, ...]:
    """Return every possible tensor-parallel size, ascending; without heads to go by, powers of two."""
    numbers: Iterable[int] = range(1, most + 1)
    if model.geometry is None:
        numbers = (number for number in numbers if number & (number - 1) == 0)
    return tuple(number for number in numbers if not obstacle(model, rules, number, experts))


# --- all ways -------------------------------------------------------------------------------------------------------


def splits(model: ModelFacts, rules: Rules, there: Space, loaded: int) -> tuple[Split, ...]:
    """Return every way, best first, that keeps what the user fixed; `loaded` is the bytes of all weights.

    Tensor parallelism over few devices first, then with a pipeline, and only then tensor parallelism over slow links.
    For latency the most devices come first that still have something to do. Raises USAGE.
    """
    most = there.devices // min(there.data or 1, there.devices)
    _check_fixed(model, rules, there)
    possible = (there.tensor,) if there.tensor else sizes(model, rules, most, there.experts)
    if there.nodes and there.tensor and there.tensor * (there.pipeline or 1) > there.devices:
        return (_split(model, rules, there, there.tensor, there.pipeline or 1),)
    within = [size for size in possible if size <= there.wide or there.tensor]
    flat = [(size, there.pipeline or 1) for size in _by_aim(within, there, loaded)]
    staged = [] if there.tensor or there.pipeline or not rules.pipeline else list(_staged(model, within, most))
    across = [(size, there.pipeline or 1) for size in possible if size not in within]
    fitting = ((tensor, pipeline) for tensor, pipeline in (*flat, *staged, *across) if tensor * pipeline <= most)
    return tuple(_split(model, rules, there, tensor, pipeline) for tensor, pipeline in fitting)


def _by_aim(within: list[int], there: Space, loaded: int) -> list[int]:
    if there.aim != "latency":
        return within
    useful = [size for size in within if loaded // size >= WORTH_SPLITTING]
    return useful[::-1] + [size for size in within if size not in useful]


def _staged(model: ModelFacts, within: list[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield pipelines, those of the widest stages first and of these the shortest; a stage needs a layer."""
    layers = model.geometry.layers if model.geometry else most
    ways = ((size, stages) for size in within for stages in range(2, min(most // size, layers) + 1))
    yield from sorted(ways, key=lambda way: (-way[0], way[1]))


def _split(model: ModelFacts, rules: Rules, there: Space, tensor: int, pipeline: int) -> Split:
    data = there.data or 1
    if there.data is None and there.aim == "throughput" and rules.data:
        data = max(1, there.devices // (tensor * pipeline))
    experts = _spreads(model, rules, tensor) if there.experts is None else there.experts
    return Split(tensor, pipeline, data, experts)


def _check_fixed(model: ModelFacts, rules: Rules, there: Space) -> None:
    """Refuse what the user fixed where it cannot be, naming the nearest that can."""
    tensor, pipeline, data = there.tensor or 1, there.pipeline or 1, there.data or 1
    needed = tensor * pipeline * data
    if needed > there.devices and not there.nodes:
        flags = Split(tensor, pipeline, data).words()
        hint = f"lower {flags}, or set {EXECUTOR} ray or {NODES} for several hosts"
        raise EntrypointError(USAGE, f"{flags} needs {needed} devices, {there.devices} may be used here", hint)
    why = obstacle(model, rules, tensor, there.experts) if there.tensor else ""
    if why:
        near = sizes(model, rules, max(2 * tensor, *rules.sizes, 1), there.experts)
        lower, higher = (n for n in near if n < tensor), (n for n in near if n > tensor)
        first, *others = (f"-tp {n}" for n in (*sorted(lower)[-1:], *sorted(higher)[:1]))
        hint = f"{first} is possible" + "".join(f", and {other}" for other in others)
        raise EntrypointError(USAGE, f"-tp {tensor}: {why}", hint)
    if pipeline > 1 and not rules.pipeline:
        raise EntrypointError(USAGE, f"-pp {pipeline}: this stack has no pipeline parallelism", "leave out -pp")
