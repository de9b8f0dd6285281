"""What a decision looks at. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from entrypoints.core.records import Facts
from entrypoints.decide.records import Thresholds
from entrypoints.model.read import ModelFacts
from entrypoints.request.vllm_flags import UserFlags

_WIDE = ("float32", "float")


class Case(NamedTuple):
    """The question; accelerators' own cases add what their rules ask of it."""

    profile: Mapping[str, Any]
    facts: Facts
    model: ModelFacts
    given: UserFlags

    @property
    def thresholds(self) -> Thresholds:
        """The numbers that decisions use."""
        return Thresholds(self.profile["thresholds"])

    @property
    def architecture(self) -> str:
        """What the devices' kernels are compiled for, those of one machine being alike; empty where nothing tells."""
        return self.facts.devices[0].architecture if self.facts.devices else ""


def element_bytes(dtype: str) -> int:
    """Return the bytes of a number of `--dtype`."""
    return 4 if dtype in _WIDE else 2
