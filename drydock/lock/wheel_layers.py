"""Which layer of an image each wheel is in. Pure, except for a warning."""

from __future__ import annotations

from collections.abc import Sequence

from drydock.core.console import log
from drydock.model.locked import LockedWheel
from drydock.model.variant import Variant


def assign_wheels_to_layers(variant: Variant, wheels: Sequence[LockedWheel]) -> dict[str, tuple[LockedWheel, ...]]:
    """Assign wheels to the variant's layers: to the layer that names them, otherwise to the one that names none."""
    layer_by_name = {name: layer.name for layer in variant.layers for name in layer.distributions}
    rest = next((layer.name for layer in variant.layers if not layer.distributions), "")
    absent = sorted(set(layer_by_name) - {wheel.name for wheel in wheels}) if wheels else []
    if absent:
        log(f"{variant.id}: a layer names distributions that are not required: {', '.join(absent)}")
    return {
        layer.name: tuple(wheel for wheel in wheels if layer_by_name.get(wheel.name, rest) == layer.name)
        for layer in variant.layers
    }
