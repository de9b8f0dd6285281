"""`topology check --format kubernetes` on a real cluster: what it finds, and that it leaves nothing."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from drydock.core.paths import ROOT
from tests.cluster.conftest import World
from tests.support.kubernetes import rendered
from tests.support.kubernetes.space import Space


@pytest.fixture(scope="module")
def plan(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plan of two servers, each on a node of its own."""
    folder = tmp_path_factory.mktemp("planned")
    nodes = rendered.nodes(world.cluster)
    group = {"name": "chat", "replicas": 2}
    served = {"model": str(world.model), "image": world.image, "api_key": "none"}
    topology = {**served, "nodes": nodes, "groups": [group]}
    (folder / "topology.yaml").write_text(yaml.safe_dump(topology))
    (folder / "plan.json").write_text(
        rendered.invoke("topology.plan", str(folder / "topology.yaml"), "--target", "cpu", "--json")
    )
    return folder / "plan.json"


@pytest.fixture(scope="module")
def path(world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with a kubectl that reaches the cluster, whose API server has a network namespace of its own."""
    cluster = world.cluster
    words = cluster.networks[0].inside(
        cluster.binaries / "root/usr/bin/kubectl",
        f"--kubeconfig={cluster.keys / 'admin.kubeconfig'}",
        f"--cache-dir={cluster.folder / 'kubectl'}",
    )
    program = tmp_path_factory.mktemp("bin") / "kubectl"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
    program.chmod(0o755)
    return f"{program.parent}{os.pathsep}{os.environ['PATH']}"


def check(plan: Path, space: Space, path: str) -> tuple[int, dict[str, list[dict[str, Any]]], str]:
    """Return the exit code, the findings by id, and standard error."""
    task = ("topology.check", str(plan), "--format", "kubernetes", "--namespace", space.name, "--json")
    result = subprocess.run(
        (sys.executable, "-m", "invoke", *task),
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    findings_by_id: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(result.stdout or "[]"):
        findings_by_id.setdefault(finding["id"], []).append(finding)
    return result.returncode, findings_by_id, result.stderr


def test_both_nodes_have_the_image_and_the_model_and_reach_each_other(
    world: World, space: Space, plan: Path, path: str
) -> None:
    code, findings_by_id, text = check(plan, space, path)

    assert code == 0, (findings_by_id, text)
    for number in ("TOPO-020", "TOPO-021", "TOPO-022", "NET-008", "NET-009", "TOPO-034"):
        assert [finding["severity"] for finding in findings_by_id[number]] == ["PASS", "PASS"], findings_by_id[number]
    assert world.image.rpartition("@")[2] in findings_by_id["TOPO-021"][0]["found"]
    peers = [finding for number, finding in findings_by_id.items() if number.startswith("NET-")]
    assert "10.244." in json.dumps(peers)  # the other pod's address
    space.until(lambda: not space.get("pods")["items"], "the end of the pods")


def test_a_node_that_takes_no_pod_is_found(world: World, space: Space, plan: Path, path: str) -> None:
    world.cluster.kubectl("cordon", "node2")
    try:
        code, findings_by_id, _ = check(plan, space, path)
    finally:
        world.cluster.kubectl("uncordon", "node2")

    assert code == 20
    (bad,) = (finding for finding in findings_by_id["TOPO-020"] if finding["severity"] == "FAIL")
    assert bad["found"].startswith("node2: its pod finds no place: ")
    space.until(lambda: not space.get("pods")["items"], "the end of the pods")


def test_a_model_that_no_node_has_is_found(space: Space, plan: Path, path: str) -> None:
    other_plan = plan.with_name("other.json")
    other_plan.write_text(json.dumps(json.loads(plan.read_text()) | {"model": "/nowhere/smollm2"}))
    code, findings_by_id, text = check(other_plan, space, path)

    assert code == 20, text
    texts = [finding["found"] for finding in findings_by_id["TOPO-020"]]
    assert [text.partition(": ")[0] for text in texts] == ["node1", "node2"]
    assert all("/nowhere/smollm2" in text for text in texts), texts
