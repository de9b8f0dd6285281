"""Lengths that a model does not support, and the sequences that a cache must hold."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.decide.parallelism import memory_fit
from entrypoints.decide.parallelism.demand import as_overridden, check_length, length_notices, read_demand
from entrypoints.model.geometry import Rope
from entrypoints.model.read import ModelFacts
from entrypoints.request.intents import Intents
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.hosts.host_models import LLAMA

LONG = ("--max-model-len", "131072")
TOO_LONG = ("--max-model-len", "131073")


@pytest.mark.parametrize(("demanded", "enough"), [(3, True), (4, True), (5, False)])
def test_a_cache_with_room_for_exactly_the_demanded_sequences_is_enough(
    demanded: int, enough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_fit, "count_held_sequences", lambda *_: 4)
    monkeypatch.setattr(memory_fit, "count_demanded_sequences", lambda *_: demanded)

    assert memory_fit.holds_all(Mock(), Mock()) is enough


def test_a_length_beyond_the_models_positions_is_refused_with_the_way_out() -> None:
    with pytest.raises(EntrypointError) as error:
        check_length(LLAMA, parse_user_flags(TOO_LONG, {}), ())

    assert error.value.code == USAGE
    assert "supports 131072 tokens" in error.value.message
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1" in error.value.hint


@pytest.mark.parametrize(
    ("words", "env", "settings"),
    [
        (LONG, {}, ()),
        (("--max-model-len", "auto"), {}, ()),
        (TOO_LONG, {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, ()),
        (TOO_LONG, {}, ("VLLM_ALLOW_LONG_MAX_MODEL_LEN",)),
        ((), {}, ()),
    ],
)
def test_lengths_that_vllm_accepts_pass(words: tuple[str, ...], env: dict[str, str], settings: tuple[str, ...]) -> None:
    check_length(LLAMA, parse_user_flags(words, env), settings)


def test_a_model_that_states_a_longer_length_may_use_it() -> None:
    model = stated(200_000)

    check_length(model, parse_user_flags(TOO_LONG, {}), ())


def stated(length: int) -> ModelFacts:
    assert LLAMA.geometry
    return LLAMA._replace(geometry=LLAMA.geometry._replace(stated_length=length))


YARN = '{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}'
POSITIONS = '"max_position_embeddings": 262144'


@pytest.mark.parametrize(
    ("vllm", "flag", "text", "length"),
    [
        ("0.29.0", "--hf-overrides", f'{{"rope_scaling": {YARN}}}', 131072),
        ("0.30.0", "--hf-overrides", f'{{"rope_scaling": {YARN}}}', 40960),  # the positions must say it
        ("0.33.0", "--hf-overrides", f'{{"rope_parameters": {YARN}, {POSITIONS}}}', 262144),
        ("0.33.0", "--hf-overrides", f'{{"text_config": {{"rope_parameters": {YARN}, {POSITIONS}}}}}', 262144),
        ("0.33.0", "--hf-overrides", '{"rope_scaling": {"type": "linear", "factor": 2}}', 81920),
        (
            "0.33.0",
            "--hf-overrides",
            '{"rope_parameters": {"full_attention": {"type": "dynamic", "factor": 2}}}',
            81920,
        ),
        ("0.33.0", "--hf-overrides", '{"quantization_config": {}}', 40960),
        ("0.8.0", "--rope-scaling", YARN, 131072),
    ],
)
def test_overrides_change_the_models_length_as_in_vllm(vllm: str, flag: str, text: str, length: int) -> None:
    qwen = positions(40960)
    overridden_model = as_overridden(qwen, parse_user_flags((flag, text), {}), vllm)

    assert overridden_model.geometry
    assert overridden_model.geometry.max_length == length
    notices = [(notice.id, notice.found) for notice in length_notices(qwen, overridden_model)]
    assert notices == ([("PLAN-113", f"{length} tokens")] if length != 40960 else [])


@pytest.mark.parametrize(("vllm", "length"), [("0.18.0", 131072), ("0.32.0", 40960)])
def test_a_models_own_yarn_counts_where_vllm_multiplies(vllm: str, length: int) -> None:
    qwen = positions(40960)
    assert qwen.geometry
    rope = Rope(40960, "yarn", 4.0, 32768)
    overridden_model = as_overridden(
        qwen._replace(geometry=qwen.geometry._replace(rope=rope)), parse_user_flags((), {}), vllm
    )

    assert overridden_model.geometry
    assert overridden_model.geometry.max_length == length


def test_positions_that_yarn_leaves_as_they_are_are_named() -> None:
    user_flags = parse_user_flags((*TOO_LONG, "--hf-overrides", f'{{"rope_scaling": {YARN.replace("4.0", "8")}}}'), {})
    with pytest.raises(EntrypointError) as error:
        check_length(as_overridden(positions(40960), user_flags, "0.32.0"), user_flags, ())

    assert error.value.hint.startswith('add "max_position_embeddings": 262144 to --hf-overrides')


@pytest.mark.parametrize("kind", ["longrope", "su"])
def test_longrope_takes_more_than_it_starts_with_if_asked(kind: str) -> None:
    phi = as_overridden(rotary(Rope(131072, kind, 1.0, 4096)), parse_user_flags((), {}), "0.32.0")
    ranges = Intents(input=(1, 50_000), output=(1, 10_000))

    check_length(phi, parse_user_flags(LONG, {}), ())
    with pytest.raises(EntrypointError, match="supports 131072 tokens"):
        check_length(phi, parse_user_flags(TOO_LONG, {}), ())
    assert read_demand(phi, parse_user_flags((), {}), 16).length == 4096
    assert read_demand(phi, parse_user_flags((), {}, (), ranges), 16).length == 60_000


@pytest.mark.parametrize("text", ["{", "[1]", '{"rope_scaling": 4}', '{"max_position_embeddings": "many"}'])
def test_overrides_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(EntrypointError, match="--hf-overrides: ") as error:
        as_overridden(LLAMA, parse_user_flags(("--hf-overrides", text), {}), "0.32.0")

    assert error.value.code == USAGE


@pytest.mark.parametrize(
    ("window", "sliding", "length"), [(128, 16, 128), (4096, 0, 4096), (0, 0, 131072), (131072, 16, 131072)]
)
def test_without_sliding_windows_a_model_is_no_longer_than_its_window(window: int, sliding: int, length: int) -> None:
    assert LLAMA.geometry
    windowed = LLAMA._replace(geometry=LLAMA.geometry._replace(window=window, sliding_layers=sliding))
    cut = as_overridden(windowed, parse_user_flags(("--disable-sliding-window",), {}), "0.21.0").geometry
    whole = as_overridden(windowed, parse_user_flags((), {}), "0.21.0").geometry

    assert cut
    assert (cut.max_length, cut.sliding_layers) == (length, 0)
    assert whole == windowed.geometry


@pytest.mark.parametrize(("env", "numbers"), [({"VLLM_MLA_DISABLE": "1"}, 2 * 32 * 192), ({}, 576)])
def test_latent_attention_that_is_turned_off_keeps_keys_and_values_of_every_head(
    env: dict[str, str], numbers: int
) -> None:
    assert LLAMA.geometry
    latent = LLAMA._replace(geometry=LLAMA.geometry._replace(latent=576, plain_head_size=192))
    counted = as_overridden(latent, parse_user_flags((), env), "0.32.0").geometry

    assert counted
    assert counted.kv_elements(1) == numbers


def rotary(rope: Rope) -> ModelFacts:
    assert LLAMA.geometry
    return LLAMA._replace(geometry=LLAMA.geometry._replace(max_length=rope.length(), rope=rope))


def positions(length: int) -> ModelFacts:
    assert LLAMA.geometry
    return LLAMA._replace(geometry=LLAMA.geometry._replace(max_length=length, rope=Rope(length)))
