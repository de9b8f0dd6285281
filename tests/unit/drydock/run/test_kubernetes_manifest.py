"""Kubernetes manifests of a container, checked against the API's rules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from drydock.model.running import Minutes, Run
from drydock.run import kubernetes_manifest
from drydock.run.container import FOR_BUCKETS
from entrypoints.request.arguments import Options
from entrypoints.serve.exit_status import TEARDOWN
from tests.support.containers import GPUS, NODES, RECORDS, RUNTIME, machine, made, node, word


def documents(record: Run, folder: Path, **request: Any) -> dict[str, dict[str, Any]]:
    """Return kind → document of the manifest."""
    text = kubernetes_manifest.kubernetes_text(made(record, machine(folder), **request))
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def pod(record: Run, folder: Path, **request: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the pod's specification and its only container."""
    spec = documents(record, folder, **request)["Deployment"]["spec"]["template"]["spec"]
    return spec, spec["containers"][0]


@pytest.mark.parametrize("record", RECORDS.values(), ids=list(RECORDS))
class TestAny:
    """Tests for each kind of record."""

    def test_service_deployment_and_pod_find_each_other(self, tmp_path: Path, record: Run) -> None:
        kinds = documents(record, tmp_path, port=9000)
        labels = kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
        ports = {item["name"]: item for item in pod(record, tmp_path, port=9000)[1]["ports"]}

        assert set(kinds) == {"PersistentVolumeClaim", "Deployment", "Service"}
        assert kinds["Deployment"]["spec"]["selector"]["matchLabels"] == labels == kinds["Service"]["spec"]["selector"]
        assert kinds["Service"]["spec"]["ports"] == [{"name": "http", "port": 9000, "targetPort": "http"}]
        assert set(ports) == {"http", "status"}
        assert all(re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", item["metadata"]["name"]) for item in kinds.values())

    def test_every_mount_has_a_volume_and_every_volume_a_mount(self, tmp_path: Path, record: Run) -> None:
        spec, container = pod(record, tmp_path, model=str(tmp_path))
        names = [volume["name"] for volume in spec["volumes"]]

        assert len(set(names)) == len(names)
        assert names == [mount["name"] for mount in container["volumeMounts"]]
        assert all(len(volume) == 2 for volume in spec["volumes"])

    def test_the_status_port_answers_every_probe(self, tmp_path: Path, record: Run) -> None:
        _, container = pod(record, tmp_path)
        probes = {kind: container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")}

        assert {kind: probe["httpGet"]["path"] for kind, probe in probes.items()} == {
            "startup": "/startupz",
            "readiness": "/readyz",
            "liveness": "/livez",
        }
        assert {probe["httpGet"]["port"] for probe in probes.values()} == {"status"}
        assert probes["startup"]["failureThreshold"] * probes["startup"]["periodSeconds"] == 3600

    def test_balancers_notice_before_sigterm_and_the_grace_period_holds_the_whole_drain(
        self, tmp_path: Path, record: Run
    ) -> None:
        spec, container = pod(record, tmp_path)
        pause = container["lifecycle"]["preStop"]["exec"]["command"]
        options = Options()

        assert pause[:2] == ["/usr/bin/python3", "-I"]
        assert pause[-1] == f"import time; time.sleep({kubernetes_manifest.PRESTOP_SECONDS})"
        drain_seconds = kubernetes_manifest.PRESTOP_SECONDS + options.drain_timeout + TEARDOWN
        assert spec["terminationGracePeriodSeconds"] >= drain_seconds

    def test_the_root_file_system_is_read_only_and_the_api_accepts_escalation(
        self, tmp_path: Path, record: Run
    ) -> None:
        security = pod(record, tmp_path)[1]["securityContext"]

        assert security["readOnlyRootFilesystem"] is True
        if security.get("privileged"):
            assert "allowPrivilegeEscalation" not in security  # the API refuses false beside it
        else:
            assert (security["allowPrivilegeEscalation"], security["capabilities"]["drop"]) == (False, ["ALL"])


def test_a_start_gets_the_time_that_the_accelerators_record_says(tmp_path: Path) -> None:
    slow = Minutes(value="120m", because="a first start takes an hour", source="its manual")
    probe = pod(Run(start=slow), tmp_path)[1]["startupProbe"]

    assert probe["failureThreshold"] * probe["periodSeconds"] == 120 * 60


def test_devices_come_from_the_device_plugin(tmp_path: Path) -> None:
    assert pod(NODES, tmp_path)[1]["resources"] == {"limits": {"huawei.com/Ascend910": 8}}
    assert pod(NODES, tmp_path, devices="0,1")[1]["resources"] == {"limits": {"huawei.com/Ascend910": 2}}
    assert "resources" not in pod(Run(), tmp_path)[1]


def test_the_device_plugin_sets_the_variable_that_selects_devices(tmp_path: Path) -> None:
    names = {item["name"] for item in pod(RUNTIME, tmp_path)[1]["env"]}

    assert names == {"HF_TOKEN", "HF_ENDPOINT"}


def test_token_and_mirror_of_the_hub_come_from_a_secret_that_need_not_exist(tmp_path: Path) -> None:
    env = {item["name"]: item["valueFrom"]["secretKeyRef"] for item in pod(Run(), tmp_path)[1]["env"]}

    assert env["HF_ENDPOINT"] == {"name": "huggingface", "key": "HF_ENDPOINT", "optional": True}
    assert env["HF_TOKEN"] == {"name": "huggingface", "key": "HF_TOKEN", "optional": True}


def test_a_buckets_credentials_come_from_a_secret_unless_they_are_given(tmp_path: Path) -> None:
    _, container = pod(Run(), tmp_path, model="s3://models/m", env=("AWS_REGION=eu-central-1", "AWS_SESSION_TOKEN"))
    env = {item["name"]: item.get("value") or item["valueFrom"]["secretKeyRef"] for item in container["env"]}

    assert env.keys() == set(FOR_BUCKETS["s3"])
    assert len(env) == len(container["env"])
    assert env["AWS_REGION"] == "eu-central-1"
    assert env["AWS_ACCESS_KEY_ID"] == {"name": "bucket", "key": "AWS_ACCESS_KEY_ID", "optional": True}
    assert env["AWS_SESSION_TOKEN"] == {"name": "bucket", "key": "AWS_SESSION_TOKEN", "optional": False}
    remark_text = "".join(
        kubernetes_manifest.list_cluster_remarks(made(Run(), machine(tmp_path), model="gs://models/m"))
    )
    assert "secret bucket: the pod takes GOOGLE_APPLICATION_CREDENTIALS, " in remark_text


def test_the_key_comes_from_a_secret_without_which_the_pod_does_not_start(tmp_path: Path) -> None:
    env = {item["name"]: item["valueFrom"] for item in pod(Run(), tmp_path, address="0.0.0.0")[1]["env"]}
    reference = {"name": "vllm-api-key", "key": "VLLM_API_KEY", "optional": False}

    assert env["VLLM_API_KEY"] == {"secretKeyRef": reference}
    remark_text = "\n".join(kubernetes_manifest.list_cluster_remarks(made(Run(), machine(tmp_path), address="0.0.0.0")))
    assert "kubectl create secret generic vllm-api-key --from-env-file=FILE" in remark_text
    opened = pod(Run(), tmp_path, address="0.0.0.0", no_api_key=True)[1]
    assert [item["name"] for item in opened["env"]] == ["HF_TOKEN", "HF_ENDPOINT"]


def test_shared_memory_is_a_volume_in_memory(tmp_path: Path) -> None:
    spec, container = pod(NODES, tmp_path)

    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}} in spec["volumes"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]


def test_the_hosts_network_ipc_and_user_are_as_in_the_record(tmp_path: Path) -> None:
    spec, container = pod(RUNTIME, tmp_path, port=9000)

    assert (spec["hostNetwork"], spec["hostIPC"], spec["dnsPolicy"]) == (True, True, "ClusterFirstWithHostNet")
    assert [item["containerPort"] for item in container["ports"]] == [9000, 9001]
    assert spec["securityContext"]["seccompProfile"] == {"type": "Unconfined"}
    assert container["securityContext"]["capabilities"]["add"] == ["SYS_NICE", "SYS_PTRACE"]
    plain = pod(Run(), tmp_path)[0]
    assert not {"hostNetwork", "hostIPC", "dnsPolicy"} & set(plain)
    assert plain["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize(("user", "expected"), [("", (True, 10001, 0)), ("0:0", (False, 0, 0)), ("7:8", (True, 7, 8))])
def test_the_user_is_the_images_unless_the_record_sets_another(
    tmp_path: Path, user: str, expected: tuple[bool, int, int]
) -> None:
    record = Run.model_validate({"user": word(user)} if user else {})
    context = pod(record, tmp_path)[0]["securityContext"]

    assert (context["runAsNonRoot"], context["runAsUser"], context["runAsGroup"]) == expected


def test_escalation_is_allowed_with_sys_admin_as_the_api_requires(tmp_path: Path) -> None:
    record = Run.model_validate({"capabilities": [word("SYS_ADMIN")]})

    assert pod(record, tmp_path)[1]["securityContext"]["allowPrivilegeEscalation"] is True


def test_an_image_that_was_built_here_is_never_pulled(tmp_path: Path) -> None:
    assert pod(Run(), tmp_path)[1]["imagePullPolicy"] == "Never"
    assert "imagePullPolicy" not in pod(Run(), tmp_path, image="registry.example/vllm:1")[1]


def test_what_a_pod_cannot_request_is_a_remark(tmp_path: Path) -> None:
    record = Run.model_validate({
        "devices": [node("/dev/kfd")],
        "ulimits": [word("memlock=-1:-1")],
        "runtime": word("amd"),
        "groups": [word("render")],
    })  # fmt: skip
    remark_text = "\n".join(
        kubernetes_manifest.list_cluster_remarks(made(record, machine(tmp_path), model=str(tmp_path)))
    )

    for text in (
        "image drydock/",
        "runtime amd",
        "ulimits memlock",
        "devices /dev/kfd",
        f"model {tmp_path}",
        "group render",
    ):
        assert text in remark_text
    assert (
        list(
            kubernetes_manifest.list_cluster_remarks(
                made(GPUS, machine(tmp_path), image=f"registry.example/vllm@sha256:{'0' * 64}")
            )
        )
        == []
    )


@pytest.mark.parametrize(
    ("docker", "expected"),
    [("16g", "16Gi"), ("512m", "512Mi"), ("4gb", "4Gi"), ("1t", "1Ti"), ("64k", "64Ki"), ("1024", "1024"), ("8b", "8")],
)
def test_a_docker_size_becomes_a_kubernetes_quantity(docker: str, expected: str) -> None:
    assert kubernetes_manifest.convert_quantity(docker) == expected


def test_variable_names_in_arguments_are_not_expanded(tmp_path: Path) -> None:
    _, container = pod(Run(), tmp_path, arguments=("--x", "$(HF_TOKEN) $$"))
    assert container["args"][-1] == "$$(HF_TOKEN) $$$$"
