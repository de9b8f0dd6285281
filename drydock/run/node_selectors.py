"""Labels of the Kubernetes nodes that have a pod's devices, such as those of TPUs in GKE. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drydock.model.running import NodeKind
from drydock.model.variant import Variant
from drydock.run.container import ASSUMING, Container, RunRequest


def list_node_kinds(variant: Variant) -> tuple[NodeKind, ...]:
    """Return the kinds of nodes that the accelerator's record lists."""
    return variant.run.kubernetes.nodes if variant.run.kubernetes else ()


def kind_of(variant: Variant, architectures: set[str]) -> NodeKind | None:
    """Return the kind of nodes whose devices have one architecture; None for an unknown one, and for several."""
    return next((kind for kind in list_node_kinds(variant) if {kind.architecture} == architectures), None)


def make_node_labels(kind: NodeKind, devices: int, hosts: int = 1) -> dict[str, str]:
    """Return the labels of one of several nodes with so many devices each; without the shape if there is none."""
    shape = kind.shapes.get(str(devices) if hosts == 1 else f"{hosts} hosts of {devices}")
    return {**kind.labels, **({kind.shape: shape} if shape else {})}


def make_architecture_label(variant: Variant) -> dict[str, str]:
    """Return the label of nodes that can run an image of one platform; none for an image of several.

    Source: Kubernetes, Well-Known Labels, Annotations and Taints.
    """
    platform, *other_platforms = variant.platforms
    return {} if other_platforms else {"kubernetes.io/arch": platform.partition("/")[2]}


def place_on_nodes(
    variant: Variant, target: str, request: RunRequest, container: Container, facts: Mapping[str, Any]
) -> Container:
    """Return the container with the labels of its nodes, their number of devices, and a remark where no label fits.

    The architecture is that of the devices in `facts`; without any, that in the target's name (tpu-v6e). Without
    --devices a pod gets all devices of the node in `facts`, or of the largest kind of node.
    """
    devices: Sequence[Mapping[str, Any]] = facts.get("devices", ())
    kind = kind_of(variant, {str(device["architecture"]) for device in devices} or {target.rpartition("-")[2]})
    if not kind:
        names = ", ".join(node_kind.architecture for node_kind in list_node_kinds(variant))
        note = f"nodeSelector: left out, because the nodes' devices are unknown ({names}); --root HOST.json tells them"
        return container.model_copy(update={"notes": (*container.notes, note)})
    sizes = [int(shape) for shape in kind.shapes if shape.isdecimal()]
    count = container.count if request.devices else len(devices) or max(sizes)
    some = " or ".join(map(str, sizes))
    remarks = (
        () if count in sizes else (f"no node of {kind.architecture} has {count} devices, but {some}: see --devices",)
    )
    notes = (*(text for text in container.notes if not text.startswith(ASSUMING)), *remarks)
    return container.model_copy(update={"count": count, "nodes": make_node_labels(kind, count), "notes": notes})
