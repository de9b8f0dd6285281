"""Options that several verbs of topologies share."""

from __future__ import annotations

from typing import Literal

from drydock.core.verb_options import VerbOptions


class PlannedOptions(VerbOptions):
    """Whose plan it is."""

    model: str = ""
    """folder on this machine with the model's config.json, if the nodes' is elsewhere"""
    target: str = ""
    """the row that the image was built from, if no lock here has its digest"""


class FileOptions(PlannedOptions):
    """A topology, planned or not."""

    file: str
    """a topology.yaml, or its plan: topology plan --json"""


class SshOptions(VerbOptions):
    """How nodes are reached."""

    user: str = ""
    """with ansible: user to log in as [default: as in ~/.ssh/config]"""
    ssh_key: str = ""
    """file with the private key of ssh"""
    known_hosts: str = ""
    """file with the nodes' host keys [default: ~/.ssh/known_hosts]"""
    become: bool = False
    """run as root on the nodes, by sudo"""


class TopologyStartOptions(FileOptions, SshOptions):
    """What is started or stopped, and how."""

    format: Literal["", "ansible", "compose"] = ""
    """ansible: on the nodes, by ssh; compose: all nodes as containers of this machine's engine"""
    output: str = ""
    """folder for the rendered files [default: .cache/topology/NAME]"""
