"""Which layer of an image each wheel is in. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from drydock.model.locked import LockedWheel
from drydock.model.variant import Variant


def assign_wheels_to_layers(variant: Variant, wheels: Sequence[LockedWheel]) -> dict[str, tuple[LockedWheel, ...]]:
    """Assign wheels to the variant's layers: to the layer that names them, otherwise to the one that names none."""
    layer_by_name = {name: layer.name for layer in variant.layers for name in layer.distributions}
    rest = next((layer.name for layer in variant.layers if not layer.distributions), "")
    return {
        layer.name: tuple(wheel for wheel in wheels if layer_by_name.get(wheel.name, rest) == layer.name)
        for layer in variant.layers
    }
