"""What a library downloads after the start is used from the model's folder, or said before an air gap finds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from entrypoints.core.records import Device
from entrypoints.model.read import ModelFacts, read_model
from entrypoints.plan.later_downloads import choose_vocabulary, find_later_downloads
from entrypoints.request.vllm_flags import UserFlags, parse_user_flags
from entrypoints.request.vllm_lists import VllmLists
from tests.support.hosts.host_models import SMOLLM2
from tests.support.sample import facts, write_model

GPT_OSS = SMOLLM2._replace(name="/models/gpt-oss", architecture="GptOssForCausalLM")
GIB = 1 << 30


def given(*packages: str, **env: str) -> UserFlags:
    return parse_user_flags((), env)._replace(vllm=VllmLists({"packages": packages}))


def find_ids(model: ModelFacts, request: UserFlags, architecture: str = "9.0") -> list[str]:
    host = facts(devices=(Device(0, "a GPU", 80 * GIB, 0, 0, architecture=architecture),))
    return [item.id for item in find_later_downloads({"accelerator": "cuda"}, host, model, request)]


@pytest.mark.parametrize(
    ("model", "request_", "ids"),
    [
        (GPT_OSS, given("openai-harmony"), ["PLAN-180"]),
        (GPT_OSS, given(), []),
        (SMOLLM2, given("openai-harmony"), []),
        (GPT_OSS._replace(vocabulary=True), given("openai-harmony"), []),
        (GPT_OSS, given("openai-harmony", TIKTOKEN_ENCODINGS_BASE="/vocabulary"), []),
    ],
)
def test_a_vocabulary_that_would_be_downloaded_is_said(model: ModelFacts, request_: UserFlags, ids: list[str]) -> None:
    assert find_ids(model, request_) == ids


def test_the_vocabulary_in_the_models_folder_is_used(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    assert not read_model(str(folder)).vocabulary
    (folder / "o200k_base.tiktoken").write_text("")
    assert read_model(str(folder)).vocabulary

    model = GPT_OSS._replace(vocabulary=True)
    assert choose_vocabulary(model, given("openai-harmony"))["TIKTOKEN_ENCODINGS_BASE"].value == "/models/gpt-oss"
    assert choose_vocabulary(model, given()) == choose_vocabulary(GPT_OSS, given("openai-harmony")) == {}


@pytest.mark.parametrize(
    ("architecture", "packages", "env", "ids"),
    [
        ("10.0", ("flashinfer-python",), {}, ["PLAN-181"]),
        ("10.3", ("flashinfer-python", "flashinfer-cubin"), {}, []),
        ("10.0", ("flashinfer-python",), {"VLLM_HAS_FLASHINFER_CUBIN": "1"}, []),
        ("9.0", ("flashinfer-python",), {}, []),
        ("10.0", (), {}, []),
    ],
)
def test_kernels_that_are_downloaded_for_blackwell_are_said(
    architecture: str, packages: tuple[str, ...], env: dict[str, Any], ids: list[str]
) -> None:
    assert find_ids(SMOLLM2, given(*packages, **env), architecture) == ids
