"""Which splits fit the devices' memory, and how long sequences may be and how many there are room for. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from entrypoints.decide.parallelism.fit_input import FitCase
from entrypoints.decide.parallelism.memory_use import last_stage_share, peak_of_rank, stage_share, weights_of_rank
from entrypoints.decide.parallelism.multimodal import Encoder
from entrypoints.decide.parallelism.profiled import Step, other_bytes, step_bytes
from entrypoints.decide.parallelism.rules import Split
from entrypoints.decide.records import gib
from entrypoints.request.flags import BATCHED, BLOCK_SIZE, SEQUENCES

_UNKNOWN_CACHE = 0.25
"""Share of the usable memory reserved for the KV cache of a model whose cache size only vLLM knows."""


class DeviceRoom(NamedTuple):
    """How one device's memory is used, in bytes."""

    usable: int
    weights: int
    other: int
    """Reserved memory and activations."""
    left: int
    """For the KV cache; below zero if the weights alone are too large."""
    conversion: str = ""
    """How the weights change while loading; empty if they do not."""
    encoder: Encoder = Encoder()
    """The part of `other` that images or recordings take."""
    peak: int = 0
    """Weights while loading, if these are more than afterwards."""
    draft: int = 0
    """The part of `other` that the draft model's weights take."""
    adapters: int = 0
    """The part of `other` that the slots of LoRA adapters take."""

    def describe(self) -> str:
        """Return the figures as a part of a sentence."""
        peak = f", {gib(self.peak)} until all are loaded" if self.peak else ""
        changed = f" ({self.conversion}{peak})" if self.conversion else ""
        runtime = f"runtime and activations take {gib(self.other - self.draft - self.adapters)}"
        if self.encoder.kind:
            most = gib(self.encoder.cache + self.encoder.activations)
            runtime = f"{runtime}, up to {most} of it for the largest {self.encoder.kind} and the encoder's cache"
        more = f", the draft model takes {gib(self.draft)}" if self.draft else ""
        more += f", LoRA adapters take {gib(self.adapters)}" if self.adapters else ""
        return f"of {gib(self.usable)} usable per device, weights take {gib(self.weights)}{changed}{more} and {runtime}"


class Choice(NamedTuple):
    """A split, and the sequence length and tokens that it allows."""

    split: Split
    room: DeviceRoom
    length: int | None
    tokens: int | None
    because: str = ""
    """Why it was chosen."""


def choices_under(case: FitCase, possible: Iterable[Split]) -> list[Choice]:
    """Return the choices under those splits that leave room for a KV cache."""
    choices = (choice_under(case, split) for split in possible)
    return [choice for choice in choices if choice is not None]


def choice_under(case: FitCase, split: Split) -> Choice | None:
    """Return the length and tokens under a split; None if the weights leave no room."""
    device_room, length = compute_room(case, split), case.demand.length
    if case.cache is None:
        if device_room.left < _UNKNOWN_CACHE * device_room.usable:
            return None
        return Choice(split, device_room, length, None)
    if device_room.left <= 0:
        return None
    if length is None:
        return Choice(split, device_room, None, case.cache.tokens(device_room.left, case.rules.shortest_context, split))
    longest = case.cache.longest(device_room.left, length, split)
    if longest < 1:
        return None
    return Choice(split, device_room, longest, case.cache.tokens(device_room.left, longest, split))


def compute_room(case: FitCase, split: Split) -> DeviceRoom:
    """Return how the memory of the fullest device is used.

    Of a pipeline, that is the last stage, which chooses tokens, or an earlier one with more layers.
    """
    last = _compute_stage_room(case, split, last_stage_share(case.model.geometry, split.pipeline), chooses=True)
    if split.pipeline == 1:
        return last
    return min(
        last,
        _compute_stage_room(case, split, stage_share(case.model.geometry, split.pipeline)),
        key=lambda one: one.left,
    )


def _compute_stage_room(case: FitCase, split: Split, stage: float, *, chooses: bool = False) -> DeviceRoom:
    """Return how the memory of a device is used whose stage has this share of the layers."""
    model, rules, memory = case.model, case.rules, case.memory
    weights = max(0, weights_of_rank(model, rules, split, stage) - memory.offload)
    draft = case.extras.draft_bytes(model, split.tensor, rules.element)
    share = stage_share(model.geometry, split.pipeline)
    adapters = case.extras.adapter_bytes(model, split, rules.element, share)
    other_memory = rules.reserved + _compute_profiled_bytes(case, split, chooses=chooses) + draft + adapters
    usable = memory.total if memory.cache is not None else int(memory.total * memory.share)
    cache_room = usable - weights - other_memory
    peak = peak_of_rank(model, rules, split)
    if peak + rules.reserved > usable:  # loading fails before there is a cache
        cache_room = min(cache_room, usable - peak - rules.reserved)
    if memory.cache is None:
        cache_room = min(cache_room, int(usable * rules.cache_most))
        cache_room -= rules.cache_least * (cache_room < rules.cache_least)
    else:
        cache_room = memory.cache if memory.cache <= cache_room else cache_room - memory.cache
    if memory.blocks:
        excess = _compute_block_bytes(case, split) - (memory.total - weights - other_memory)
        cache_room = -excess if excess > 0 else cache_room
    return DeviceRoom(
        usable, weights, other_memory, cache_room, model.conversion, memory.encoder, peak, draft, adapters
    )


def _compute_block_bytes(case: FitCase, split: Split) -> int:
    """Return the bytes of the user's number of KV cache blocks; 0 for layers of several kinds, which share blocks.

    Source: vLLM 0.32, v1/core/kv_cache_utils.py, may_override_num_blocks.
    """
    cache, geometry = case.cache, case.model.geometry
    if cache is None or geometry is None or geometry.sliding_layers or geometry.states:
        return 0
    block = case.user_flags.number(BLOCK_SIZE) or cache.block
    return case.memory.blocks * cache._replace(block=block).bytes(block, split)


def _compute_profiled_bytes(case: FitCase, split: Split, *, chooses: bool) -> int:
    """Return the activations of one device, with what vLLM keeps for a step."""
    rules, images, geometry = case.rules, case.memory.encoder, case.model.geometry
    if rules.profiling is None or geometry is None or not (geometry.hidden and geometry.vocabulary):
        return max(rules.activations, images.activations) + images.cache
    step = Step(
        case.user_flags.number(BATCHED) or rules.chunk,
        0 if case.model.pooling or not chooses else case.user_flags.number(SEQUENCES) or rules.running,
        rules.element,
        case.model.quantization,
    )
    buffer_bytes = other_bytes(rules.profiling, geometry, split)
    return step_bytes(rules.profiling, geometry, step, split, images) + buffer_bytes


# --- what a choice holds --------------------------------------------------------------------------------------------


def has_full_length(case: FitCase, choice: Choice) -> bool:
    """Return whether a choice has the demanded length."""
    return case.demand.length is None or choice.tokens is None or choice.length == case.demand.length


def count_held_sequences(case: FitCase, choice: Choice) -> int | None:
    """Return the number of usual sequences that one engine's KV cache holds; None if only vLLM knows."""
    if case.cache is None or choice.tokens is None:
        return None
    one = case.cache.bytes(case.demand.usual, choice.split)
    return max(0, choice.room.left) // one if one else count_demanded_sequences(case, choice.split)


def count_engine_groups(case: FitCase, split: Split) -> int:
    """Return the engines of all hosts; where a server runs only one, the servers that the devices are enough for."""
    return max(split.data, split.engines) if case.rules.data else max(1, case.space.devices // split.world)


def count_demanded_sequences(case: FitCase, split: Split) -> int:
    """Return the sequences that one engine runs at a time."""
    return case.demand.each(max(split.data, split.engines))


def is_enough(case: FitCase, choice: Choice) -> bool:
    """Return whether a choice has the full length, and room for the sequences that the user asked for."""
    return has_full_length(case, choice) and (not case.demand.requested or holds_all(case, choice))


def holds_all(case: FitCase, choice: Choice) -> bool:
    """Return whether each engine's KV cache has room for all sequences that it runs at a time."""
    sequences = count_held_sequences(case, choice)
    return sequences is None or sequences >= count_demanded_sequences(case, choice.split)
