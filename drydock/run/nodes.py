"""Labels of the Kubernetes nodes that have a pod's devices, such as those of TPUs in GKE. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drydock.model.running import NodeKind
from drydock.model.variant import Variant
from drydock.run.container import ASSUMING, Container, RunRequest


def kinds(variant: Variant) -> tuple[NodeKind, ...]:
    """Return the kinds of nodes that the accelerator's record lists."""
    return variant.run.kubernetes.nodes if variant.run.kubernetes else ()


def located(
    variant: Variant, target: str, request: RunRequest, wanted: Container, facts: Mapping[str, Any]
) -> Container:
    """Return the container with the labels of its nodes, their number of devices, and a remark where no label fits.

    The architecture is that of the devices in `facts`; without any, that in the target's name (tpu-v6e). Without
    --devices a pod gets all devices of the node in `facts`, or of the largest kind of node.
    """
    devices: Sequence[Mapping[str, Any]] = facts.get("devices", ())
    found = {str(device["architecture"]) for device in devices} or {target.rpartition("-")[2]}
    alike = [kind for kind in kinds(variant) if {kind.architecture} == found]
    if not alike:
        known = ", ".join(dict.fromkeys(kind.architecture for kind in kinds(variant)))
        note = f"nodeSelector: left out, because the nodes' devices are unknown ({known}); --root HOST.json tells them"
        return wanted.model_copy(update={"notes": (*wanted.notes, note)})
    count = wanted.count if request.devices else len(devices) or max(kind.devices for kind in alike)
    fitting = next((kind for kind in alike if kind.devices == count), None)
    sizes = " or ".join(str(kind.devices) for kind in alike)
    note = f"no node of {alike[0].architecture} has {count} devices, but {sizes}: choose them with --devices"
    notes = (*(text for text in wanted.notes if not text.startswith(ASSUMING)), *(() if fitting else (note,)))
    labels = fitting.labels if fitting else _common(alike)
    return wanted.model_copy(update={"count": count, "nodes": labels, "notes": notes})


def _common(alike: Sequence[NodeKind]) -> dict[str, str]:
    """Return the labels that all kinds share."""
    first = alike[0].labels
    return {name: value for name, value in first.items() if all(kind.labels.get(name) == value for kind in alike)}
