"""The reasons of a container: one for each option that its command has, and none for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.model.running import Run
from drydock.model.variant import Variant
from drydock.run import docker_command, kubernetes_manifest
from drydock.run.container import Container, RunRequest, make_container
from drydock.run.kubernetes_manifest import POD_FIELDS
from drydock.run.machine import Machine
from drydock.run.option_reasons import format_option_reasons
from tests.support.cases import for_each
from tests.support.containers import GPUS, NODES, PRIVILEGED, RECORDS, RUNTIME, machine, made

OWN = {
    "--pull",
    "--read-only",
    "--name",
    "--cap-drop",
    "--tmpfs",
    "--stop-timeout",
    "--mount",
    "--env",
    "--security-opt",
}
"""What every container has, for no reason of its accelerator's."""


def reasons(run: Run, folder: Path, *files: str, form: str = "docker", **request: str) -> list[str]:
    return [*format_option_reasons(run, made(run, machine(folder, files, "HwHiAiUser:x:1000:\n"), **request), form)]


def flags(spec: Container) -> set[str]:
    return {option for option, *_ in docker_command.docker_options(spec)}


@for_each(read_matrix(DRYDOCK), lambda variant: variant.id)
def test_the_reasons_are_those_of_the_printed_command(variant: Variant) -> None:
    spec = make_container(variant, RunRequest(model="org/model"), Machine(Path("/nowhere")))
    explained = {line.partition(" ")[0].rstrip(":") for line in format_option_reasons(variant.run, spec, "docker")} - {
        "--host"
    }

    assert explained <= flags(spec)
    assert flags(spec) - OWN <= explained
    reason_names = {
        line.partition(":")[0].partition(" ")[0] for line in format_option_reasons(variant.run, spec, "kubernetes")
    }
    assert reason_names <= {name.partition(" ")[0].rstrip(":") for name in (*POD_FIELDS.values(), "limits")}


def test_each_reason_has_the_value_that_is_passed(tmp_path: Path) -> None:
    files = ["/dev/davinci0", "/dev/davinci1", "/dev/davinci2", "/dev/davinci_manager", "/usr/local/Ascend/driver/x"]
    reason_text = "\n".join(reasons(NODES, tmp_path, *files, devices="1,2"))

    assert "--device /dev/davinci1 … /dev/davinci2: " in reason_text
    assert "--group-add 1000 (HwHiAiUser): " in reason_text
    assert "--mount /usr/local/Ascend/driver: " in reason_text
    for absent in ("devmm_svm", "ascend_install.info", "ASCEND_RT_VISIBLE_DEVICES"):
        assert absent not in reason_text


def test_a_choice_shows_in_the_reason(tmp_path: Path) -> None:
    assert "--gpus device=1,2: all is needed" in reasons(GPUS, tmp_path, devices="1,2")
    assert any(line.startswith("--env HABANA_VISIBLE_DEVICES=1: ") for line in reasons(RUNTIME, tmp_path, devices="1"))
    assert not any("--shm-size" in line for line in reasons(RUNTIME, tmp_path))  # the host's, with its IPC
    assert "--privileged: the driver maps memory. SYS_RAWIO alone fails." in reasons(PRIVILEGED, tmp_path)
    assert not any("--cap-add" in line for line in reasons(PRIVILEGED, tmp_path))


def test_compose_and_kubernetes_have_their_own_names(tmp_path: Path) -> None:
    compose = reasons(NODES, tmp_path, form="compose")
    pod = reasons(NODES, tmp_path, form="kubernetes")

    assert any(line.startswith("devices /dev/davinci0 … /dev/davinci7: ") for line in compose)
    assert any(line.startswith("ports 127.0.0.1:8000: ") for line in compose)
    assert "limits huawei.com/Ascend910: 8: the device plugin gives the pod its devices" in pod
    assert not any("ulimit" in line or "/dev/davinci" in line or "127.0.0.1" in line for line in pod)
    assert not any("--" in line.partition(":")[0] for line in (*compose, *pod))


@pytest.mark.parametrize("record", RECORDS.values(), ids=list(RECORDS))
def test_every_reason_in_a_manifest_names_something_in_it(tmp_path: Path, record: Run) -> None:
    spec = made(record, machine(tmp_path))
    text = kubernetes_manifest.kubernetes_text(spec)

    explained = list(format_option_reasons(record, spec, "kubernetes"))
    assert bool(explained) == (record not in (RECORDS["gpus"], RECORDS["nothing"]))  # a pod asks for these by count
    for line in explained:
        assert line.partition(" ")[0].rstrip(":") in text
