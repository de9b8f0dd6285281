"""The API server keeps every field of what is rendered: a field that it does not know, it drops without a word.

LeaderWorkerSets and DisaggregatedSets are accepted by their definitions; no controller acts on them here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drydock.topology.render import render_plan
from tests.cluster.conftest import World
from tests.support import topologies, topology_files
from tests.support.kubernetes import definitions, rendered
from tests.support.kubernetes.space import Space, lost

EXAMPLES = ("cpu-trio", "deepseek-gaudi3-2nodes", "deepseek-h100-2nodes", "tpu-v6e-slice")
"""Those that Kubernetes can run: the others read ranktables."""
WITH_ROLES = ("cpu-trio", "disaggregatedset")
ACCELERATORS = [name for name in topologies.accelerators() if name != "router"]
"""Those that `run` serves a model with."""
DRY = "--dry-run=server"


@pytest.fixture(scope="module", autouse=True)
def _defined(space: Space) -> None:
    """Let the API server know the kinds that LeaderWorkerSet brings."""
    custom_definitions = definitions.definitions()
    space.apply(custom_definitions)
    for item in custom_definitions:
        space.kubectl("wait", "--for=condition=Established", f"crd/{item['metadata']['name']}")


def of_example(name: str, kind: str, folder: Path) -> list[dict[str, Any]]:
    plan = topology_files.planned(topology_files.EXAMPLES / f"{name}.yaml", folder)
    for path, text in render_plan(plan, topologies.variant(plan.variant), kind, {}).items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    return [*rendered.kustomized(folder)]


def check(space: Space, objects: list[dict[str, Any]]) -> None:
    """Check that the API server keeps every field of some objects."""
    sent_objects = rendered.earlier(item for item in objects if item["kind"] != "Kustomization")
    for item, stored_object in zip(sent_objects, space.apply(sent_objects, DRY), strict=True):
        assert lost(item, stored_object) == [], f"{item['kind']}/{item['metadata']['name']}"


@pytest.mark.parametrize(("name", "kind"), [*((name, "kubernetes") for name in EXAMPLES), WITH_ROLES])
def test_every_field_of_an_example_is_kept(name: str, kind: str, space: Space, tmp_path: Path) -> None:
    check(space, of_example(name, kind, tmp_path))


def test_every_field_of_run_is_kept(world: World, space: Space) -> None:
    for accelerator in ACCELERATORS:
        check(space, rendered.of_run(accelerator, world.model, world.image, "--name", accelerator))


def test_pods_of_several_hosts_are_pods_that_the_api_accepts(space: Space, tmp_path: Path) -> None:
    objects = of_example("deepseek-h100-2nodes", "kubernetes", tmp_path)
    sets = [item for item in objects if item["kind"] == "LeaderWorkerSet"]
    templates = [
        template
        for item in sets
        for key, template in item["spec"]["leaderWorkerTemplate"].items()
        if key in ("leaderTemplate", "workerTemplate")
    ]
    assert templates
    check(space, [_deployment(number, template) for number, template in enumerate(templates)])


def test_a_field_that_the_definition_lacks_is_found(space: Space) -> None:
    item = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "wrong"},
        "spec": {"leaderWorkerTemplate": {"workerTemplate": {}, "sizes": 2}},
    }
    (stored_object,) = space.apply([item], DRY, "--validate=false")
    assert lost(item, stored_object) == [".spec.leaderWorkerTemplate.sizes: sent 2, found None"]


def _deployment(number: int, template: dict[str, Any]) -> dict[str, Any]:
    selector = {"matchLabels": template["metadata"]["labels"]}
    claim = {"name": "cache", "emptyDir": {}}  # which a LeaderWorkerSet makes of its volumeClaimTemplates
    pod = {**template["spec"], "volumes": [*template["spec"]["volumes"], claim]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"pod-{number}"},
        "spec": {"selector": selector, "template": {**template, "spec": pod}},
    }
