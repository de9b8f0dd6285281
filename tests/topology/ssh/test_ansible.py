"""A rendered playbook, run over ssh on machines with sshd, sudo and an engine of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.core.files import format_json
from drydock.model.record import dump_record
from drydock.topology import planned_file
from drydock.topology.playbook.playbook_run import run_playbook
from tests.support import serving_ssh
from tests.support.called_verbs import render_topology
from tests.support.machines_ssh import Machine, Machines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, two: Machines, image: str) -> Path:
    """The rendered playbook of two servers; both machines have the model."""
    work_folder = tmp_path_factory.mktemp("rendered")
    file, model = serving_ssh.write(work_folder, two, image)
    plan = planned_file.plan_topology_file(DRYDOCK, file, str(model), "cpu")
    (work_folder / "plan.json").write_text(format_json(dump_record(plan)))
    render_topology(work_folder / "plan.json", "ansible", work_folder / "rendered")
    return work_folder / "rendered"


def play(folder: Path, two: Machines, *tags: str) -> int:
    """Run tags of the playbook; return how many tasks changed something, on both machines together."""
    output_lines: list[str] = []
    secrets = {"topology_secrets": {"VLLM_API_KEY": "a-key"}}
    run_playbook(folder, tags, ssh=two.ssh, seconds=300, variables=secrets, on_line=output_lines.append)
    recap = dict(re.findall(r"^(n\d)\s*:.*\bchanged=(\d+)", "\n".join(output_lines), re.MULTILINE))
    assert set(recap) == {"n0", "n1"}
    return sum(map(int, recap.values()))


@pytest.fixture
def stopped(folder: Path, two: Machines) -> Iterator[None]:
    yield
    run_playbook(folder, ("stop",), ssh=two.ssh, seconds=300)


def running(node: Machine) -> list[str]:
    return node.run("docker", "ps", "--all", "--format", "{{.Names}}").splitlines()


@pytest.mark.usefixtures("stopped")
def test_a_playbook_starts_keeps_and_stops_a_topology(folder: Path, two: Machines, image: str) -> None:
    assert play(folder, two, "check") == 0
    assert play(folder, two, "run") > 0
    for number, node in enumerate(two.nodes):
        assert running(node) == [f"whole-{number}-0"]
        image_id = node.run("docker", "inspect", "--format", "{{.Image}}", f"whole-{number}-0")
        assert image_id == node.run("docker", "image", "inspect", "--format", "{{.Id}}", image)
    assert play(folder, two, "run") == 0

    play(folder, two, "logs")
    for number in range(2):
        log = (folder / "logs" / f"n{number}-whole-{number}-0.log").read_text()
        assert "ready" in log

    assert play(folder, two, "stop") == 2
    assert play(folder, two, "stop") == 0
    for node in two.nodes:
        assert running(node) == []
