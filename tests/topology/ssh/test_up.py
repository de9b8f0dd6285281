"""`topology up`, `status`, `logs` and `down` over ssh: a real prefill and decode server on a machine each."""

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
from drydock.core.files import dumps
from drydock.model.record import dump
from drydock.prove import demo_topology, smollm2
from drydock.topology import verbs as topologies
from drydock.topology.rollout import verbs
from drydock.topology.rollout.known import ShownAnswers
from drydock.topology.rollout.state import TopologyPlace
from tests.support.machines_ssh import Machines
from tests.support.pushed import push
from tests.support.servers import Registry

MODEL = "/srv/models/smollm2-real"
SECONDS = 600
"""Of a start. The machines' engines have pulled 2 GB before."""


@pytest.fixture
def place(folder: Path, two: Machines, near: Registry) -> Iterator[TopologyPlace]:
    """The plan of 1P1D on two machines that have the model; their engines get the images from a registry."""
    server, router = (build.build(prepare(name)) for name in ("cpu", "router"))
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
    plan.write_text(dumps(dump(demo_topology.with_images(topologies.planned(source, str(model)), *pushed))))
    found = TopologyPlace(plan, output=str(folder / "ssh"))
    yield found
    if found.read():
        verbs.down(found)


def test_two_machines_answer_together_are_watched_and_stopped(
    place: TopologyPlace, two: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    options = verbs.Options(seconds=SECONDS, ssh=two.ssh)
    assert pairs(verbs.up(place, "ansible", options)) == {("prefill-0-0", "decode-0-0"), ("", "decode-0-0")}
    before = started(two)
    assert before.keys() == {"prefill-0-0", "decode-0-0", "router"}
    verbs.up(place, "ansible", options)
    assert started(two) == before, "the second time, no container starts again"

    capsys.readouterr()
    verbs.status(place, watch=False, json=True)
    told = json.loads(capsys.readouterr().out)
    assert {row["state"] for row in told["rows"]} == {"ready"}
    assert told["alerts"] == []

    verbs.logs(place, (), 1000, follow=False)
    assert "ready" in (place.folder / "logs" / "n0-prefill-0-0.log").read_text()

    verbs.down(place)
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
