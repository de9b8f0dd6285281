"""What a published recipe may set: no name that a shell obeys, and no value that is a flag, a folder or code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoints.core.text import VARIABLE_NAME
from entrypoints.request.flags import LOAD_FORMAT
from entrypoints.request.recipe_limits import (
    CODE,
    FAMILIES,
    FLAGS,
    KEYS,
    VALUE,
    VARIABLES,
    refuse_flag,
    refuse_variable,
)
from tests.support.hostile import texts

JSON = "--limit-mm-per-prompt"


@pytest.mark.parametrize(
    "name",
    [
        *("VLLM_ROCM_X;touch PWNED;", "VLLM_ROCM_A=b", "VLLM_ROCM_\x1b[31m", "VLLM_USE_FLASHINFER_\n", "VLLM_ROCM_é"),
        *("AITER_\nX", "AITER_JIT_DIR", "B12X_CACHE", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "PYTHONPATH"),
        *("TORCHINDUCTOR_CACHE_DIR", "LD_PRELOAD", "LD_AUDIT", "VLLM_PLUGINS", "CUTE_DSL_CACHE_DIR", ""),
    ],
)
def test_a_name_that_a_shell_obeys_or_that_names_a_folder_is_refused(name: str) -> None:
    assert refuse_variable(name, "1")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("VLLM_ENGINE_READY_TIMEOUT_S", value) for value in ("0", "-1", "1e3", "99999999999", "٣٦٠٠", "x", "")),
        *(("VLLM_RPC_TIMEOUT", value) for value in ("0", "1", "999999999999")),
        *(("VLLM_ROCM_USE_AITER", value) for value in ("..", ".", "a/b", "a.b", "-x", "--x", "$(id)", "٣", "")),
        *(("PYTORCH_CUDA_ALLOC_CONF", value) for value in ("http://x", "a:b:c", "..:x", "a:../b")),
    ],
)
def test_a_value_of_a_variable_is_a_number_or_a_word_within_bounds(name: str, value: str) -> None:
    assert refuse_variable(name, value) == VALUE


@pytest.mark.parametrize(
    "value", ["pt", "npcache", "hf", "dummy", "tensorizer", "sharded_state", "evil.Loader", "PT", ".."]
)
def test_a_format_that_unpickles_or_has_no_weights_is_refused(value: str) -> None:
    assert refuse_flag(LOAD_FORMAT, value) == CODE


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 40])
def test_a_number_that_json_lacks_is_refused(value: str) -> None:
    assert refuse_flag(JSON, f'{{"image": {value}}}') == VALUE
    assert refuse_flag(JSON, f'{{"video": {{"image": {value}}}}}') == VALUE
    assert refuse_flag(JSON, f'{{"image": [1, {value}]}}') == VALUE
    assert refuse_flag(f"{JSON}.image", value) == VALUE


@pytest.mark.parametrize("name", sorted(FLAGS - KEYS.keys()))
def test_no_value_of_a_flag_is_another_flag_or_a_class_of_python(name: str) -> None:
    for value in ("--trust-remote-code", "-tp", "--model=x", "evil.Backend", "..", ".", "/x", "a b", ""):
        assert refuse_flag(name, value, on_hardware=True, opt_in=True), value


@given(texts(), st.sampled_from([*FAMILIES, ""]), st.sampled_from(sorted(VARIABLES)))
def test_hostile_text_passes_neither_as_a_name_nor_as_a_value(text: str, family: str, variable: str) -> None:
    assert refuse_variable(f"{family}{text}", "1") or VARIABLE_NAME.fullmatch(f"{family}{text}")
    assert refuse_variable(variable, text, on_hardware=True)
