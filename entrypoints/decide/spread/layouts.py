"""Which ways there are to spread a model over devices, best first, and why a way is not possible. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.decide.records import GIB
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
"""Flags that only somebody sets who spreads a server over several hosts."""

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
    engines: int | None
    """On all hosts."""
    experts: bool | None
    nodes: bool
    """Whether the user spreads the server over several hosts."""


def space(given: UserFlags, count: int, wide: int) -> Space:
    """Read what the user fixed. Raises USAGE."""
    expert = given.flag(EXPERT)
    hosts = (given.number(NODES) or 1) > 1 or bool(_SEVERAL_HOSTS & set(given.flags))
    ray = given.flag(EXECUTOR) == "ray" or bool(given.variable("RAY_ADDRESS"))
    return Space(
        devices=count,
        wide=wide,
        aim=given.intents.optimize,
        tensor=given.number(TENSOR),
        pipeline=given.number(PIPELINE),
        data=given.number(LOCAL) or given.number(DATA),
        engines=given.number(DATA) or given.number(LOCAL),
        experts=None if expert is None else expert != "False",
        nodes=hosts or ray,
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
    attention = 0 if geometry.latent or not model.group else geometry.heads * geometry.head_size
    cut = _cut(attention, tensor, model.group, "the attention's width")
    if geometry.experts:
        return cut or expert_obstacle(model, rules, tensor, experts)
    return cut or _cut(geometry.intermediate, tensor, model.group, "the feed-forward width")


def expert_obstacle(model: ModelFacts, rules: Rules, ranks: int, experts: bool | None) -> str:
    """Say why so many ranks of all engines cannot share out the experts; empty where they can."""
    spread = experts if experts is not None else _spreads(model, rules, ranks)
    if spread or not model.geometry or not model.geometry.experts:
        return ""
    return _cut(model.geometry.expert_width, ranks, model.group, "an expert's width")


def _cut(width: int, ranks: int, group: int, what: str) -> str:
    if not width or width % (ranks * max(1, group)) == 0:
        return ""
    if width % ranks:
        return f"{what} of {width} does not divide by {ranks}"
    return f"{what} of {width} over {ranks} ranks cuts the {group} numbers that share a quantisation scale"


def _spreads(model: ModelFacts, rules: Rules, ranks: int) -> bool:
    """Tell whether ranks hold whole experts, where the user does not say."""
    geometry = model.geometry
    if geometry is None or ranks == 1 or geometry.experts < ranks:
        return False
    needed = bool(_cut(geometry.expert_width, ranks, model.group, ""))
    return rules.expert == "tp" or (rules.expert == "needed" and needed)


def spread_because(model: ModelFacts, ranks: int) -> str:
    """Say why ranks hold whole experts."""
    geometry = model.geometry
    if geometry is None:
        return ""
    cut = _cut(geometry.expert_width, ranks, model.group, "an expert's width")
    each = f"each of {ranks} ranks holds {geometry.experts // ranks} of {geometry.experts} experts whole"
    return f"{cut}; so {each}" if cut else f"{each}, which computes larger matrices than {ranks} slices of every one"


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
    For latency the most devices come first that still have something to do. Raises USAGE, and HOST for too few devices.
    """
    most = there.devices // min(there.data or 1, there.devices)
    _check_fixed(model, rules, there)
    if there.nodes and fixed(there).world * (there.data or 1) > there.devices:
        return (_split(model, rules, there, there.tensor or 1, there.pipeline or 1),)
    possible = (there.tensor,) if there.tensor else sizes(model, rules, most, there.experts)
    within = [size for size in possible if size <= there.wide or there.tensor]
    flat = [(size, there.pipeline or 1) for size in _by_aim(within, there, loaded)]
    staged = [] if there.tensor or there.pipeline or not rules.pipeline else list(_staged(model, within, most))
    across = [(size, there.pipeline or 1) for size in possible if size not in within]
    fitting = [(tensor, pipeline) for tensor, pipeline in (*flat, *staged, *across) if tensor * pipeline <= most]
    if not fitting:
        raise _too_few(rules, there, most)
    return tuple(_split(model, rules, there, tensor, pipeline) for tensor, pipeline in fitting)


def _too_few(rules: Rules, there: Space, most: int) -> EntrypointError:
    stages = f", times {there.pipeline} stages" if there.pipeline else ""
    message = f"the runtime splits over {', '.join(map(str, rules.sizes)) or 1} devices{stages}: {most} may be used"
    return EntrypointError(HOST, message, "give the container more devices, or lower -pp and -dp")


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
        if data > 1 and expert_obstacle(model, rules, tensor * data, there.experts):
            data = 1
    engines = there.engines or data
    several = engines > 1 and rules.expert == "needed"  # slices of every expert would make engines wait for each other
    wanted = rules._replace(expert="tp") if several else rules
    experts = _spreads(model, wanted, tensor * engines) if there.experts is None else there.experts
    return Split(tensor, pipeline, data, experts, engines)


def fixed(there: Space) -> Split:
    """Return what the user fixed, 1 where nothing."""
    return Split(there.tensor or 1, there.pipeline or 1, there.data or 1)


def _check_fixed(model: ModelFacts, rules: Rules, there: Space) -> None:
    """Refuse what the user fixed where it cannot be, naming the nearest that can."""
    split, tensor = fixed(there), there.tensor or 1
    needed = split.world * split.data
    if needed > there.devices and not there.nodes:
        hint = f"lower {split.words()}, or set {EXECUTOR} ray or {NODES} for several hosts"
        raise EntrypointError(USAGE, f"{split.words()} needs {needed} devices, {there.devices} may be used here", hint)
    why = obstacle(model, rules, tensor, there.experts) if there.tensor else ""
    if why:
        near = sizes(model, rules, max(2 * tensor, *rules.sizes, 1), there.experts)
        around = [*[n for n in near if n < tensor][-1:], *[n for n in near if n > tensor][:1]]
        hint = "possible: " + (" or ".join(f"-tp {size}" for size in around) or "none near it")
        raise EntrypointError(USAGE, f"-tp {tensor}: {why}", hint)
    cut = expert_obstacle(model, rules, (there.engines or 1) * tensor, there.experts)
    if cut and there.engines:
        raise EntrypointError(USAGE, f"-dp {there.engines}: {cut}", f"{EXPERT} keeps experts whole")
    if split.pipeline > 1 and not rules.pipeline:
        raise EntrypointError(USAGE, f"-pp {split.pipeline}: this stack has no pipeline parallelism", "leave out -pp")
