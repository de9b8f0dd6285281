"""What a step takes, against lines of public start-up logs: vLLM 0.19 on H100, 8192 tokens, 1024 sequences."""

from __future__ import annotations

from typing import Any

import pytest

from entrypoints.core.units import GIB
from entrypoints.decide.parallelism.multimodal import Encoder
from entrypoints.decide.parallelism.profiled import Step, other_bytes, read_profiling, step_bytes
from entrypoints.decide.parallelism.rules import Profiling, Split
from entrypoints.decide.records import Thresholds
from entrypoints.model.geometry import Geometry
from tests.support.hosts import expect

NUMBERS = Thresholds(expect.profile_of("cuda-h100-8x")["thresholds"])
PROFILING = read_profiling(NUMBERS, "0.19.0", eager=False)
STEP = Step(8192, 1024, 2)
NO_IMAGES = Encoder()


def geometry(layers: int, hidden: int, intermediate: int, vocabulary: int, **more: Any) -> Geometry:
    return Geometry(layers, 0, 0, 32, 8, 128, 0, 8192, hidden=hidden, intermediate=intermediate,
                    vocabulary=vocabulary, **more)  # fmt: skip


LLAMA = geometry(32, 4096, 14336, 128256)
CODELLAMA = geometry(32, 4096, 11008, 32016)
MIXTRAL = geometry(32, 4096, 14336, 32000, experts=8, experts_per_token=2, expert_width=14336)
QWEN_MOE = geometry(48, 2048, 6144, 151936, experts=128, experts_per_token=8, expert_width=768)


@pytest.mark.parametrize(
    ("model", "step", "split", "measured"),
    [
        (LLAMA, STEP, Split(1), 1.89),
        (LLAMA, STEP, Split(4), 1.89),  # each rank has all logits
        (LLAMA, STEP._replace(element=4), Split(1), 2.21),
        (LLAMA, STEP, Split(1, 2), 2.01),  # of the last stage
        (CODELLAMA, STEP, Split(1), 0.77),  # a layer is the peak
        (MIXTRAL, STEP, Split(2), 1.21),
        (QWEN_MOE, STEP, Split(1), 2.68),
    ],
)
def test_a_step_takes_what_vllm_measured(model: Geometry, step: Step, split: Split, measured: float) -> None:
    assert step_bytes(PROFILING, model, step, split, NO_IMAGES) / GIB == pytest.approx(measured, rel=0.04)


def test_kernels_of_mxfp4_keep_no_buffers() -> None:
    with_buffers = step_bytes(PROFILING, QWEN_MOE, STEP, Split(1), NO_IMAGES)
    without = step_bytes(PROFILING, QWEN_MOE, STEP._replace(quantization="mxfp4"), Split(1), NO_IMAGES)

    assert with_buffers - without == 8192 * 8 * (2048 + 2048) * 2


def test_whole_experts_have_buffers_of_their_full_width() -> None:
    whole = step_bytes(PROFILING, MIXTRAL, STEP, Split(2, experts=True), NO_IMAGES)

    assert whole - step_bytes(PROFILING, MIXTRAL, STEP, Split(2), NO_IMAGES) == 8192 * 2 * 3 * 7168 * 2


def test_a_model_of_vectors_chooses_no_token() -> None:
    assert step_bytes(PROFILING, LLAMA, STEP._replace(sequences=0), Split(1), NO_IMAGES) < GIB


def test_images_stay_on_the_device() -> None:
    images = Encoder(cache=7, activations=1, kind="image", items=5)

    assert (
        step_bytes(PROFILING, LLAMA, STEP, Split(1), images) - step_bytes(PROFILING, LLAMA, STEP, Split(1), NO_IMAGES)
        == 12
    )


@pytest.mark.parametrize(
    ("vllm", "eager", "graphs"),
    [("0.19.0", False, False), ("0.21.0", False, True), ("0.33.0", False, True), ("0.33.0", True, False)],
)
def test_graphs_count_since_vllm_subtracts_them(vllm: str, eager: bool, graphs: bool) -> None:
    profiling: Profiling = read_profiling(NUMBERS, vllm, eager=eager)

    assert bool(other_bytes(profiling, LLAMA, Split(1))) is graphs


def test_only_ranks_that_share_layers_have_buffers_of_collectives() -> None:
    assert other_bytes(PROFILING, LLAMA, Split(1, 4)) == 0
    assert other_bytes(PROFILING, LLAMA, Split(2)) / GIB == pytest.approx(1.85)
