"""What the name of an NVIDIA GPU says where nvidia-smi may not read it: memory, and whether it has its own. Pure.

In a pod with a MIG instance, memory.total of the GPU is [Insufficient Permissions]; below a hypervisor it may be [N/A].
"""

from __future__ import annotations

import re
from typing import NamedTuple

from entrypoints.core.units import MIB

_UNIFIED = ("GB10", "Thor", "Orin", "Xavier", "Tegra", "Jetson")
"""Words in the names of chips whose GPU uses the host's memory, so that nvidia-smi prints no size."""


class GpuModel(NamedTuple):
    """A model of GPU: the words that its name contains, and its memory."""

    words: tuple[str, ...]
    mib: int
    """What nvidia-smi prints as memory.total; with error correction, where that can be switched."""


_MODELS = (
    GpuModel(("B300",), 275040),
    GpuModel(("GB300",), 284208),
    GpuModel(("GB200",), 189471),
    GpuModel(("B200",), 183359),
    GpuModel(("H200",), 143771),
    GpuModel(("GH200", "480GB"), 97871),
    GpuModel(("H100", "NVL"), 95830),
    GpuModel(("H100", "80GB"), 81559),
    GpuModel(("H100", "PCIe"), 81559),
    GpuModel(("A100", "80GB"), 81920),
    GpuModel(("A100", "40GB"), 40960),
    GpuModel(("A30",), 24576),
    GpuModel(("A40",), 46068),
    GpuModel(("A10",), 23028),
    GpuModel(("A10G",), 23028),
    GpuModel(("L40S",), 46068),
    GpuModel(("L40",), 46068),
    GpuModel(("L4",), 23034),
    GpuModel(("T4",), 15079),
    GpuModel(("V100", "32GB"), 32768),
    GpuModel(("V100", "16GB"), 16384),
    GpuModel(("RTX", "PRO", "6000", "Blackwell"), 97887),
    GpuModel(("RTX", "6000", "Ada"), 49140),
    GpuModel(("RTX", "A6000"), 49140),
    GpuModel(("RTX", "5090"), 32607),
    GpuModel(("RTX", "4090"), 24564),
    GpuModel(("RTX", "3090"), 24576),
)
"""From published outputs of nvidia-smi. The first model whose words are all in the name counts."""

_INSTANCES = {
    "1g.5gb": 4864,
    "1g.10gb": 9728,
    "1g.20gb": 19968,
    "2g.10gb": 9856,
    "2g.20gb": 19968,
    "3g.20gb": 19968,
    "3g.40gb": 40192,
    "4g.20gb": 19968,
    "4g.40gb": 40192,
    "7g.40gb": 40192,
    "7g.80gb": 80640,
    "1g.6gb": 5952,
    "2g.12gb": 11904,
    "4g.24gb": 23936,
}
"""MIG profile → MiB, of the GPU on which it is smallest (NVIDIA MIG user guide, nvidia-smi mig -lgip)."""


def is_unified(name: str) -> bool:
    """Tell whether a GPU has no memory of its own: it uses the host's."""
    return any(word in name for word in _UNIFIED)


def find_memory(name: str) -> int | None:
    """Return the bytes of memory that a model has; None if the model is not known."""
    words = frozenset(re.split(r"[ _-]+", name))
    size = next((model.mib for model in _MODELS if words.issuperset(model.words)), 0)
    return size * MIB or None


def find_instance_memory(profile: str) -> int | None:
    """Return the bytes of a MIG instance by its profile, 1g.10gb or 1g.10gb+me; None if it is not known."""
    return _INSTANCES.get(profile.partition("+")[0].lower(), 0) * MIB or None
