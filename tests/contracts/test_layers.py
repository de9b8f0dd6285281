"""The names in the layers of drydock's stacks: a misspelt one would move nothing, unseen."""

from __future__ import annotations

from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.lock import lockfile


def test_each_name_in_a_layer_is_a_locked_distribution() -> None:
    named, locked = set(), set()
    for variant in read_matrix(DRYDOCK):
        platforms = lockfile.read_lock(lockfile.path_of_lock(DRYDOCK, variant.id)).platforms.values()
        names = {wheel.name for pins in platforms for wheels in pins.layers.values() for wheel in wheels}
        locked |= {(variant.accelerator, name) for name in names}
        if names:
            named |= {(variant.accelerator, name) for layer in variant.layers for name in layer.distributions}
    assert named - locked == set()
