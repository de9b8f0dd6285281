"""Lengths that a model does not support."""

from __future__ import annotations

import pytest

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.decide.spread.demand import check_length
from entrypoints.model.read import ModelFacts
from entrypoints.request.vllm_flags import parse_given
from tests.support.hosts.models import LLAMA

LONG = ("--max-model-len", "131073")


def test_a_length_beyond_the_models_positions_is_refused_with_the_way_out() -> None:
    with pytest.raises(EntrypointError) as error:
        check_length(LLAMA, parse_given(LONG, {}), ())

    assert error.value.code == USAGE
    assert "supports 131072 tokens" in error.value.message
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1" in error.value.hint


@pytest.mark.parametrize(
    ("words", "env", "settings"),
    [
        (("--max-model-len", "131072"), {}, ()),
        (("--max-model-len", "auto"), {}, ()),
        ((*LONG, "--hf-overrides", "{}"), {}, ()),
        (LONG, {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, ()),
        (LONG, {}, ("VLLM_ALLOW_LONG_MAX_MODEL_LEN",)),
        ((), {}, ()),
    ],
)
def test_lengths_that_vllm_accepts_pass(words: tuple[str, ...], env: dict[str, str], settings: tuple[str, ...]) -> None:
    check_length(LLAMA, parse_given(words, env), settings)


def test_a_model_that_states_a_longer_length_may_use_it() -> None:
    model = stated(200_000)

    check_length(model, parse_given(LONG, {}), ())


def stated(length: int) -> ModelFacts:
    assert LLAMA.geometry
    return LLAMA._replace(geometry=LLAMA.geometry._replace(stated_length=length))
