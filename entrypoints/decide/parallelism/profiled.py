"""The memory in addition to weights that vLLM finds in use when it profiles: activations, buffers, graphs. Pure.

vLLM 0.19 and 0.32 (v1/worker/gpu_model_runner.py, profile_run; v1/worker/gpu_worker.py, determine_available_memory)
compute one step of --max-num-batched-tokens tokens, then choose the next tokens of --max-num-seqs sequences. The KV
cache gets what is left of the share after the larger peak of the two. The numbers of `Profiling` are thresholds, fitted
to start-up logs: docs/reference/memory.md.
"""

from __future__ import annotations

from typing import NamedTuple

from entrypoints.core.parse import parse_version_numbers
from entrypoints.decide.parallelism.multimodal import Encoder
from entrypoints.decide.parallelism.rules import Profiling, Split
from entrypoints.decide.records import Thresholds
from entrypoints.model.geometry import Geometry

_GRAPHS_SINCE = (0, 21)
"""Since this version vLLM takes the graphs' memory from the KV cache (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1)."""
_OWN_BUFFERS = ("mxfp4",)
"""Methods whose kernels of experts keep no buffers between two steps."""


class Step(NamedTuple):
    """The largest step of a server."""

    tokens: int
    sequences: int
    """For which a token is chosen; 0 for a model that answers with vectors."""
    element: int
    """Bytes of a number of --dtype."""
    quantization: str = ""


def read_profiling(numbers: Thresholds, vllm: str, *, eager: bool) -> Profiling:
    """Return the numbers of an accelerator whose thresholds name them, for a version of vLLM."""
    version = parse_version_numbers(vllm)
    captures = not eager and version >= _GRAPHS_SINCE
    return Profiling(
        numbers.number("sampling_logit_bytes"),
        numbers.bytes("sampling_gib"),
        numbers.number("step_inputs"),
        numbers.number("step_inner"),
        numbers.bytes("communication_gib"),
        numbers.bytes("graphs_gib") if captures else 0,
        numbers.bytes("graphs_layer_gib") if captures else 0,
    )


def step_bytes(profiling: Profiling, geometry: Geometry, step: Step, split: Split, images: Encoder) -> int:
    """Return the peak of one step on one device, with what a step keeps for the next one."""
    one = step.tokens * geometry.hidden * step.element
    sequences = min(step.sequences, step.tokens)
    logits = sequences * geometry.vocabulary * (profiling.logit + step.element)
    wide = step.tokens * geometry.intermediate * step.element / split.tensor
    layer = profiling.inputs * one + profiling.inner * wide
    received = 2 * one if split.pipeline > 1 else 0  # the hidden states and the residual of the stage before
    choosing = one + logits + profiling.sampling if sequences else 0
    peak = max(choosing, layer, images.activations)
    return int(peak + received) + images.cache + images.items + _expert_buffers(geometry, step, split)


def other_bytes(profiling: Profiling, geometry: Geometry, split: Split) -> int:
    """Return what collectives and captured graphs take on one device."""
    stage = -(-geometry.layers // split.pipeline)
    graphs = profiling.graphs + stage * profiling.graphs_of_layer
    return graphs + (profiling.communication if split.tensor > 1 else 0)


def _expert_buffers(geometry: Geometry, step: Step, split: Split) -> int:
    """Return the two buffers that all layers of experts share, and that vLLM keeps.

    Source: vLLM 0.19, model_executor/layers/fused_moe/fused_moe.py, TritonExperts.workspace_shapes.
    """
    if not geometry.experts_per_token or step.quantization in _OWN_BUFFERS:
        return 0
    width = geometry.expert_width if split.experts else geometry.expert_width // split.tensor
    outer = geometry.expert_input or geometry.hidden
    numbers = max(2 * width, outer) + max(width, outer)
    return step.tokens * geometry.experts_per_token * numbers * step.element
