"""What splits follow from: an accelerator's rules, the devices, and the parallelism that the user set. Pure."""

from __future__ import annotations

from typing import NamedTuple

from entrypoints.core.units import GIB

READ_FOR_LATENCY = GIB
"""Bytes of weights per device below which a further split makes no answer faster: a device reads them in 0.3 ms (at
3 TB/s) to 1 ms, about as long as the all-reduces of one token take."""


NARROW = 8
"""Ranks above which `Rules.wide_read` applies."""


class Profiling(NamedTuple):
    """What a step takes on one device, of which the rest follows from the model's widths. Sizes in bytes."""

    logit: float
    """To choose a token, for one number of the vocabulary, in addition to that number itself."""
    sampling: int
    """To choose tokens, whatever the vocabulary."""
    inputs: float
    """Vectors of a layer's input that a token keeps at the peak of a layer."""
    inner: float
    """Vectors of the feed-forward part, likewise."""
    communication: int = 0
    """Buffers of the collectives, if several ranks share each layer."""
    graphs: int = 0
    graphs_of_layer: int = 0
    """Captured graphs: of the whole model, and of each layer."""


class Rules(NamedTuple):
    """The properties of one accelerator's devices that parallelism and memory depend on. Sizes in bytes."""

    usable: float
    """Share of a device's memory that vLLM may take (becomes --gpu-memory-utilization)."""
    reserved: int
    """Per device, in addition to weights and KV cache: runtime, graphs, communication buffers."""
    activations: int
    """Per device, while running; with `profiling`, only for a model whose widths are unknown."""
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
    own_classes: bool = False
    """Whether the models are classes of the platform's own, with other limits than those of vLLM."""
    pipeline: bool = True
    """Whether pipeline parallelism is supported."""
    expert: str = ""
    """How experts are spread: "" not at all, "tp" over the tensor-parallel ranks, "needed" likewise, but only if their
    width is not divisible, or over several engines; "many" likewise, and if each rank gets enough of them."""
    expert_lanes: int = 0
    """Of an expert's width, a rank has a whole multiple of so many numbers, or else whole experts: the kernel of vLLM
    Neuron. 0 without such a kernel."""
    cache_most: float = 1.0
    """Share of vLLM's part of the memory that the KV cache takes at most."""
    cache_least: int = 0
    """Bytes of the smallest KV cache with which the server starts."""
    encoder_tokens: int = 0
    """Most embeddings that a tower computes at a time, in compiled sizes and of one prompt; 0 for the largest item."""
    wide_read: int = 0
    """Bytes of weights that each of more than NARROW ranks reads at least; 0 for no more than each of fewer."""
    cache_share: float = 0.0
    """Share of a device's memory above which throughput leaves the KV cache; 0 if the sequences need only fit."""
    shortest_context: int = 1024
    memory: int | None = None
    """Bytes of one device, if the devices do not report it."""
    free: int | None = None
    """Bytes of it that vLLM finds free, if devices and processor share their memory."""
    data: bool = True
    """Whether vLLM's own data parallelism (--data-parallel-size) is supported."""
    executors: tuple[str, ...] = ("uni", "mp", "ray")
    """Values of --distributed-executor-backend that may be chosen; () leaves it to vLLM."""
    whole: bool = False
    """Whether all devices serve one model together, since no process can share them (a TPU slice)."""
    names_idle: bool = True
    """Whether idle devices are reported by their numbers (PLAN-025); a decision that counts in cores does it itself."""
    chip: int = 1
    """Devices of one chip, which only one process can use: an engine takes whole chips."""
    sequences: int = 256
    """Sequences that a server runs at a time, unless the user says; vLLM's default --max-num-seqs."""
    chunk: int = 8192
    """Tokens of a prompt computed at once, unless --max-num-batched-tokens sets it."""
    latent_heads: tuple[int, ...] = ()
    """Heads per rank that the kernel of latent attention supports; () means any. Sparse attention has its own."""
    latent_ranks: int = 0
    """Most ranks that share latent attention, whose cache ranks do not divide; 0 for any number. Not if sparse."""
    engine_ranks: tuple[int, ...] = ()
    """Ranks of one of several engines that share the experts, best first, where the vendor advises them for the model
    instead of one group over all devices; () for the group's own rules."""
    engine_weights: int = 0
    """Most bytes of weights on a device of such an engine, so that its KV cache has the rest."""
    grouped_head_sizes: tuple[int, ...] = ()
    """Head sizes for which a rank needs several query heads for each of its KV heads."""
    state_block: int = 0
    """Tokens of an attention block: a recurrent state must fill whole blocks of one layer's keys; 0 if not so."""
    context: int = 1
    """Ranks that each keep a part of a sequence's tokens, if the user sets it (--decode-context-parallel-size)."""
    has_whole_towers: bool = False
    """Whether each rank has all of the towers, or none: the user serves text only, or divides images among ranks."""
    ways: tuple[str, ...] = ("native",)
    """How the stack serves on several hosts (hosts.Reach.ways)."""
    link: str = ""
    """The link between hosts that the devices themselves have (hosts.Reach.link)."""
    profiling: Profiling | None = None
    """What a step takes, by the model's widths; None if `activations` stands for all models."""
    running: int = 0
    """Sequences that vLLM profiles with, unless --max-num-seqs sets them; used with `profiling` only."""
    driver: int = 0
    """Of a device's reported memory, what its driver keeps and vLLM does not see."""
    offload: str = ""
    """How vLLM keeps a KV cache in the host's memory (offload.SHARED, offload.PRIVATE); empty if it cannot."""


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
    """The link between hosts (hosts.py); empty if it is not known."""

    @property
    def fixed(self) -> Split:
        """The user's parallelism, 1 where it is not set."""
        return Split(self.tensor or 1, self.pipeline or 1, self.data or 1)

    @property
    def most(self) -> int:
        """The devices of this host for each engine that the user set."""
        return self.devices // min(self.data or 1, self.devices)

    @property
    def needs_more_hosts(self) -> bool:
        """Whether the user's parallelism takes hosts of which only the user knows."""
        return self.hosts == 1 and self.nodes and self.fixed.world * self.fixed.data > self.devices

    def span(self, split: Split) -> int:
        """Return the number of hosts that one engine is on."""
        return max(1, self.hosts // split.engines)
