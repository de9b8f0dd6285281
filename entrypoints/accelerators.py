"""The table of accelerators: for each one its probe, which finds the devices, and its decisions."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import NamedTuple


class Accelerator(NamedTuple):
    """The modules of one accelerator. They are names, so that an image imports only those of its own accelerator."""

    probe: str
    """Module in entrypoints/facts/probes/ that defines `probe(host, run, env) -> ProbeResult`, and `DEVICE_TOOL`, the
    command that shows the state of the devices, if there is one."""
    decide: str
    """Module in entrypoints/decide/ that defines `decide(profile, facts, model, user_flags) -> Decision`."""


ACCELERATORS = {
    "ascend": Accelerator("ascend.ascend", "ascend"),
    "cpu": Accelerator("common.cpu", "cpu.cpu"),
    "cuda": Accelerator("cuda.cuda", "cuda"),
    "enflame": Accelerator("enflame", "enflame"),
    "habana": Accelerator("habana.habana", "habana.habana"),
    "neuron": Accelerator("neuron.neuron", "neuron.neuron"),
    "openvino": Accelerator("common.cpu", "openvino"),
    "router": Accelerator("common.cpu", "router"),
    "rocm": Accelerator("rocm.rocm", "rocm"),
    "tpu": Accelerator("tpu", "tpu"),
    "xpu": Accelerator("xpu.xpu", "xpu"),
}


def import_probe(accelerator: str) -> ModuleType:
    """Import and return an accelerator's probe."""
    return import_module(f"entrypoints.facts.probes.{ACCELERATORS[accelerator].probe}")


def import_decider(accelerator: str) -> ModuleType:
    """Import and return an accelerator's decisions."""
    return import_module(f"entrypoints.decide.{ACCELERATORS[accelerator].decide}")
