"""Options that several verbs of topologies share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from drydock.core.verb_options import VerbOptions

if TYPE_CHECKING:
    from drydock.topology.playbook.playbook_run import Ssh


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

    def make_ssh(self) -> Ssh:
        """Return how Ansible logs in."""
        from drydock.topology.playbook.playbook_run import Ssh  # noqa: PLC0415 - few verbs log in anywhere

        return Ssh(self.user, self.ssh_key, self.known_hosts, become=self.become)


class TopologyStartOptions(FileOptions, SshOptions):
    """What is started or stopped, and how."""

    format: Literal["", "ansible", "compose"] = ""
    """ansible: on the nodes, by ssh; compose: all nodes as containers of this machine's engine"""
    output: str = ""
    """folder for the rendered files [default: .cache/topology/NAME]"""
