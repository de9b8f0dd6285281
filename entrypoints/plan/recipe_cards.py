"""The recipes' names of hardware → drydock's accelerators and cards. Pure.

Source: taxonomy.yaml of vllm-project/recipes at 8959cf64189c71d36e11c6a30335f923f261b1f7, `hardware_profiles`: name,
brand, generation, GPUs and memory of each.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from entrypoints.core.records import Device, Facts
from entrypoints.core.units import GIB


class Card(NamedTuple):
    """A kind of hardware that recipes name."""

    accelerator: str
    pattern: str
    """In the name of each device, or of the processor; as a regular expression."""
    name: str
    """The recipes' name."""
    generation: str
    brand: str = "nvidia"
    restricted: bool = False
    """Whether blocks for its generation were not written for it, unless the recipe names the card."""
    devices: int = 0
    """Number of devices that the name says; 0 for any."""
    memory: int = 0
    """GiB of one device; 0 for any. A part of a card (MIG, CPX) has its name, and not what a recipe was written for."""


SMALLEST, LARGEST = 0.85, 1.05
"""Share of a card's memory that its driver shows: between these for each card of tests/hosts; a GB300 of a DGX Station
has 252, one of a tray 288 (taxonomy.yaml)."""
_RTX = r"RTX(?: PRO)? "
CARDS = (
    Card("cuda", r"\bA100\b", "a100", "ampere"),
    Card("cuda", r"\bH100\b", "h100", "hopper", memory=80),
    Card("cuda", r"\bH200\b", "h200", "hopper", memory=141),
    Card("cuda", r"\bH20\b", "h20", "hopper", memory=96),
    Card("cuda", r"\bB200\b", "b200", "blackwell", memory=180),
    Card("cuda", r"\bGB200\b", "gb200", "blackwell", memory=192),
    Card("cuda", r"\bB300\b", "b300", "blackwell", memory=268),
    Card("cuda", r"\bGB300\b", "dgx_station_gb300", "blackwell", restricted=True, devices=1, memory=252),
    Card("cuda", r"\bGB300\b", "gb300", "blackwell", memory=288),
    Card("cuda", r"\bGB10\b", "dgx_spark_gb10", "blackwell", restricted=True),
    Card("cuda", rf"{_RTX}6000 Blackwell", "rtx_pro_6000", "blackwell", restricted=True, devices=1, memory=96),
    Card("cuda", rf"{_RTX}6000 Blackwell", "rtx_pro_6000_2x", "blackwell", restricted=True, devices=2, memory=96),
    Card("cuda", rf"{_RTX}6000 Blackwell", "rtx_pro_6000_8x", "blackwell", restricted=True, devices=8, memory=96),
    Card(
        "cuda", rf"{_RTX}5000 (?:72GB )?Blackwell", "rtx_pro_5000", "blackwell", restricted=True, devices=1, memory=72
    ),
    Card(
        "cuda",
        rf"{_RTX}5000 (?:72GB )?Blackwell",
        "rtx_pro_5000_4x",
        "blackwell",
        restricted=True,
        devices=4,
        memory=72,
    ),
    Card("cuda", rf"{_RTX}5090\b", "rtx_5090", "blackwell", restricted=True, devices=1, memory=32),
    Card("cuda", rf"{_RTX}5090\b", "rtx_5090_2x", "blackwell", restricted=True, devices=2, memory=32),
    Card("cuda", rf"{_RTX}4090\b", "rtx_4090_2x", "ada", restricted=True, devices=2, memory=24),
    Card("rocm", r"\bMI300X\b", "mi300x", "amd", "amd", memory=192),
    Card("rocm", r"\bMI325X\b", "mi325x", "amd", "amd", memory=256),
    Card("rocm", r"\bMI350X\b", "mi350x", "amd", "amd", memory=288),
    Card("rocm", r"\bMI355X\b", "mi355x", "amd", "amd", memory=288),
    Card("tpu", r"\bv6e\b", "trillium", "tpu", "google", restricted=True),
    Card("tpu", r"\bTPU7x\b", "ironwood", "tpu", "google", restricted=True),
    Card("xpu", r"\bPro B60\b", "arc_pro_b60", "xpu", "intel", restricted=True, memory=24),
    Card("xpu", r"\bPro B70\b", "arc_pro_b70", "xpu", "intel", restricted=True, memory=32),
    Card("ascend", r"\b950PR\b", "ascend_950pr", "npu", "huawei", restricted=True, memory=128),
    Card("cpu", r"\bXeon\(R\) 6\d{3}", "xeon6", "cpu", "intel", restricted=True),
    Card("cpu", r"\bXeon\(R\) \w+ [85]5\d\d", "xeon5", "cpu", "intel", restricted=True),
)
"""Of one pattern the first that fits counts."""
GENERATION_OF = {card.name: card.generation for card in CARDS}
USUAL_GENERATIONS = ("hopper", "blackwell")
"""What a recipe was written for that names no hardware. Source: command-synthesis.js, pickDefaultHardware."""


def find_card(accelerator: str, facts: Facts) -> Card | None:
    """Return the kind of hardware of a host; None for one that recipes do not name, a part of a card, or several."""
    names = {device.name for device in facts.devices} if facts.devices else {facts.processor.model}
    if len(names) != 1 or "MIG" in (name := names.pop()):
        return None
    fitting = (card for card in CARDS if card.accelerator == accelerator and re.search(card.pattern, name))
    return next((card for card in fitting if _is_matching_card(card, facts.devices)), None)


def _is_matching_card(card: Card, devices: tuple[Device, ...]) -> bool:
    memory = devices[0].memory_total if devices else None
    is_whole = not (memory and card.memory) or SMALLEST <= memory / (card.memory * GIB) <= LARGEST
    return card.devices in (0, len(devices)) and is_whole
