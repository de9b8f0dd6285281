"""Speculative decoding that this vLLM does not start with is refused, by its methods and by the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.lock.vllm_lists import lists_path, read_lists
from entrypoints.plan.drafting_limits import find_drafting_refusals
from entrypoints.request.vllm_flags import parse_user_flags
from entrypoints.request.vllm_lists import VllmLists
from tests.support.planned import models

PLAIN, WITH_LAYERS, WITHOUT_STATES = "Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-V3", "google/gemma-2-9b-it"


def problems(name: str, fields: Mapping[str, Any], *words: str, version: str = "0.32.0") -> list[str]:
    record = read_lists(lists_path(DRYDOCK, "vllm", version))
    assert record
    lists = VllmLists({**record.lists, "packages": []})
    user_flags = parse_user_flags(("--speculative-config", json.dumps(fields), *words), {})
    settings = {flag: value.value for flag, value in user_flags.flags.items()}
    return [refusal.problem for refusal in find_drafting_refusals(lists, models()[name], user_flags, settings)]


@pytest.mark.parametrize(
    ("name", "fields", "part"),
    [
        (PLAIN, {"method": "mtp", "num_speculative_tokens": 1}, "which has no layers that draft tokens"),
        (PLAIN, {"method": "deepseek_mtp", "num_speculative_tokens": 1}, "which has no layers that draft tokens"),
        (PLAIN, {"method": "eagle3", "num_speculative_tokens": 2}, "method eagle3 without a draft model"),
        (PLAIN, {"method": "medusa", "num_speculative_tokens": 2}, "method medusa without a draft model"),
        (PLAIN, {"num_speculative_tokens": 2}, "no method and without a draft model"),
        (PLAIN, {"method": "ngram"}, "without num_speculative_tokens"),
        (PLAIN, {"method": "suffix"}, "requires the package arctic-inference"),
        (PLAIN, {"method": "banana", "num_speculative_tokens": 2}, "method banana"),
        (PLAIN, {"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens 0"),
        (
            PLAIN,
            {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 5, "prompt_lookup_max": 2},
            "prompt_lookup_min 5 and prompt_lookup_max 2",
        ),
        (WITHOUT_STATES, {"method": "eagle3", "model": "x/y"}, "which hands out no hidden states"),
        (WITH_LAYERS, {"method": "mtp", "tensor_parallel_size": 2}, "tensor_parallel_size"),
        (WITH_LAYERS, {"method": "mtp", "draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size 2"),
    ],
)
def test_what_vllm_does_not_start_with_is_refused(name: str, fields: dict[str, Any], part: str) -> None:
    messages = problems(name, fields)
    assert len(messages) == 1
    assert part in messages[0]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (PLAIN, {}),
        (PLAIN, {"method": "ngram", "num_speculative_tokens": 3}),
        (PLAIN, {"method": "eagle3", "model": "x/y", "num_speculative_tokens": 2}),
        (PLAIN, {"model": "x/y", "num_speculative_tokens": 2}),
        (WITH_LAYERS, {"method": "mtp", "num_speculative_tokens": 1}),
        (WITH_LAYERS, {"method": "deepseek_mtp"}),
    ],
)
def test_what_vllm_starts_with_is_taken(name: str, fields: dict[str, Any]) -> None:
    assert problems(name, fields) == []


def test_a_method_that_a_version_lacks_is_refused_by_that_version() -> None:
    fields = {"method": "medusa", "model": "x/y", "num_speculative_tokens": 2}
    assert problems(PLAIN, fields) == []
    assert problems(PLAIN, fields, version="0.33.0") == ["--speculative-config: method medusa"]
