"""Input other than text that an image cannot read, which vLLM says only when a request has it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import HOST, EntrypointError
from entrypoints.core.records import Notice
from entrypoints.decide.parallelism.multimodal import TEXT_ONLY, read_inputs
from entrypoints.model.config import SPEECH
from entrypoints.model.read import ModelFacts
from entrypoints.request.vllm_flags import UserFlags


def check_speech(profile: Mapping[str, Any], model: ModelFacts) -> None:
    """Raise HOST for a model that takes speech only, if the image cannot read sound."""
    lack = profile.get("unreadable", {}).get("audio")
    if lack and model.architecture in SPEECH:
        message = f"{model.name} ({model.architecture}) takes only sound, and this image reads none: {lack['because']}"
        raise EntrypointError(HOST, message, f"use the image of --target {lack['instead']}")


def check_unreadable_inputs(
    profile: Mapping[str, Any], model: ModelFacts, user_flags: UserFlags, settled: Mapping[str, str | bool]
) -> tuple[Notice, ...]:
    """Return a notice for each kind of the model's input that the image cannot read and the server does not refuse."""
    refused = model.modalities if settled.get(TEXT_ONLY) else read_inputs(user_flags, 0).refused
    return tuple(
        make_notice("PLAN-065", f"{kind} input: {lack['because']}", f"--target {lack['instead']}", kind=kind)
        for kind, lack in profile.get("unreadable", {}).items()
        if kind in model.modalities and kind not in refused
    )
