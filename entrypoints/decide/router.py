"""The image of the router serves no model. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entrypoints.core.errors import HOST, EntrypointError
from entrypoints.core.records import Facts
from entrypoints.decide.records import Decision
from entrypoints.model.read import ModelFacts
from entrypoints.request.vllm_flags import UserFlags


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, user_flags: UserFlags) -> Decision:
    """Refuse to serve. Raises HOST always."""
    del facts, model, user_flags
    raise EntrypointError(
        HOST,
        f"{profile['variant']} has no vLLM: it is the router's image",
        "run vllm-router in it, as drydock's `topology plan` prints it, and serve with the image of an accelerator",
    )
