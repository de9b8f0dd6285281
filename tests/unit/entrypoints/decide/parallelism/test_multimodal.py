"""Images and recordings take memory: the tower's activations and the encoder's cache."""

from __future__ import annotations

import pytest

from entrypoints.decide.parallelism.fit import fit_model
from entrypoints.decide.parallelism.multimodal import compute_encoder_memory, read_inputs
from entrypoints.model.config import parse_config
from entrypoints.model.geometry import Geometry
from entrypoints.model.multimodal_encoders import parse_towers
from entrypoints.model.read import ModelFacts
from entrypoints.model.weights import Weights
from tests.support.fit_hosts import RULES, host, said

ANY_SIZE = {"vision_config": {"hidden_size": 1280, "depth": 32, "patch_size": 14, "spatial_merge_size": 2,
                              "intermediate_size": 3420}}  # fmt: skip
FIXED = {
    "vision_config": {"hidden_size": 1152, "image_size": 896, "patch_size": 14, "intermediate_size": 4304},
    "mm_tokens_per_image": 256,
}
SHAPE = Geometry(28, 0, 0, 28, 4, 128, 0, 32768, 0, 3584, 152064, 18944)


def model(config: dict[str, object]) -> ModelFacts:
    towers = parse_towers(parse_config({"architectures": ["A"], **config}))
    return ModelFacts("m", True, "A", "", Weights(1 << 34, 1 << 33, 0), SHAPE, "", towers=towers)


def test_a_tower_of_any_size_is_counted_with_the_largest_image() -> None:
    encoder_memory = compute_encoder_memory(model(ANY_SIZE), read_inputs(said(), 8192), 2)

    assert encoder_memory.cache == 16384 * 3584 * 2
    assert encoder_memory.activations == 4 * 16384 * (6 * 1280 + 2 * 3420) * 2


def test_a_step_computes_as_many_images_as_the_budget_holds() -> None:
    encoder_memory = compute_encoder_memory(model(FIXED), read_inputs(said(), 8192), 2)

    assert encoder_memory.cache == 8192 * 3584 * 2
    assert encoder_memory.activations == 32 * 4096 * (6 * 1152 + 2 * 4304) * 2


def test_tiles_and_recordings_have_their_own_sizes() -> None:
    tiled = {"vision_config": {"hidden_size": 1024, "image_size": 448, "patch_size": 14}, "downsample_ratio": 0.5,
             "max_dynamic_patch": 12}  # fmt: skip
    (image,) = parse_towers(parse_config(tiled))
    (sound,) = parse_towers(parse_config({"audio_config": {"d_model": 1280, "encoder_ffn_dim": 5120}}))

    assert (image.tokens, image.positions) == (13 * 256, 13 * 1024)
    assert (sound.tokens, sound.positions) == (750, 1500)


@pytest.mark.parametrize(
    "words",
    [
        ("--language-model-only",),
        ("--limit-mm-per-prompt", '{"image": 0, "video": 0}'),
        ("--limit-mm-per-prompt", '{"image": {"count": 0}}'),
        ("--limit-mm-per-prompt", "image=0,video=0"),
    ],
)
def test_a_server_for_text_reserves_nothing(words: tuple[str, ...]) -> None:
    assert compute_encoder_memory(model(ANY_SIZE), read_inputs(said(*words), 8192), 2).cache == 0


@pytest.mark.parametrize("kwargs", ['{"max_pixels": 802816}', "max_pixels=802816,min_pixels=3136"])
def test_smaller_images_take_less(kwargs: str) -> None:
    small = read_inputs(said("--mm-processor-kwargs", kwargs), 512)
    encoder_memory = compute_encoder_memory(model(ANY_SIZE), small, 2)

    assert encoder_memory.cache == 1024 * 3584 * 2
    assert encoder_memory.activations == 4 * 1024 * (6 * 1280 + 2 * 3420) * 2


def test_the_plan_reserves_it_and_says_so() -> None:
    with_images = fit_model(host(1, 80), model(ANY_SIZE), said(), RULES)
    without = fit_model(host(1, 80), model(ANY_SIZE), said("--language-model-only"), RULES)
    (tensor,) = (value for name, value in with_images.values.items() if name == "--tensor-parallel-size")

    assert with_images.uses[0].other > without.uses[0].other
    assert with_images.kv_tokens < without.kv_tokens  # type: ignore[operator]
    assert "of it for the largest image and the encoder's cache" in tensor.because
