"""Input other than text that an image cannot read, which vLLM says only when a request has it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import HOST, EntrypointError
from entrypoints.core.records import Facts, Notice, Value
from entrypoints.decide.parallelism.multimodal import ABSENT_PACKAGES, TEXT_ONLY, read_inputs
from entrypoints.model.config import SPEECH
from entrypoints.model.read import ModelFacts
from entrypoints.plan.other_rows import describe_taking_rows
from entrypoints.plan.refusal import Refusal
from entrypoints.plan.vllm_limits import find_absent_packages
from entrypoints.request.vllm_flags import UserFlags


def check_speech(profile: Mapping[str, Any], model: ModelFacts) -> None:
    """Raise HOST for a model that takes speech only, if the image cannot read sound."""
    lack = profile.get("unreadable", {}).get("audio")
    if lack and model.architecture in SPEECH:
        message = f"{model.name} ({model.architecture}) takes only sound, and this image reads none: {lack['because']}"
        raise EntrypointError(HOST, message, f"use the image of --target {lack['instead']}")


def choose_text_only(model: ModelFacts, user_flags: UserFlags) -> dict[str, Value]:
    """Return the settings with which vLLM serves a model's text in an image that lacks what its images need."""
    packages = find_absent_packages(user_flags.vllm, model, user_flags)
    if not packages:
        return {}
    lack = f"the image lacks {' and '.join(packages)}"
    values = {
        ABSENT_PACKAGES: Value(
            ",".join(packages),
            f"{lack}, which vLLM imports with the class of the model; drydock's plugin stands in for it",
        )
    }
    if model.modalities:
        more = f"--no-{TEXT_ONLY[2:]}: vLLM would refuse to start"
        values[TEXT_ONLY] = Value(True, f"{lack}, without which the model takes text only", (more,))
    return values


def note_text_only(
    profile: Mapping[str, Any], facts: Facts, model: ModelFacts, user_flags: UserFlags, text_only: Mapping[str, Value]
) -> tuple[Notice, ...]:
    """Return a notice for each kind of input that is refused for lack of a package, with the rows that take it."""
    if TEXT_ONLY not in text_only:
        return ()
    package = text_only[ABSENT_PACKAGES].value
    own_row = f"add {package} to the packages of a row of your own (docs/project.md)"
    refusal = Refusal(model.architecture, "", "", kind="architectures", instead=own_row)
    instead = describe_taking_rows(user_flags.vllm, refusal, facts, profile["variant"])
    return tuple(
        make_notice("PLAN-065", f"{kind} input: the image lacks {package}", instead, kind=kind)
        for kind in model.modalities
    )


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
