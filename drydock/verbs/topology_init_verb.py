"""The verb `topology init`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.verb_options import VerbOptions


class TopologyInitOptions(VerbOptions):
    """What a topology.yaml is made from."""

    root: str
    """folder with recorded hosts (facts --record): NAME.json or NAME/host.json"""
    output: str = "topology.yaml"
    """file to write, which must not exist [default: topology.yaml]"""
    model: str = ""
    """hub id of the model, oci://…@sha256:…, or a folder that every node has"""
    target: str = ""
    """variant id, alias or accelerator [default: what fits the hosts]"""
    shape: Literal["", "1p1d", "2p1d"] = ""
    """1p1d or 2p1d: one or two servers compute prompts, one computes answers [default: all serve]"""


@Verb
def init_topology(options: TopologyInitOptions) -> None:
    """Write a topology.yaml for several machines, from their recorded hosts."""
    from drydock.topology import topology_tasks

    topology_tasks.init_topology(
        here(), Path(options.root), Path(options.output), options.model, options.target, options.shape
    )
