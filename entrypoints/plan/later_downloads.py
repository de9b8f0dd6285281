"""Files that a library downloads after the start, which an air gap finds at the first request. Pure.

What the image or the model's folder has is used; what would be downloaded is said before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.checks.findings import make_notice
from entrypoints.core.records import Facts, Notice, Value
from entrypoints.model.read import VOCABULARY, ModelFacts
from entrypoints.request.vllm_flags import UserFlags

VOCABULARY_FOLDER = "TIKTOKEN_ENCODINGS_BASE"
"""Where openai-harmony looks for its vocabulary before it downloads it. Source: harmony#95, harmony#101."""
HARMONY = "openai-harmony"
"""Its releases up to 0.0.8 download the vocabulary. vLLM 0.30 and later have a parser of their own instead."""
BLACKWELL = "10."
"""Compute capabilities whose attention kernels FlashInfer downloads. Source: vllm/utils/flashinfer.py,
has_nvidia_artifactory and supports_trtllm_attention."""


def choose_vocabulary(model: ModelFacts, user_flags: UserFlags) -> dict[str, Value]:
    """Return the folder of the vocabulary, if the model's folder has it and this image reads it."""
    if not _reads_vocabulary(model, user_flags) or not model.vocabulary:
        return {}
    because = f"the model's folder has {VOCABULARY}, which openai-harmony would download"
    return {VOCABULARY_FOLDER: Value(model.name, because)}


def find_later_downloads(
    profile: Mapping[str, Any], facts: Facts, model: ModelFacts, user_flags: UserFlags
) -> Iterator[Notice]:
    """Yield a notice for each file that will be downloaded after the start."""
    if _reads_vocabulary(model, user_flags) and not model.vocabulary and not user_flags.variable(VOCABULARY_FOLDER):
        yield make_notice("PLAN-180", f"{HARMONY} without {VOCABULARY}", f"{VOCABULARY} in the model's folder")
    packages = user_flags.vllm.names("packages") or frozenset()
    is_blackwell = any(device.architecture.startswith(BLACKWELL) for device in facts.devices)
    has_kernels = "flashinfer-cubin" in packages or user_flags.variable("VLLM_HAS_FLASHINFER_CUBIN") == "1"
    if profile["accelerator"] == "cuda" and is_blackwell and "flashinfer-python" in packages and not has_kernels:
        yield make_notice("PLAN-181", "flashinfer-python without flashinfer-cubin", "the package flashinfer-cubin")


def _reads_vocabulary(model: ModelFacts, user_flags: UserFlags) -> bool:
    packages = user_flags.vllm.names("packages") or frozenset()
    return model.architecture == "GptOssForCausalLM" and HARMONY in packages
