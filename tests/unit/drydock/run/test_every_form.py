"""All options of a user together: each format says the same, follows its schema, and gives reasons."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kubernetes_validate import validate

from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError
from drydock.model.running import Run
from drydock.run import forms, kubernetes_manifest
from drydock.run.container import Container, RunRequest
from drydock.run.engine import Here
from drydock.run.option_reasons import format_option_reasons
from tests.support.called_verbs import run_as, run_on_engine
from tests.support.containers import GPUS, NODES, PRIVILEGED, RUNTIME, machine, made
from tests.support.printed_forms import HOSTILE, MODEL, SCHEMAS
from tests.unit.drydock.verbs.test_run_verb import FakeHere


@pytest.mark.parametrize("form", forms.WRITERS)
def test_the_same_request_gives_the_same_bytes(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = MODEL.model_copy(update={
        "env": ("B=2", "A=1", "HF_TOKEN"), "volumes": ("/b:/x", "/a:/y:ro"), "network": "host", "arguments": ("plan",),
    })  # fmt: skip
    texts = set()
    for _ in range(2):
        run_on_engine("cpu", request, run_as(form, only_print=True), here=FakeHere(tmp_path))
        texts.add(capsys.readouterr().out)

    assert len(texts) == 1


def test_every_option_of_the_user_has_a_reason(tmp_path: Path) -> None:
    container: Container = made(Run(), machine(tmp_path), env=("A=1", "B"), volumes=("/a:/x:ro",), network="mine")
    reason_lines = [*format_option_reasons(Run(), container, "docker")]

    assert "--env A: --env sets it" in reason_lines
    assert "--env B: --env names it: its value is not in any text" in reason_lines
    assert "--mount /x: --volume: /a, read-only" in reason_lines
    assert "--network mine: --network asks for it" in reason_lines


def test_docker_compose_reads_the_same_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = ["docker", "compose", "version"]
    if not shutil.which("docker") or subprocess.run(asks, capture_output=True, check=False).returncode:
        pytest.skip("no docker compose here")
    monkeypatch.setenv("HF_TOKEN", "s3cret")
    (tmp_path / "a $b").mkdir()
    request = MODEL.model_copy(update={
        "env": ("HF_TOKEN", *(f"VLLM_{place}={value}" for place, value in enumerate(HOSTILE))),
        "volumes": (f"{tmp_path}/a $b:/data/in:ro",), "network": "mine", "arguments": ("bash", "-c", "echo $HOME"),
    })  # fmt: skip
    run_on_engine("cpu", request, run_as("compose"), here=FakeHere(tmp_path))
    argv = ["docker", "compose", "-f", "-", "config", "--format", "json"]
    result = subprocess.run(argv, input=capsys.readouterr().out, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr
    (compose_service,) = json.loads(result.stdout)["services"].values()
    # `config` writes a dollar as two, so that its output can be read again
    assert [
        compose_service["environment"][f"VLLM_{place}"].replace("$$", "$") for place in range(len(HOSTILE))
    ] == HOSTILE
    assert compose_service["environment"]["HF_TOKEN"] == "s3cret"  # noqa: S105 - of the shell
    assert compose_service["command"] == ["bash", "-c", "echo $$HOME"]
    assert compose_service["volumes"][0]["source"].replace("$$", "$") == f"{tmp_path}/a $b"
    assert [*compose_service["networks"]] == ["mine"]


@pytest.mark.parametrize("record", [NODES, RUNTIME, GPUS, PRIVILEGED, Run()])
@pytest.mark.parametrize("words", [(), ("bash", "-c", "echo $HOME")])
def test_every_object_follows_the_schema_of_its_kind(record: Run, words: Sequence[str], tmp_path: Path) -> None:
    env = ("HF_TOKEN", "A_TOKEN", *(f"VLLM_{place}={value}" for place, value in enumerate(HOSTILE)))
    container = made(record, machine(tmp_path), env=env, volumes=("/a:/x:ro", "/b:/y"), network="host", arguments=words)

    for item in kubernetes_manifest.make_objects(container.model_copy(update={"nodes": {"a.example/b": "2x2"}})):
        validate(item, SCHEMAS, strict=True)


@pytest.mark.parametrize("words", [(), ("check",)])
def test_a_pod_claims_exactly_its_devices_of_a_device_class(words: Sequence[str], tmp_path: Path) -> None:
    container = made(NODES, machine(tmp_path), device_class="gpu.example", devices="0-3", arguments=words)
    documents = {item["kind"]: item for item in kubernetes_manifest.make_objects(container)}
    for item in documents.values():
        validate(item, SCHEMAS, strict=True)
    template = documents["ResourceClaimTemplate"]
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    pod = documents["Job" if words else "Deployment"]["spec"]["template"]["spec"]
    (claim,) = pod["resourceClaims"]
    assert request["exactly"] == {"deviceClassName": "gpu.example", "allocationMode": "ExactCount", "count": 4}
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert pod["containers"][0]["resources"] == {"claims": [{"name": claim["name"]}]}


def test_a_monitor_reads_the_metrics_of_both_ports(tmp_path: Path) -> None:
    *_, monitor = kubernetes_manifest.make_objects(made(NODES, machine(tmp_path), monitor=True))
    pod = kubernetes_manifest.make_objects(made(NODES, machine(tmp_path)))[1]["spec"]["template"]
    ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    assert monitor["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert {item["port"] for item in monitor["spec"]["podMetricsEndpoints"]} == ports == {"http", "status"}


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("cuda", {"monitor": True}, "Kubernetes manifest only"),
        ("cuda", {"device_class": "gpu.example", "format": "compose"}, "Kubernetes manifest only"),
        ("cuda", {"device_class": "A_b", "format": "kubernetes"}, "invalid name"),
        ("cuda", {"device_class": "a..b", "format": "kubernetes"}, "invalid name"),
        ("cuda", {"monitor": True, "format": "kubernetes", "arguments": ("check",)}, "no metrics"),
        ("cpu", {"device_class": "gpu.example", "format": "kubernetes"}, "no device"),
    ],
)
def test_claims_and_monitors_that_cannot_be(target: str, options: dict[str, Any], message: str) -> None:
    how = run_as(options.pop("format", "docker"), only_print=True)
    with pytest.raises(InputError, match=message):
        run_on_engine(target, RunRequest(model="org/model", **options), how, here=Here(DRYDOCK))


def test_a_model_that_is_an_image_is_an_image_volume(tmp_path: Path) -> None:
    image = f"registry.example/m/tiny@sha256:{'1' * 64}"
    container = made(NODES, machine(tmp_path), model=f"oci://{image}")
    _, deployment, _ = kubernetes_manifest.make_objects(container)
    validate(deployment, SCHEMAS, strict=True)
    pod = deployment["spec"]["template"]["spec"]
    (volume,) = (pod_volume for pod_volume in pod["volumes"] if "image" in pod_volume)
    assert volume["image"] == {"reference": image, "pullPolicy": "IfNotPresent"}
    mount = {"name": volume["name"], "mountPath": "/models/tiny", "readOnly": True}
    assert mount in pod["containers"][0]["volumeMounts"]
    assert any(
        text.startswith(f"model {image}: an image volume")
        for text in kubernetes_manifest.list_cluster_remarks(container)
    )
