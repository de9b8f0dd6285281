"""Hosts with devices, models and rules that tests of the fit change a little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entrypoints.core.records import Device, Facts, Link
from entrypoints.decide.parallelism.fit import Rules
from entrypoints.model.geometry import Geometry
from entrypoints.model.read import ModelFacts
from entrypoints.model.weights import Weights
from entrypoints.request.intents import Intents
from entrypoints.request.vllm_flags import UserFlags, parse_user_flags
from tests.support import sample

GIB = 1 << 30
RULES = Rules(usable=0.9, reserved=1 * GIB, activations=1 * GIB)

LLAMA_8B = Geometry(32, 0, 0, 32, 8, 128, 0, 131072, hidden=4096, vocabulary=128256, intermediate=14336)
LLAMA_70B = Geometry(80, 0, 0, 64, 8, 128, 0, 131072, hidden=8192, vocabulary=128256, intermediate=28672)


def model(geometry: Geometry | None = LLAMA_8B, billions: float = 8.03, **changes: Any) -> ModelFacts:
    """Return a model of bfloat16 weights."""
    elements = int(billions * 1e9)
    plain = ModelFacts(
        "/models/m", True, "LlamaForCausalLM", "", Weights(2 * elements, elements, 0), geometry, "" if geometry else "?"
    )
    return plain._replace(**changes)


def device(number: int, memory: int = 80, **changes: Any) -> Device:
    return Device(number, "Card", memory * GIB, 0, None, health="ok", busy=False)._replace(**changes)


def host(count: int = 8, memory: int = 80, kind: str = "", **changes: Any) -> Facts:
    """Return a host of equal devices, joined pairwise by one kind of link where that is given."""
    devices = tuple(device(number, memory) for number in range(count))
    links = tuple(Link(first, second, kind) for first in range(count) for second in range(first + 1, count))
    return sample.facts(accelerator="cuda", devices=devices, links=links if kind else ())._replace(**changes)


def said(
    *words: str, env: Mapping[str, str] | None = None, option_strings: tuple[str, ...] = (), **intents: Any
) -> UserFlags:
    return parse_user_flags(words, env or {}, option_strings, Intents(**intents))
