"""What is rendered of the examples, by ansible-lint and by Ansible's own check of syntax."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from drydock.core.files import write_atomically
from drydock.model.shared_options import SshOptions
from drydock.topology.playbook import playbook_run
from drydock.topology.playbook.environment import prepare_ansible_programs
from drydock.topology.render import render_plan
from tests.support import topologies
from tests.support.topology_files import EXAMPLES, planned

SEEDS = ("2p1d-omni", "4p1d-omni", "cpu-trio")


@pytest.fixture(params=SEEDS, scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rendered example; of chips that no recorded host has, their addresses are made up."""
    work_folder = tmp_path_factory.mktemp(request.param)
    plan = planned(EXAMPLES / f"{request.param}.yaml", work_folder)
    nodes = sorted({rank.node for replica in plan.replicas for rank in replica.ranks})
    hosts = {node: topologies.chips(place, 16) for place, node in enumerate(nodes)} if plan.accelerator != "cpu" else {}
    for name, text in render_plan(plan, topologies.variant(plan.variant), "ansible", hosts).items():
        write_atomically(work_folder / "rendered" / name, text)
    return work_folder / "rendered"


def ansible(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    program_folder = prepare_ansible_programs()
    env = playbook_run.make_ansible_environment(program_folder, folder.parent, SshOptions())
    (folder.parent / "ansible.cfg").touch()
    words = (str(program_folder / command[0]), *command[1:])
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_ansible_lint_finds_nothing(folder: Path) -> None:
    result = ansible(folder, "ansible-lint", "--offline", "--nocolor", "--strict", "--project-dir", str(folder))
    assert result.returncode == 0, result.stdout
    assert "Passed" in result.stderr, result.stderr


def test_the_syntax_of_every_playbook_and_variable_is_right(folder: Path) -> None:
    words = ("--inventory", "inventory.yml", "--check")
    result = ansible(folder, "ansible-playbook", *words, "--syntax-check", "playbook.yml")
    assert result.returncode == 0, result.stderr
    result = ansible(folder, "ansible-inventory", "--inventory", "inventory.yml", "--list")
    assert result.returncode == 0, result.stderr
    assert len([*(folder / "host_vars").iterdir()]) == result.stdout.count('"topology_ranks"')
