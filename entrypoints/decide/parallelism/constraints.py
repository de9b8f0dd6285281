"""The constraints: which candidates the model, the runtime and the user allow, and where experts lie. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, partial

from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.text import format_count
from entrypoints.decide.parallelism.candidates import list_split_candidates, with_users_numbers
from entrypoints.decide.parallelism.fit_input import FitCase
from entrypoints.decide.parallelism.hosts import check_ways
from entrypoints.decide.parallelism.rules import Rules, Space, Split
from entrypoints.model.geometry import Geometry
from entrypoints.model.hybrid import STATE_BYTES
from entrypoints.model.parameters import STATE_INPUTS
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import CONTEXT, EXECUTOR, EXPERT, NODES

_EACH = 8
"""Experts of a rank with which the load of ranks evens out, so that whole experts pay. The recipes that spread whole
experts over tensor-parallel ranks have 16 to 256 on each; those of models with one or two on each do not."""
_BLOCKS, _BLOCK_BITS = ("fp8", "compressed-tensors"), 8
"""Quantisations whose scales may belong to blocks, and the bits of their numbers; 0 bits if the method says them."""
_ONE_KV_HEAD = ("GptOssForCausalLM", "Param2MoEForCausalLM")
"""Architectures whose classes do not repeat KV heads over ranks. Source: vLLM 0.32's models/gpt_oss.py
(OAIAttention.__init__) and param2moe.py (Param2MoEAttention.__init__), which divide their number by the ranks and round
down."""
_WHOLE_TOWERS = (
    "KimiK25ForConditionalGeneration", "KimiK3ForConditionalGeneration", "MuseGlimmerForConditionalGeneration",
    "InternVLChatModel", "InternS1ForConditionalGeneration", "InternVLForConditionalGeneration", "H2OVLChatModel",
    "NVLM_D", "SkyworkR1VChatModel",
)  # fmt: skip
"""Architectures whose ranks each have the whole tower if they cannot share its heads. Source: vLLM 0.32's
models/vision.py, is_vit_use_data_parallel with a number of heads, and the InternViT of models/intern_vit.py and
interns1_vit.py, which is whole or adds heads."""
_PADDED_TO = 64
"""Rows of an embedding, to a multiple of which vLLM pads it."""
_MOST_RANKS = 1024
"""More ranks than share any model's heads."""
_UNCUT = ("bitsandbytes",)
"""Quantisations whose weights on disk no rank can hold a part of. Source: vLLM 0.7 to 0.27 (the last with the method),
model_executor/model_loader/bitsandbytes_loader.py, "Prequant BitsAndBytes models with tensor parallelism"."""
_SLICED = ("mxfp4", "gpt_oss_mxfp4")
"""Quantisations whose recipes split every expert: vllm-project/recipes, OpenAI/GPT-OSS.md."""


def possible_splits(case: FitCase) -> tuple[Split, ...]:
    """Return the candidates that are possible and keep what the user set, in their order, with their experts placed.

    Raises USAGE for an impossible parallelism of the user's, and HOST if nothing is possible.
    """
    _check_fixed(case)
    possible = _over_hosts(case) if case.space.hosts > 1 else _on_one_host(case)
    return tuple(split._replace(experts=_are_experts_whole(case, split)) for split in possible)


def _on_one_host(case: FitCase) -> list[Split]:
    """Return the possible splits of one host. Raises HOST if there is none."""
    allowed = _sizes_on_one_host(case.model, case.rules, case.space)
    possible = [_reduce_engines(case, split) for split in list_split_candidates(case) if split.tensor in allowed]
    if not possible:
        raise _too_few(case.rules, case.space)
    return possible


def _sizes_on_one_host(model: ModelFacts, rules: Rules, space: Space) -> tuple[int, ...]:
    """Return the possible tensor-parallel sizes, in whole chips; the user's is checked already."""
    if space.tensor or space.needs_more_hosts:
        return (space.tensor or 1,)
    possible = list_tensor_sizes(model, rules, space.most, space.experts)
    return tuple(size for size in possible if size % rules.chip == 0) or possible


def _reduce_engines(case: FitCase, split: Split) -> Split:
    """Return the split with as many of its engines as can hold the experts, unless the user set their number."""
    model, rules, space = case.model, case.rules, case.space
    if space.data or split.data == 1:
        return split
    if rules.expert_lanes:  # each engine has all experts, of which only its own ranks have slices
        return split
    counts = range(split.data, 1, -1)
    allowed = (count for count in counts if not expert_obstacle(model, rules, split.tensor * count, space.experts))
    data = next(allowed, 1)
    return split._replace(data=data, engines=space.engines or data)


def _too_few(rules: Rules, space: Space) -> EntrypointError:
    stages = f" with {space.pipeline} pipeline stages" if space.pipeline else ""
    supported = ", ".join(map(str, rules.sizes)) or "1"
    verb = "is" if space.most == 1 else "are"
    available = f"{format_count(space.most, 'device')} {verb} available"
    message = f"the runtime supports tensor-parallel sizes {supported}{stages}: {available}"
    return EntrypointError(HOST, message, "give the container more devices, or lower -pp and -dp")


def _over_hosts(case: FitCase) -> list[Split]:
    """Return the possible splits over hosts that have the user's numbers. Raises USAGE and HOST if there is none."""
    space = case.space
    check_ways(case.rules.ways, space.hosts)
    possible = [split for split in _usual_over_hosts(case) if _has_users_numbers(split, space)]
    if not possible and (space.tensor or space.pipeline or space.engines):
        allowed = list_tensor_sizes(case.model, case.rules, space.devices * space.hosts, space.experts)
        possible = [split for split in with_users_numbers(space) if space.tensor or split.tensor in allowed]
    if not possible:
        per_host, total = format_count(space.devices, "device"), space.devices * space.hosts
        message = f"no parallelism uses {per_host} on each of {space.hosts} hosts ({total} in all)"
        raise EntrypointError(HOST, message, "leave out -tp, -pp and -dp, or change the number of hosts")
    return possible


def _usual_over_hosts(case: FitCase) -> Iterator[Split]:
    """Yield the possible splits over hosts; of tensor parallelism over the same hosts only the widest."""
    space = case.space
    inside = list_tensor_sizes(case.model, case.rules, min(space.devices, space.wide), space.experts)
    widest = cache(partial(_widest_over, case))
    for split in list_split_candidates(case):
        is_inside = space.span(split) == 1 or split.pipeline > 1
        possible = split.tensor in inside if is_inside else split.tensor == widest(space.span(split))
        if possible and not _cuts_experts_of_engines(case, split):
            yield split


def _widest_over(case: FitCase, span: int) -> int:
    """Return the widest possible group over so many hosts with equally many devices of each; 0 if there is none."""
    rules, space = case.rules, case.space
    possible = list_tensor_sizes(case.model, _scale_sizes(rules, span), span * space.devices, space.experts)
    return max((size for size in possible if size % span == 0), default=0)


def _scale_sizes(rules: Rules, span: int) -> Rules:
    """Return the rules for groups over so many hosts: the runtime's sizes are of one host."""
    return rules._replace(sizes=tuple(span * size for size in rules.sizes))


def _has_users_numbers(split: Split, space: Space) -> bool:
    """Return whether a split keeps what the user set."""
    user = (space.tensor, space.pipeline, space.data, space.engines)
    numbers = (split.tensor, split.pipeline, split.data, split.engines)
    return all(number in (None, size) for number, size in zip(user, numbers, strict=True))


def _check_fixed(case: FitCase) -> None:
    """Raise USAGE for an impossible parallelism of the user's, with the nearest possible sizes."""
    model, rules, space = case.model, case.rules, case.space
    check_experts(model, space.experts)
    split, engines = space.fixed, space.engines or 1
    on_all = split.world * engines
    if space.hosts > 1 and on_all > space.devices * space.hosts:
        message = f"{split.as_flags()} needs {format_count(on_all, 'device')}, {space.hosts} hosts have"
        raise EntrypointError(USAGE, f"{message} {space.devices * space.hosts}", f"lower it, or raise {NODES}")
    here = split.world * split.data
    if here > space.devices and not space.nodes:
        hint = f"lower {split.as_flags()}, or set {EXECUTOR} ray or {NODES} for several hosts"
        message = f"{split.as_flags()} needs {format_count(here, 'device')}, available: {space.devices}"
        raise EntrypointError(USAGE, message, hint)
    across = _scale_sizes(rules, space.hosts) if split.tensor > space.devices else rules
    wrong = impossible_size(model, across, split.tensor, space.experts) if space.tensor else None
    if wrong:
        raise wrong
    if rules.context > 1 and not (
        space.tensor or list_tensor_sizes(model, rules, space.devices * space.hosts, space.experts)
    ):
        why = find_tensor_obstacle(model, rules, max(space.devices * space.hosts, 2), space.experts)
        raise EntrypointError(USAGE, why, f"lower {CONTEXT}, or leave it out")
    cut = expert_obstacle(model, rules, engines * split.tensor, space.experts)
    if cut and space.engines:
        raise EntrypointError(USAGE, f"-dp {engines}: {cut}", f"{EXPERT} keeps experts whole")
    if split.pipeline > 1 and not rules.pipeline:
        raise EntrypointError(USAGE, f"-pp {split.pipeline}: this stack has no pipeline parallelism", "leave out -pp")


def check_experts(model: ModelFacts, experts: bool | None) -> None:
    """Raise USAGE for expert parallelism of a model without experts.

    Source: vLLM 0.32's config/model.py, _verify_with_expert_parallelism.
    """
    if experts and model.geometry and not model.geometry.experts:
        raise EntrypointError(USAGE, f"{EXPERT}: {model.name} has no experts", f"leave out {EXPERT}")


# --- sizes ----------------------------------------------------------------------------------------------------------


def find_tensor_obstacle(model: ModelFacts, rules: Rules, tensor: int, experts: bool | None = None) -> str:
    """Return why tensor parallelism over this number of ranks is impossible; empty if it is possible."""
    geometry = model.geometry
    if rules.sizes and tensor not in rules.sizes:
        return f"the runtime supports tensor-parallel sizes {', '.join(map(str, rules.sizes))} only"
    if model.quantization in _UNCUT and tensor > 1:
        return f"ranks cannot share weights that {model.quantization} has quantised, pipeline stages (-pp) can"
    context = _context_obstacle(geometry, rules.context, tensor)
    if context or geometry is None or tensor == 1:
        return context
    heads = _heads_obstacle(geometry, rules, tensor) or _state_obstacle(geometry, rules, tensor)
    if heads:
        return heads
    attention = 0 if geometry.latent or not model.group else geometry.heads * geometry.head_size
    cut = _find_cut_obstacle(attention, tensor, model.group, "the attention's width")
    cut = cut or ("" if rules.own_classes else _class_obstacle(model, geometry, rules, tensor))
    if geometry.experts:
        return cut or expert_obstacle(model, rules, tensor, experts)
    return cut or _find_cut_obstacle(geometry.intermediate, tensor, model.group, "the feed-forward width")


def list_tensor_sizes(model: ModelFacts, rules: Rules, most: int, experts: bool | None = None) -> tuple[int, ...]:
    """Return every possible tensor-parallel size, ascending; only powers of two if the number of heads is unknown."""
    numbers: Iterable[int] = range(1, most + 1)
    if model.geometry is None:
        numbers = (number for number in numbers if number & (number - 1) == 0)
    return tuple(number for number in numbers if not find_tensor_obstacle(model, rules, number, experts))


def impossible_size(
    model: ModelFacts, rules: Rules, tensor: int, experts: bool | None = None
) -> EntrypointError | None:
    """Return the USAGE error for a size that the user set, with the nearest possible sizes; None if it is possible."""
    why = find_tensor_obstacle(model, rules, tensor, experts)
    if not why:
        return None
    near = list_tensor_sizes(model, rules, min(max(2 * tensor, *rules.sizes, 1), _MOST_RANKS), experts)
    below, above = [size for size in near if size < tensor], [size for size in near if size > tensor]
    nearest = [*below[-1:], *above[:1]]
    hint = "possible: " + (" or ".join(f"-tp {size}" for size in nearest) or "no size close to it")
    return EntrypointError(USAGE, f"-tp {tensor}: {why}", hint)


def _heads_obstacle(geometry: Geometry, rules: Rules, tensor: int) -> str:
    """Return why this number of ranks cannot share the attention's heads; empty if it can."""
    heads, kv_heads = geometry.heads, geometry.kv_heads
    if not rules.pads_heads and not geometry.divides(tensor):
        if kv_heads == 1:  # one KV head divides any number of heads
            return f"{heads} heads are not divisible by {tensor}"
        return f"{heads} heads and {kv_heads} KV heads are not divisible by {tensor}"
    per_rank = heads // tensor
    if geometry.latent and not geometry.sparse and rules.latent_heads and per_rank not in rules.latent_heads:
        supported = ", ".join(map(str, rules.latent_heads))
        return f"latent attention supports {supported} heads per rank, {heads} heads over {tensor} ranks are {per_rank}"
    if geometry.latent and not geometry.sparse and 0 < rules.latent_ranks < tensor:
        return f"ranks do not divide the cache of latent attention, and more than {rules.latent_ranks} only repeat it"
    grouped = heads > kv_heads and geometry.head_size in rules.grouped_head_sizes
    if grouped and per_rank <= geometry.kv_heads_of_rank(tensor):
        return f"heads of size {geometry.head_size} need several of {heads} heads per KV head on each of {tensor} ranks"
    return ""


def _context_obstacle(geometry: Geometry | None, context: int, tensor: int) -> str:
    """Return why decode context parallelism over so many of these ranks is impossible; empty if it can be had.

    Source: vLLM 0.32, config/parallel.py, ParallelConfig._validate_parallel_config, and config/model.py,
    verify_with_parallel_config.
    """
    if context == 1:
        return ""
    if tensor % context:
        return f"{tensor} ranks are not divisible by {CONTEXT} {context}"
    if geometry is None or geometry.latent:
        return ""
    copies, queries = tensor // geometry.kv_heads, geometry.heads // geometry.kv_heads
    if copies < max(context, 2):
        return (
            f"{CONTEXT} {context} needs {context} copies of {geometry.kv_heads} KV heads, {tensor} ranks have {copies}"
        )
    if queries % context:
        return f"{queries} query heads for each KV head are not divisible by {CONTEXT} {context}"
    return ""


def _state_obstacle(geometry: Geometry, rules: Rules, tensor: int) -> str:
    """Return why this number of ranks cannot share the state of linear-attention and Mamba layers; empty if it can.

    Source: vLLM 0.32's mamba_utils.py (MambaStateShapeCalculator) and mamba_mixer2.py (MambaMixer2.__init__);
    vllm-ascend's patch_mamba_config.py for the blocks.
    """
    if geometry.state_heads % tensor:
        return f"{geometry.state_heads} heads or groups of the layers with a state are not divisible by {tensor}"
    if not (rules.state_block and geometry.state_matrix) or geometry.latent:
        return ""
    keys = rules.state_block * geometry.kv_heads_of_rank(tensor) * geometry.head_size * rules.kv_element
    if geometry.state_matrix * STATE_BYTES // tensor % keys:
        return f"a layer's state over {tensor} ranks does not fill whole blocks of {rules.state_block} tokens"
    return ""


def _class_obstacle(model: ModelFacts, geometry: Geometry, rules: Rules, tensor: int) -> str:
    """Return why vLLM's own classes do not divide among this number of ranks; empty if they do."""
    if model.architecture in _ONE_KV_HEAD and geometry.kv_heads % tensor:
        return f"{geometry.kv_heads} KV heads are not divisible by {tensor}, and {model.architecture} repeats none"
    for divided in geometry.divided_sizes:
        if not divided.allows(tensor):
            return f"{divided.number} {divided.title} are not divisible by {tensor}"
    matrix, tower = _matrix_obstacle(model, tensor), _tower_obstacle(model, rules, tensor)
    return matrix or tower or _vocabulary_obstacle(geometry, tensor)


def _matrix_obstacle(model: ModelFacts, tensor: int) -> str:
    """Return which matrix of the layers, experts excepted, ranks cannot divide into whole scales; empty if none.

    Inputs are divided evenly, quantised or not (layers/linear.py, RowParallelLinear). Scales of groups lie along a
    matrix's inputs. Those of FP8 blocks lie along its outputs too, but vLLM lets blocks of merged matrices be cut.
    Source: vLLM 0.32's layers/quantization/utils/fp8_utils.py, validate_fp8_block_shape, and layers/linear.py,
    _maybe_allow_fp8_block_shape_mismatch.
    """
    blocks = model.group > 0 and model.quantization in _BLOCKS and model.bits in (0, _BLOCK_BITS)
    for matrix in model.linears:
        along_outputs = blocks and matrix.divided == "outputs" and matrix.slices == 1
        divided = matrix.divided == "inputs" or along_outputs
        if matrix.experts or matrix.names[0] == STATE_INPUTS or not divided:
            continue
        width = matrix.outputs if along_outputs else matrix.inputs
        cut = _find_cut_obstacle(width, tensor, 0 if matrix.plain else model.group, f"the width of {matrix.names[0]}")
        if cut:
            return cut
    return ""


def _vocabulary_obstacle(geometry: Geometry, tensor: int) -> str:
    """Return why this number of ranks cannot share the embedding; empty if it can.

    Source: vLLM 0.6 to 0.33, layers/vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE and divide.
    """
    padded = -(-geometry.vocabulary // _PADDED_TO) * _PADDED_TO
    return f"a vocabulary of {padded} (padded) is not divisible by {tensor}" if padded % tensor else ""


def _tower_obstacle(model: ModelFacts, rules: Rules, tensor: int) -> str:
    """Return why this number of ranks cannot share a tower; empty if it can.

    Source: vLLM 0.32's layers/attention/mm_encoder_attention.py (MMEncoderAttention.__init__) and the towers'
    own classes: models/qwen2_5_vl.py, siglip.py, glm4_1v.py and others divide heads and feed-forward parts.
    """
    if rules.has_whole_towers or model.architecture in _WHOLE_TOWERS:
        return ""
    for tower in model.towers:
        if tower.heads % tensor:
            return f"{tower.heads} heads of the {tower.kind} tower are not divisible by {tensor}"
        if tower.heads and not model.shortened and tower.inner % tensor:  # a shortened copy can have another tower
            return f"the feed-forward width of the {tower.kind} tower, {tower.inner}, is not divisible by {tensor}"
    return ""


# --- experts --------------------------------------------------------------------------------------------------------


def expert_obstacle(model: ModelFacts, rules: Rules, ranks: int, experts: bool | None) -> str:
    """Return why this number of ranks of all engines cannot hold the experts; empty if they can."""
    whole = experts if experts is not None else keeps_experts_whole(model, rules, ranks)
    if whole or not model.geometry or not model.geometry.experts:
        return ""
    cut = _find_cut_obstacle(model.geometry.expert_width, ranks, model.group, "an expert's width")
    return cut or _lanes_obstacle(model.geometry, rules, ranks)


def _lanes_obstacle(geometry: Geometry, rules: Rules, ranks: int) -> str:
    """Return why the kernel of experts cannot take slices for so many ranks; empty if it can."""
    width, lanes = geometry.expert_width, rules.expert_lanes
    if not lanes or width % (ranks * lanes) == 0:
        return ""
    return f"a split of an expert's width of {width} over {ranks} ranks leaves no multiple of {lanes} for the kernel"


def _find_cut_obstacle(width: int, ranks: int, group: int, what: str) -> str:
    if not width or width % (ranks * max(1, group)) == 0:
        return ""
    if width % ranks:
        return f"{what} of {width} is not divisible by {ranks}"
    return f"a split of {what} of {width} over {ranks} ranks cuts the {group} numbers that share a quantisation scale"


def _are_experts_whole(case: FitCase, split: Split) -> bool:
    """Return whether the ranks of a split hold whole experts."""
    if case.space.experts is not None:
        return case.space.experts
    sharing = split.tensor if case.rules.expert_lanes else split.tensor * split.engines
    return keeps_experts_whole(case.model, _of_engines(case.rules, split), sharing)


def _cuts_experts_of_engines(case: FitCase, split: Split) -> bool:
    """Return whether the ranks of several engines cannot hold the experts."""
    rules, ranks = _of_engines(case.rules, split), split.tensor * split.engines
    return split.engines > 1 and bool(expert_obstacle(case.model, rules, ranks, case.space.experts))


def _of_engines(rules: Rules, split: Split) -> Rules:
    """Return the rules for a split: with slices of every expert several engines would wait for each other."""
    spread = split.engines > 1 and rules.expert in ("needed", "many") and not rules.expert_lanes
    return rules._replace(expert="tp") if spread else rules


def keeps_experts_whole(model: ModelFacts, rules: Rules, ranks: int) -> bool:
    """Return whether ranks hold whole experts, unless the user sets it."""
    geometry = model.geometry
    if geometry is None or ranks == 1 or geometry.experts < ranks:
        return False
    is_cut = bool(_find_cut_obstacle(geometry.expert_width, ranks, model.group, "")) or bool(
        _lanes_obstacle(geometry, rules, ranks)
    )
    if rules.expert == "many" and model.quantization not in _SLICED:
        return is_cut or geometry.experts >= _EACH * ranks
    return rules.expert == "tp" or (rules.expert in ("needed", "many") and is_cut)


def with_slices(case: FitCase, possible: tuple[Split, ...]) -> tuple[Split, ...]:
    """Return the splits whose ranks hold whole experts only for speed, with every expert split into slices instead.

    Slices take smaller buffers in each step (profiled.step_bytes). Engines that share experts keep them whole.
    """
    if case.rules.expert != "many" or case.space.experts is not None:
        return ()
    sliced = [split._replace(experts=False) for split in possible if split.experts and split.engines == 1]
    return tuple(one for one in sliced if not expert_obstacle(case.model, case.rules, one.tensor, experts=False))


def experts_because(model: ModelFacts, rules: Rules, ranks: int) -> str:
    """Return the reason why ranks hold whole experts."""
    geometry = model.geometry
    if geometry is None:
        return ""
    cut = _find_cut_obstacle(geometry.expert_width, ranks, model.group, "an expert's width") or _lanes_obstacle(
        geometry, rules, ranks
    )
    whole_experts = f"each of {ranks} ranks holds {geometry.experts // ranks} of {geometry.experts} experts whole"
    if cut:
        return f"{cut}; therefore {whole_experts}"
    return f"{whole_experts}; its matrices are larger than with every expert split into {ranks} slices"
