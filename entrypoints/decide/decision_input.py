"""The input of a decision. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from entrypoints.core.records import Facts
from entrypoints.decide.records import Thresholds
from entrypoints.model.read import ModelFacts
from entrypoints.request.vllm_flags import UserFlags

_FLOAT32 = ("float32", "float")


class Case(NamedTuple):
    """The input of a decision; accelerators extend it with properties that their rules use."""

    profile: Mapping[str, Any]
    facts: Facts
    model: ModelFacts
    user_flags: UserFlags

    @property
    def thresholds(self) -> Thresholds:
        """The numbers that decisions use."""
        return Thresholds(self.profile["thresholds"])

    @property
    def architecture(self) -> str:
        """The first device's architecture, for all devices of a machine; empty if unknown."""
        return self.facts.devices[0].architecture if self.facts.devices else ""


def element_bytes(dtype: str) -> int:
    """Return the size in bytes of one number of a `--dtype`."""
    return 4 if dtype in _FLOAT32 else 2
