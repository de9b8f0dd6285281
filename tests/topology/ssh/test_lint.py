"""What is rendered of the examples, by ansible-lint and by Ansible's own check of syntax."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from drydock.core.files import write_atomically
from drydock.topology.playbook import run
from drydock.topology.playbook.environment import programs
from drydock.topology.playbook.run import Ssh
from drydock.topology.render import render
from tests.support import topologies
from tests.support.topology_files import EXAMPLES, planned

SEEDS = ("2p1d-omni", "4p1d-omni", "cpu-trio")


@pytest.fixture(params=SEEDS, scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rendered example; of chips that no recorded host has, their addresses are made up."""
    made = tmp_path_factory.mktemp(request.param)
    plan = planned(EXAMPLES / f"{request.param}.yaml", made)
    nodes = sorted({rank.node for replica in plan.replicas for rank in replica.ranks})
    hosts = {node: topologies.chips(place, 16) for place, node in enumerate(nodes)} if plan.accelerator != "cpu" else {}
    for name, text in render(plan, topologies.variant(plan.variant), "ansible", hosts).items():
        write_atomically(made / "rendered" / name, text)
    return made / "rendered"


def ansible(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    own = programs()
    env = run.environment(own, folder.parent, Ssh())
    (folder.parent / "ansible.cfg").touch()
    words = (str(own / command[0]), *command[1:])
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_ansible_lint_finds_nothing(folder: Path) -> None:
    done = ansible(folder, "ansible-lint", "--offline", "--nocolor", "--strict", "--project-dir", str(folder))
    assert done.returncode == 0, done.stdout
    assert "Passed" in done.stderr, done.stderr


def test_the_syntax_of_every_playbook_and_variable_is_right(folder: Path) -> None:
    words = ("--inventory", "inventory.yml", "--check")
    done = ansible(folder, "ansible-playbook", *words, "--syntax-check", "playbook.yml")
    assert done.returncode == 0, done.stderr
    done = ansible(folder, "ansible-inventory", "--inventory", "inventory.yml", "--list")
    assert done.returncode == 0, done.stderr
    assert len([*(folder / "host_vars").iterdir()]) == done.stdout.count('"topology_ranks"')
