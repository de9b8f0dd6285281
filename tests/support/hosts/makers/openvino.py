"""A host for OpenVINO: a processor is all it takes."""

from __future__ import annotations

from tests.support.hosts.makers.cpu import trees as cpus
from tests.support.hosts.pieces import Tree


def trees() -> dict[str, Tree]:
    """Return the two-socket Xeon of the CPU hosts, under this accelerator's name."""
    return {"openvino-xeon8380-2s": cpus()["cpu-xeon8380-2s"]}
