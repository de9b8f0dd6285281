"""Labels of the Kubernetes nodes that a pod selects: GKE's TPUs, and the architecture."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.model.variant import Variant
from drydock.run import node_selectors
from drydock.run.container import RunRequest
from drydock.run.engine import Here
from tests.support.called_verbs import run_as, run_on_engine
from tests.unit.drydock.verbs.test_run_verb import FakeHere

ACCELERATOR, TOPOLOGY = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"
AMD64 = {"kubernetes.io/arch": "amd64"}
TPU = find_variant(read_matrix(DRYDOCK), "tpu")


class Recorded(FakeHere):
    """A fake machine whose recorded hosts have the facts of tests/hosts."""

    def facts(self, _: Variant, host: str = "") -> Mapping[str, Any]:
        host_facts: Mapping[str, Any] = json.loads((ROOT / "tests" / "hosts" / host / "facts.json").read_text())
        return host_facts


def manifest(
    folder: Path, capsys: pytest.CaptureFixture[str], target: str, **request: str
) -> tuple[dict[str, Any], str]:
    """Return the pod's specification, and what was said."""
    run_request = RunRequest(model="a/b", **request)
    run_on_engine(target, run_request, run_as("kubernetes", json=True), here=Recorded(folder))
    data = json.loads(capsys.readouterr().out)
    return data["kubernetes"][1]["spec"]["template"]["spec"], "\n".join(data["remarks"])


def limit(spec: Mapping[str, Any]) -> int:
    return int(spec["containers"][0]["resources"]["limits"]["google.com/tpu"])


@pytest.mark.parametrize(
    ("host", "accelerator", "topology", "count"),
    [
        ("tpu-v4-4x", "tpu-v4-podslice", "2x2x1", 4),
        ("tpu-v5e-1x", "tpu-v5-lite-podslice", "1x1", 1),
        ("tpu-v5p-4x", "tpu-v5p-slice", "2x2x1", 4),
        ("tpu-v6e-8x", "tpu-v6e-slice", "2x4", 8),
    ],
)
def test_a_recorded_host_tells_the_nodes_of_its_kind(
    host: str, accelerator: str, topology: str, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, _ = manifest(tmp_path, capsys, "tpu", host=host)

    assert spec["nodeSelector"] == {ACCELERATOR: accelerator, TOPOLOGY: topology, **AMD64}
    assert limit(spec) == count


def test_a_file_that_is_no_recorded_host_is_refused_also_where_nodes_have_no_kinds(tmp_path: Path) -> None:
    topology = tmp_path / "topology.yaml"
    topology.write_text("model: a/b\n")
    with pytest.raises(InputError, match=f"--root {re.escape(str(topology))}"):
        run_on_engine(
            "cpu",
            RunRequest(model="a/b", host=str(topology)),
            run_as("kubernetes", json=True),
            here=Here(DRYDOCK),
        )


def test_the_targets_name_and_the_devices_tell_the_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, stderr = manifest(tmp_path, capsys, "tpu-v4")
    part, _ = manifest(tmp_path, capsys, "tpu-v6e", devices="0-3")
    fewer, _ = manifest(tmp_path, capsys, "tpu", host="tpu-v6e-8x", devices="0")

    assert (whole["nodeSelector"][TOPOLOGY], limit(whole)) == ("2x2x1", 4)
    assert "assuming 8" not in stderr
    assert (part["nodeSelector"][TOPOLOGY], limit(part)) == ("2x2", 4)
    assert (fewer["nodeSelector"][TOPOLOGY], limit(fewer)) == ("1x1", 1)


def test_what_no_node_has_is_said_and_only_the_accelerator_is_selected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, stderr = manifest(tmp_path, capsys, "tpu-v6e", devices="0,1")

    assert spec["nodeSelector"] == {ACCELERATOR: "tpu-v6e-slice", **AMD64}
    assert "no node of v6e has 2 devices, but 1 or 4 or 8: see --devices" in stderr


def test_an_unknown_kind_of_node_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, stderr = manifest(tmp_path, capsys, "tpu")

    assert spec["nodeSelector"] == AMD64
    assert "nodeSelector: left out, because the nodes' devices are unknown (v4, v5e, v5p, v6e, v7x)" in stderr
    gaudi_spec, stderr = manifest(tmp_path, capsys, "gaudi2")
    assert gaudi_spec["nodeSelector"] == AMD64
    assert "nodeSelector" not in stderr


def test_an_image_of_one_platform_selects_its_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arm, _ = manifest(tmp_path, capsys, "cuda-arm64")
    several, _ = manifest(tmp_path, capsys, "ascend")

    assert arm["nodeSelector"] == {"kubernetes.io/arch": "arm64"}
    assert "nodeSelector" not in several


def test_the_labels_are_valid_and_tell_the_kinds_apart() -> None:
    kind_labels = [dict(kind.labels) for kind in node_selectors.list_node_kinds(TPU)]

    assert kind_labels
    for kind in node_selectors.list_node_kinds(TPU):
        assert kind_labels.count(dict(kind.labels)) == 1
        for name, value in (*kind.labels.items(), *((kind.shape, shape) for shape in kind.shapes.values())):
            assert re.fullmatch(r"[a-z0-9.-]+/[a-z0-9-]{1,63}", name)
            assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", value)
        for devices, shape in kind.shapes.items():  # a topology is the product of its sides
            assert math.prod(map(int, devices.split(" hosts of "))) == math.prod(map(int, shape.split("x")))


def test_several_hosts_of_a_slice_have_the_shape_of_the_whole() -> None:
    kind = node_selectors.kind_of(TPU, {"v5e"})

    assert kind
    assert node_selectors.make_node_labels(kind, 4, 4) == {ACCELERATOR: "tpu-v5-lite-podslice", TOPOLOGY: "4x4"}
    assert node_selectors.make_node_labels(kind, 8, 2) == {ACCELERATOR: "tpu-v5-lite-podslice"}
    assert node_selectors.kind_of(TPU, {"v5e", "v6e"}) is None
