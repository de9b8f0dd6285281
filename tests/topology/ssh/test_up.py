"""`topology up` and `down` over ssh: a real prefill and decode server on a machine each."""

from __future__ import annotations

import ipaddress
import json
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drydock.build import build
from drydock.build.build_job import prepare_job
from drydock.config.project_choice import DRYDOCK
from drydock.core.files import format_json
from drydock.model.record import dump_record
from drydock.prove import demo_topology, smollm2
from drydock.topology import planned_file
from drydock.verbs.topology_up_verb import TopologyUpOptions, start_and_verify
from entrypoints.serve.topology_answer import ShownAnswers
from tests.support.called_verbs import call_verb
from tests.support.machines_ssh import Machines
from tests.support.pushed import push
from tests.support.servers import Registry

MODEL = "/srv/models/smollm2-real"


@pytest.fixture
def file(folder: Path, two: Machines, near: Registry) -> Path:
    """The plan of 1P1D on two machines that have the model; their engines get the images from a registry."""
    server, router = (build.build_image(prepare_job(DRYDOCK, name)) for name in ("cpu", "router"))
    model = smollm2.make_small_model(server.image)
    for node in two.nodes:
        node.run("mkdir", "-p", MODEL)
        subprocess.run(["docker", "cp", "--quiet", f"{model}/.", f"{node.container}:{MODEL}"], check=True)

    subnet = ipaddress.IPv4Network(f"{two.gateway}/29", strict=False)
    topology = demo_topology.make_demo_topology(demo_topology.SHAPES["1p1d"], Path(MODEL), subnet)
    assert [node["address"] for node in topology["nodes"]] == [node.address for node in two.nodes]
    pushed = [push(Path(built.layout), near.host, built.variant) for built in (server, router)]
    source, plan = folder / "ssh.yaml", folder / f"ssh-{secrets.token_hex(3)}.json"
    source.write_text(json.dumps(topology))
    plan.write_text(
        format_json(
            dump_record(
                demo_topology.with_images(planned_file.plan_topology_file(DRYDOCK, source, str(model)), *pushed)
            )
        )
    )
    return plan


@pytest.fixture
def options(file: Path, two: Machines) -> Iterator[dict[str, Any]]:
    """How it is started; it is stopped at the end."""
    up_options = {"file": str(file), "format": "ansible", "output": str(file.parent / "ssh"), **vars(two.ssh)}
    yield up_options
    call_verb("topology down", **up_options)


def test_two_machines_answer_together_and_are_stopped(options: dict[str, Any], two: Machines) -> None:
    assert pairs(start_and_verify(DRYDOCK, TopologyUpOptions(**options))) == {
        ("prefill-0-0", "decode-0-0"),
        ("", "decode-0-0"),
    }
    before = started(two)
    assert before.keys() == {"prefill-0-0", "decode-0-0", "router"}
    start_and_verify(DRYDOCK, TopologyUpOptions(**options))
    assert started(two) == before, "the second time, no container starts again"

    call_verb("topology down", **options)
    assert started(two) == {}
    assert {volume for node in two.nodes for volume in node.run("docker", "volume", "ls", "--quiet").split()} == {
        "drydock-cpu-cache"
    }


def pairs(answers: ShownAnswers) -> set[tuple[str, str]]:
    """Return which servers answered together; each moved more than two blocks."""
    answer_pairs = [*answers.pairs, *([answers.router] if answers.router else [])]
    assert all(pair.transferred > 2 * answers.block for pair in answer_pairs)
    return {(pair.prefill, pair.decode) for pair in answer_pairs}


def started(two: Machines) -> dict[str, str]:
    """Return the machines' containers → when each was started."""
    start_times = {}
    for node in two.nodes:
        for container in node.run("docker", "ps", "--all", "--quiet").split():
            name, when = node.run("docker", "inspect", "--format", "{{.Name}} {{.State.StartedAt}}", container).split()
            start_times[name.lstrip("/")] = when
    return start_times
