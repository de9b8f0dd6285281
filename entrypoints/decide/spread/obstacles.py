"""Why a model cannot be split over so many ranks, and how its experts are spread over them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.decide.spread.room import Rules
from entrypoints.model.geometry import Geometry
from entrypoints.model.hybrid import STATE_BYTES
from entrypoints.model.read import ModelFacts

_EACH = 8
"""Experts of a rank with which the load of ranks evens out, so that whole experts pay. The recipes that spread whole
experts over tensor-parallel ranks have 16 to 256 on each; those of models with one or two on each do not."""
_MOST_RANKS = 1024
"""More ranks than share any model's heads."""
_SLICED = ("mxfp4", "gpt_oss_mxfp4")
"""Quantisations whose recipes split every expert: vllm-project/recipes, OpenAI/GPT-OSS.md."""


def obstacle(model: ModelFacts, rules: Rules, tensor: int, experts: bool | None = None) -> str:
    """Return why tensor parallelism over this number of ranks is impossible; empty if it is possible."""
    geometry = model.geometry
    if rules.sizes and tensor not in rules.sizes:
        return f"the runtime supports tensor-parallel sizes {', '.join(map(str, rules.sizes))} only"
    if geometry is None or tensor == 1:
        return ""
    heads = _heads_obstacle(geometry, rules, tensor) or _state_obstacle(geometry, rules, tensor)
    if heads:
        return heads
    attention = 0 if geometry.latent or not model.group else geometry.heads * geometry.head_size
    cut = _cut(attention, tensor, model.group, "the attention's width")
    if geometry.experts:
        return cut or expert_obstacle(model, rules, tensor, experts)
    return cut or _cut(geometry.intermediate, tensor, model.group, "the feed-forward width")


def impossible_size(
    model: ModelFacts, rules: Rules, tensor: int, experts: bool | None = None
) -> EntrypointError | None:
    """Return the USAGE error for a size that the user set, with the nearest possible sizes; None if it is possible."""
    why = obstacle(model, rules, tensor, experts)
    if not why:
        return None
    near = sizes(model, rules, min(max(2 * tensor, *rules.sizes, 1), _MOST_RANKS), experts)
    below, above = [size for size in near if size < tensor], [size for size in near if size > tensor]
    nearest = [*below[-1:], *above[:1]]
    hint = "possible: " + (" or ".join(f"-tp {size}" for size in nearest) or "no size close to it")
    return EntrypointError(USAGE, f"-tp {tensor}: {why}", hint)


def _heads_obstacle(geometry: Geometry, rules: Rules, tensor: int) -> str:
    """Return why this number of ranks cannot share the attention's heads; empty if it can."""
    heads, kv_heads = geometry.heads, geometry.kv_heads
    if not rules.pads_heads and not geometry.divides(tensor):
        return f"{heads} heads and {kv_heads} KV heads are not divisible by {tensor}"
    each = heads // tensor
    if geometry.latent and not geometry.sparse and rules.latent_heads and each not in rules.latent_heads:
        supported = ", ".join(map(str, rules.latent_heads))
        return f"latent attention supports {supported} heads per rank, {heads} heads over {tensor} ranks are {each}"
    if geometry.latent and not geometry.sparse and 0 < rules.latent_ranks < tensor:
        return f"ranks do not divide the cache of latent attention, and more than {rules.latent_ranks} only repeat it"
    grouped = heads > kv_heads and geometry.head_size in rules.grouped_head_sizes
    if grouped and each <= geometry.kv_heads_of_rank(tensor):
        return f"heads of size {geometry.head_size} need several of {heads} heads per KV head on each of {tensor} ranks"
    return ""


def _state_obstacle(geometry: Geometry, rules: Rules, tensor: int) -> str:
    """Return why this number of ranks cannot share the state of linear-attention and Mamba layers; empty if it can.

    Source: vLLM 0.32's mamba_utils.py and mamba_mixer2.py; vllm-ascend's patch_mamba_config.py for the blocks.
    """
    if geometry.state_heads % tensor:
        return f"{geometry.state_heads} heads or groups of the layers with a state are not divisible by {tensor}"
    if not (rules.state_block and geometry.state_matrix) or geometry.latent:
        return ""
    keys = rules.state_block * geometry.kv_heads_of_rank(tensor) * geometry.head_size * rules.kv_element
    if geometry.state_matrix * STATE_BYTES // tensor % keys:
        return f"a layer's state over {tensor} ranks does not fill whole blocks of {rules.state_block} tokens"
    return ""


def expert_obstacle(model: ModelFacts, rules: Rules, ranks: int, experts: bool | None) -> str:
    """Return why this number of ranks of all engines cannot hold the experts; empty if they can."""
    whole = experts if experts is not None else keeps_experts_whole(model, rules, ranks)
    if whole or not model.geometry or not model.geometry.experts:
        return ""
    return _cut(model.geometry.expert_width, ranks, model.group, "an expert's width")


def _cut(width: int, ranks: int, group: int, what: str) -> str:
    if not width or width % (ranks * max(1, group)) == 0:
        return ""
    if width % ranks:
        return f"{what} of {width} is not divisible by {ranks}"
    return f"a split of {what} of {width} over {ranks} ranks cuts the {group} numbers that share a quantisation scale"


def keeps_experts_whole(model: ModelFacts, rules: Rules, ranks: int) -> bool:
    """Return whether ranks hold whole experts, unless the user sets it."""
    geometry = model.geometry
    if geometry is None or ranks == 1 or geometry.experts < ranks:
        return False
    needed = bool(_cut(geometry.expert_width, ranks, model.group, ""))
    if rules.expert == "many" and model.quantization not in _SLICED:
        return needed or geometry.experts >= _EACH * ranks
    return rules.expert == "tp" or (rules.expert in ("needed", "many") and needed)


def spread_because(model: ModelFacts, ranks: int) -> str:
    """Return the reason why ranks hold whole experts."""
    geometry = model.geometry
    if geometry is None:
        return ""
    cut = _cut(geometry.expert_width, ranks, model.group, "an expert's width")
    each = f"each of {ranks} ranks holds {geometry.experts // ranks} of {geometry.experts} experts whole"
    if cut:
        return f"{cut}; therefore {each}"
    return f"{each}; its matrices are larger than with every expert split into {ranks} slices"


def sizes(model: ModelFacts, rules: Rules, most: int, experts: bool | None = None) -> tuple[int, ...]:
    """Return every possible tensor-parallel size, ascending; only powers of two if the number of heads is unknown."""
    numbers: Iterable[int] = range(1, most + 1)
    if model.geometry is None:
        numbers = (number for number in numbers if number & (number - 1) == 0)
    return tuple(number for number in numbers if not obstacle(model, rules, number, experts))
