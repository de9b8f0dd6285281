"""What the command line renders for Kubernetes, and what of it an API server of version 1.20 needs otherwise. IO."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from drydock.core.paths import ROOT
from tests.support.kubernetes.cluster import Cluster

HERE = ROOT / "tests" / "hosts" / "cpu-emeraldrapids-vm-2c" / "host.json"
"""Two processors: small enough for any machine that runs the cluster."""
LATER = {"policy/v1": "policy/v1beta1"}
"""API version → its name in Kubernetes 1.20. policy/v1 came with 1.21; the fields that drydock writes are the same."""


def invoke(*arguments: str) -> str:
    """Run one of the repository's tasks and return what it prints."""
    command = (sys.executable, "-m", "invoke", *arguments)
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def of_run(target: str, model: Path, image: str, *options: str) -> list[dict[str, Any]]:
    """Return the objects that `run` prints."""
    text = invoke(
        "run", "--target", target, "--format", "kubernetes", "--model", str(model), "--image", image, *options
    )
    return [*yaml.safe_load_all(text)]


def nodes(cluster: Cluster, host: Path = HERE) -> list[dict[str, str]]:
    """Return the cluster's nodes as a topology names them."""
    return [
        {"name": f"node{network.number}", "address": network.address, "host": str(host)} for network in cluster.networks
    ]


def of_topology(folder: Path, topology: Mapping[str, Any], *, router: str = "") -> list[dict[str, Any]]:
    """Return the objects that `topology render` writes for a topology of CPU images, with another router's image."""
    folder.mkdir()
    file, plan, output = folder / "topology.yaml", folder / "plan.json", folder / "kubernetes"
    file.write_text(yaml.safe_dump({"api_key": "none", **topology}))
    topology_plan = json.loads(invoke("topology.plan", str(file), "--target", "cpu", "--json"))
    if router:
        topology_plan["router"]["image"] = router  # the topology's own is what the lock names: no registry has it here
    plan.write_text(json.dumps(topology_plan))
    invoke("topology.render", str(plan), "--format", "kubernetes", "--output", str(output))
    return [*kustomized(output)]


def kustomized(folder: Path) -> Iterable[dict[str, Any]]:
    """Yield the objects that a kustomization.yaml lists."""
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
        yield yaml.safe_load((folder / name).read_text())


def earlier(objects: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return objects under the API versions of Kubernetes 1.20."""
    return [{**item, "apiVersion": LATER.get(item["apiVersion"], item["apiVersion"])} for item in objects]


def named(objects: Iterable[Mapping[str, Any]], kind: str) -> dict[str, Any]:
    """Return the only object of a kind, as a copy."""
    (resource,) = (item for item in objects if item["kind"] == kind)
    copied: dict[str, Any] = json.loads(json.dumps(resource))
    return copied
