"""The accelerators: each one's probe, which finds its devices, and its decisions. One line per accelerator."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import NamedTuple


class Accelerator(NamedTuple):
    """The modules of one accelerator, by name: only those of the image's own accelerator are imported."""

    probe: str
    """A module of entrypoints/facts/probes/ with `look(host, run, env) -> Seen`."""
    decide: str
    """A module of entrypoints/decide/ with `decide(profile, facts, model, given) -> Decision`."""


ACCELERATORS = {
    "ascend": Accelerator("ascend.ascend", "ascend"),
    "cpu": Accelerator("common.cpu", "cpu.cpu"),
    "cuda": Accelerator("cuda.cuda", "cuda"),
    "enflame": Accelerator("enflame", "enflame"),
    "habana": Accelerator("habana.habana", "habana.habana"),
    "neuron": Accelerator("neuron.neuron", "neuron.neuron"),
    "openvino": Accelerator("common.cpu", "cpu.openvino"),
    "rocm": Accelerator("rocm.rocm", "rocm"),
    "tpu": Accelerator("tpu", "tpu"),
    "xpu": Accelerator("xpu.xpu", "xpu"),
}


def probe_module(accelerator: str) -> ModuleType:
    """Import and return an accelerator's probe."""
    return import_module(f"entrypoints.facts.probes.{ACCELERATORS[accelerator].probe}")


def decide_module(accelerator: str) -> ModuleType:
    """Import and return an accelerator's decisions."""
    return import_module(f"entrypoints.decide.{ACCELERATORS[accelerator].decide}")
