"""How much memory a model takes on one device under a given split, and how many tokens fit. Pure."""

from __future__ import annotations

from typing import NamedTuple

from entrypoints.decide.records import GIB, gib
from entrypoints.decide.spread.towers import Encoder, Inputs, encoder
from entrypoints.model.geometry import Geometry
from entrypoints.model.read import ModelFacts

ESTIMATE_MARGIN = 1.03
"""Factor for weights estimated from config.json, which can be larger; see tests/models."""

READ_FOR_LATENCY = GIB
"""Bytes of weights per device below which a further split makes no answer faster: a device reads them in 0.3 ms (at
3 TB/s) to 1 ms, about as long as the all-reduces of one token take."""


class Rules(NamedTuple):
    """The properties of one accelerator's devices that parallelism and memory depend on. Sizes in bytes."""

    usable: float
    """Share of a device's memory that vLLM may take (becomes --gpu-memory-utilization)."""
    reserved: int
    """Per device, in addition to weights and KV cache: runtime, graphs, communication buffers."""
    activations: int
    """Per device, while running."""
    element: int = 2
    """Bytes of a number of --dtype."""
    kv_element: int = 2
    """Bytes of a number of the KV cache, unless --kv-cache-dtype sets another type."""
    block: int = 16
    """Tokens of one KV cache block."""
    sizes: tuple[int, ...] = ()
    """Tensor-parallel sizes that the runtime supports; () means any that divides."""
    pads_heads: bool = False
    """Whether the plugin replicates heads, so that their number need not be divisible (Neuron)."""
    pipeline: bool = True
    """Whether pipeline parallelism is supported."""
    expert: str = ""
    """How experts are spread: "" not at all, "tp" over the tensor-parallel ranks, "needed" likewise, but only if their
    width is not divisible, or over several engines; "many" likewise, and if each rank gets enough of them."""
    shortest_context: int = 1024
    memory: int | None = None
    """Bytes of one device, if the devices do not report it."""
    data: bool = True
    """Whether vLLM's own data parallelism (--data-parallel-size) is supported."""
    executors: tuple[str, ...] = ("uni", "mp", "ray")
    """Values of --distributed-executor-backend that may be chosen; () leaves it to vLLM."""
    whole: bool = False
    """Whether all devices serve one model together, since no process can share them (a TPU slice)."""
    sequences: int = 256
    """Sequences that a server runs at a time, unless the user says; vLLM's default --max-num-seqs."""
    chunk: int = 8192
    """Tokens of a prompt computed at once, unless --max-num-batched-tokens sets it."""
    latent_heads: tuple[int, ...] = ()
    """Heads per rank that the kernel of latent attention supports; () means any. Sparse attention has its own."""
    latent_ranks: int = 0
    """Most ranks that share latent attention, whose cache ranks do not divide; 0 for any number. Not if sparse."""
    grouped_head_sizes: tuple[int, ...] = ()
    """Head sizes for which a rank needs several query heads for each of its KV heads."""
    state_block: int = 0
    """Tokens of an attention block: a recurrent state must fill whole blocks of one layer's keys; 0 if not so."""
    ways: tuple[str, ...] = ("native",)
    """How the stack serves on several hosts (hosts.Reach.ways)."""
    link: str = ""
    """The link between hosts that the devices themselves have (hosts.Reach.link)."""


class Split(NamedTuple):
    """How many ranks share one copy of the model, and how many copies there are on this host."""

    tensor: int
    pipeline: int = 1
    data: int = 1
    experts: bool = False
    """Whether each rank holds whole experts (--enable-expert-parallel)."""
    engines: int = 1
    """Copies on all hosts together: the experts of one copy are distributed over their ranks."""

    @property
    def world(self) -> int:
        """Devices of one engine."""
        return self.tensor * self.pipeline

    def as_flags(self) -> str:
        """Return the split as short flags of vLLM, such as `-tp 4 -pp 2`."""
        pipeline = f" -pp {self.pipeline}" if self.pipeline > 1 else ""
        engines = max(self.data, self.engines)
        data = f" -dp {engines}" if engines > 1 else ""
        return f"-tp {self.tensor}{pipeline}{data}"


class DeviceMemory(NamedTuple):
    """The memory of one device."""

    total: int
    share: float
    """Of the total, for vLLM."""
    offload: int = 0
    """Bytes of weights that stay in the host's memory (--cpu-offload-gb)."""
    cache: int | None = None
    """The KV cache's size if the user set it (--kv-cache-memory-bytes); the share then has no effect."""
    inputs: Inputs | None = None
    """What the server accepts other than text; None counts text only."""


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

    def describe(self) -> str:
        """Return the figures as a part of a sentence."""
        peak = f", {gib(self.peak)} until all are loaded" if self.peak else ""
        changed = f" ({self.conversion}{peak})" if self.conversion else ""
        other = f"runtime and activations take {gib(self.other)}"
        if self.encoder.kind:
            most = gib(self.encoder.cache + self.encoder.activations)
            other = f"{other}, up to {most} of it for the largest {self.encoder.kind} and the encoder's cache"
        return f"of {gib(self.usable)} usable per device, weights take {gib(self.weights)}{changed} and {other}"


def stage_share(geometry: Geometry | None, pipeline: int) -> float:
    """Return the largest pipeline stage's share of the layers."""
    return -(-geometry.layers // pipeline) / geometry.layers if geometry else 1 / pipeline


def weights_of_rank(model: ModelFacts, rules: Rules, split: Split) -> int:
    """Return the bytes of weights on one device; a pipeline stage can hold the embeddings in addition to its layers."""
    return _of_rank(model, rules, split, model.weights.loaded(rules.element)) if model.weights else 0


def _of_rank(model: ModelFacts, rules: Rules, split: Split, loaded: int) -> int:
    geometry = model.geometry
    if model.estimated:
        loaded = int(loaded * ESTIMATE_MARGIN)
    embedding = 0
    if split.pipeline > 1 and geometry:
        embedding = min(loaded, geometry.vocabulary * geometry.hidden * rules.element)
    body = (loaded - embedding) * stage_share(geometry, split.pipeline)
    experts = body * model.expert_share
    return int(body - experts + embedding) // split.tensor + int(experts) // (split.tensor * split.engines) + 1


def room(model: ModelFacts, rules: Rules, memory: DeviceMemory, split: Split) -> DeviceRoom:
    """Return how the memory of the fullest device is used."""
    weights = max(0, weights_of_rank(model, rules, split) - memory.offload)
    towers = encoder(model, memory.inputs, rules.element)
    other = rules.reserved + max(rules.activations, towers.activations) + towers.cache
    usable = memory.total if memory.cache is not None else int(memory.total * memory.share)
    left = usable - weights - other
    peak = _peak(model, rules, split)
    if peak + rules.reserved > usable:  # loading fails before there is a cache
        left = min(left, usable - peak - rules.reserved)
    if memory.cache is not None:
        left = memory.cache if memory.cache <= left else left - memory.cache
    return DeviceRoom(usable, weights, other, left, model.conversion, towers, peak)


def _peak(model: ModelFacts, rules: Rules, split: Split) -> int:
    """Return the bytes of one device's weights while loading; 0 if they are no more than afterwards."""
    if model.weights is None or not model.weights.until_loaded:
        return 0
    return _of_rank(model, rules, split, model.weights.peak(rules.element))


class KvCache(NamedTuple):
    """The size of sequences in one device's KV cache."""

    geometry: Geometry
    element: int
    block: int
    chunk: int
    """Tokens of a prompt that are computed at once."""

    def bytes(self, tokens: int, split: Split) -> int:
        """Return the bytes of one sequence, in whole blocks."""
        whole = -(-tokens // self.block) * self.block
        one = self.geometry.kv_bytes(whole, self.element, split.tensor, self.chunk)
        return int(one * stage_share(self.geometry, split.pipeline))

    def tokens(self, left: int, length: int, split: Split) -> int:
        """Return the number of tokens that fit in sequences of this length."""
        one = self.bytes(length, split)
        return max(0, left) * length // one if one else 0

    def longest(self, left: int, most: int, split: Split) -> int:
        """Return the length of the longest sequence that fits, in whole blocks and at most `most`."""
        if self.bytes(most, split) <= left:
            return most
        low, high = 0, most // self.block
        while low < high:
            middle = (low + high + 1) // 2
            if self.bytes(middle * self.block, split) <= left:
                low = middle
            else:
                high = middle - 1
        return low * self.block
