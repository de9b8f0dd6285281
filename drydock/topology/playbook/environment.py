"""Ansible in an environment of its own, outside .venv: 300 MB that only playbooks need. IO.

It is made of requirements-ansible.txt when the first playbook runs, from the indexes that pip is configured to use;
every wheel must have a hash of that file.
"""

from __future__ import annotations

from pathlib import Path

from drydock.core.paths import ROOT
from drydock.inputs.locked_environment import EnvironmentRequest, prepare_environment

REQUIREMENTS = ROOT / "requirements-ansible.txt"


def prepare_ansible_programs(requirements: Path = REQUIREMENTS) -> Path:
    """Return the folder of ansible-playbook and ansible-lint; make their environment if there is none.

    Raises InputError if the packages cannot be had or another user could have written them, and DiskFullError.
    """
    return prepare_environment(EnvironmentRequest("Ansible", "ansible", requirements)) / "bin"
