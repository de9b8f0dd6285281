"""`topology up` and `down` over ssh: a real prefill and decode server on a machine each."""

from __future__ import annotations

import ipaddress
import json
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from drydock.build import build
from drydock.build.job import prepare
from drydock.config.project import DRYDOCK
from drydock.core.files import dumps
from drydock.model.record import dump
from drydock.prove import demo_topology, smollm2
from drydock.topology import tasks as topologies
from drydock.topology import up
from drydock.topology.known_answer import ShownAnswers
from drydock.topology.up import Options
from tests.support.machines_ssh import Machines
from tests.support.pushed import push
from tests.support.servers import Registry

MODEL = "/srv/models/smollm2-real"


@pytest.fixture
def file(folder: Path, two: Machines, near: Registry) -> Path:
    """The plan of 1P1D on two machines that have the model; their engines get the images from a registry."""
    server, router = (build.build(prepare(DRYDOCK, name)) for name in ("cpu", "router"))
    model = smollm2.make(server.image)
    for node in two.nodes:
        node.run("mkdir", "-p", MODEL)
        subprocess.run(["docker", "cp", "--quiet", f"{model}/.", f"{node.container}:{MODEL}"], check=True)

    subnet = ipaddress.IPv4Network(f"{two.gateway}/29", strict=False)
    wanted = demo_topology.topology(demo_topology.SHAPES["1p1d"], Path(MODEL), subnet)
    assert [node["address"] for node in wanted["nodes"]] == [node.address for node in two.nodes]
    pushed = [push(Path(built.layout), near.host, built.variant) for built in (server, router)]
    source, plan = folder / "ssh.yaml", folder / f"ssh-{secrets.token_hex(3)}.json"
    source.write_text(json.dumps(wanted))
    plan.write_text(dumps(dump(demo_topology.with_images(topologies.planned(DRYDOCK, source, str(model)), *pushed))))
    return plan


@pytest.fixture
def options(file: Path, two: Machines) -> Iterator[Options]:
    """How it is started; it is stopped at the end."""
    found = Options("ansible", output=str(file.parent / "ssh"), ssh=two.ssh)
    yield found
    up.down(DRYDOCK, file, found)


def test_two_machines_answer_together_and_are_stopped(file: Path, options: Options, two: Machines) -> None:
    assert pairs(up.up(DRYDOCK, file, options)) == {("prefill-0-0", "decode-0-0"), ("", "decode-0-0")}
    before = started(two)
    assert before.keys() == {"prefill-0-0", "decode-0-0", "router"}
    up.up(DRYDOCK, file, options)
    assert started(two) == before, "the second time, no container starts again"

    up.down(DRYDOCK, file, options)
    assert started(two) == {}
    assert {volume for node in two.nodes for volume in node.run("docker", "volume", "ls", "--quiet").split()} == {
        "drydock-cpu-cache"
    }


def pairs(shown: ShownAnswers) -> set[tuple[str, str]]:
    """Return which servers answered together; each moved more than two blocks."""
    found = [*shown.pairs, *([shown.router] if shown.router else [])]
    assert all(pair.transferred > 2 * shown.block for pair in found)
    return {(pair.prefill, pair.decode) for pair in found}


def started(two: Machines) -> dict[str, str]:
    """Return the machines' containers → when each was started."""
    found = {}
    for node in two.nodes:
        for container in node.run("docker", "ps", "--all", "--quiet").split():
            name, when = node.run("docker", "inspect", "--format", "{{.Name}} {{.State.StartedAt}}", container).split()
            found[name.lstrip("/")] = when
    return found
