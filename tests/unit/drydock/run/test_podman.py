"""Units of Podman's Quadlet, and Podman's options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError
from drydock.model.running import Run
from drydock.run import podman
from drydock.run.container import Container, RunRequest, make_container
from tests.support.containers import GPUS, NODES, RECORDS, machine, made, recorded
from tests.support.systemd import unquoted

MODEL_IMAGE = f"registry.example/m/tiny@sha256:{'1' * 64}"


def of(record: Run, folder: Path, **request: Any) -> Container:
    return podman.use_cdi_devices(made(record, machine(folder), **request))


def keys(spec: Container, section: str = "Container") -> dict[str, list[str]]:
    """Return key → values of a section."""
    unit_keys: dict[str, list[str]] = {}
    for key, value in podman.make_quadlet_unit(spec)[section]:
        unit_keys.setdefault(key, []).append(value)
    return unit_keys


@pytest.mark.parametrize(
    ("target", "host", "devices", "expected"),
    [
        ("cuda", "cuda-h100-8x", "", {"AddDevice": ["nvidia.com/gpu=all"], "AddCapability": ["SYS_NICE"]}),
        ("cuda", "cuda-h100-8x", "0,1", {"AddDevice": ["nvidia.com/gpu=0", "nvidia.com/gpu=1"], "ShmSize": ["16g"]}),
        ("gaudi2", "habana-gaudi2-8x", "0,1", {"Environment": ["HABANA_VISIBLE_DEVICES=0,1"], "ShmSize": ["32g"]}),
        ("cpu", "cpu-xeon8380-2s", "", {"AddDevice": [], "Environment": [], "ShmSize": ["4g"]}),
    ],
)
def test_a_recorded_host_gets_its_devices_and_rights(
    tmp_path: Path, target: str, host: str, devices: str, expected: dict[str, list[str]]
) -> None:
    variant = find_variant(read_matrix(DRYDOCK), target)
    request = RunRequest(model="org/model", devices=devices)
    unit_keys = keys(podman.use_cdi_devices(make_container(variant, request, recorded(host, tmp_path))))

    assert {key: unit_keys.get(key, []) for key in expected} == expected
    assert {key: unit_keys[key] for key in ("ReadOnly", "DropCapability", "NoNewPrivileges", "Tmpfs")} == {
        "ReadOnly": ["true"],
        "DropCapability": ["ALL"],
        "NoNewPrivileges": ["true"],
        "Tmpfs": ["/tmp:exec,mode=1777"],
    }
    assert ("--runtime habana" in unit_keys["PodmanArgs"]) == (target == "gaudi2")


@pytest.mark.parametrize("record", RECORDS.values(), ids=list(RECORDS))
def test_a_unit_has_every_option_of_the_command(tmp_path: Path, record: Run) -> None:
    spec = of(record, tmp_path, volumes=(f"{tmp_path}:/mine",))
    flags = {key: flag for flag, key in podman.KEYS.items()}
    fixed_options = {"ReadOnly=true": ("--read-only",), "NoNewPrivileges=true": ("--security-opt", "no-new-privileges")}
    unit_options = [
        fixed_options.get(f"{key}={value}") or (*([flags[key]] if key in flags else ()), *unquoted(value))
        for key, value in podman.make_quadlet_unit(spec)["Container"][2:]
    ]

    assert unit_options == podman.list_podman_options(spec)


HOSTILE = ["$HOME ${HOME} $$", "100% %n %%", "a\\b\\n", "\"a\" 'b'", "a\nb\x1b[0m\t", "日本 é"]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_word_stays_that_word(tmp_path: Path, text: str) -> None:
    spec = of(Run(), tmp_path, arguments=("--x", text), env=(f"VLLM_X={text}",))
    unit_keys = keys(spec)

    assert [len(podman.quadlet_text(spec).splitlines())] == [podman.quadlet_text(spec).count("\n")]
    assert unquoted(unit_keys["Exec"][0])[-1] == text
    assert unquoted(unit_keys["Environment"][0])[-1] == f"VLLM_X={text}"


def test_an_empty_word_which_podman_would_drop_with_all_after_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--served-model-name '': a unit cannot have an empty word"):
        podman.make_quadlet_unit(of(Run(), tmp_path, arguments=("--served-model-name", "", "--x")))


def test_what_must_not_be_missing_is_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "a-value")
    spec = of(Run(), tmp_path, address="0.0.0.0", env=("MY_TOKEN", "HF_TOKEN", "HF_ENDPOINT"))
    unit_keys = keys(spec)

    # one each: unlike a pod's secret, Podman's has no keys
    names = ["HF_TOKEN", "HF_ENDPOINT", "VLLM_API_KEY", "MY_TOKEN"]
    assert unit_keys["Secret"] == [f"{name},type=env" for name in names]
    assert keys(of(Run(), tmp_path))["PodmanArgs"][-3:-1] == ["--env HF_TOKEN", "--env HF_ENDPOINT"]
    assert keys(spec, "Service")["EnvironmentFile"] == [f"-%E/drydock/{spec.name}.env"]
    assert "a-value" not in podman.quadlet_text(spec)
    remark_text = "\n".join(podman.list_unit_remarks(spec))
    assert "podman secret create --env VLLM_API_KEY VLLM_API_KEY" in remark_text
    assert "VLLM_API_KEY" not in "".join(podman.list_unit_remarks(of(Run(), tmp_path)))


def test_a_server_starts_again_and_what_ends_by_itself_does_not(tmp_path: Path) -> None:
    server, check = of(NODES, tmp_path), of(NODES, tmp_path, arguments=("check",))

    assert keys(server, "Service")["Restart"] == ["always"]
    assert keys(server, "Install") == {"WantedBy": ["default.target"]}
    assert keys(check, "Service")["Type"] == ["oneshot"]
    assert "Install" not in podman.make_quadlet_unit(check)


def test_a_model_that_is_an_image_is_pulled_first(tmp_path: Path) -> None:
    spec = of(GPUS, tmp_path, model=f"oci://{MODEL_IMAGE}")

    assert keys(spec)["Mount"][0] == f"type=image,source={MODEL_IMAGE},target=/models/tiny"
    assert keys(spec, "Service")["ExecStartPre"] == [f"podman pull --quiet {MODEL_IMAGE}"]


def test_podman_is_told_of_what_it_must_have(tmp_path: Path) -> None:
    remark_text = "\n".join(podman.list_unit_remarks(of(GPUS, tmp_path, image="registry.example/vllm:1")))

    assert re.findall(r"^(\S+):", remark_text, re.MULTILINE)[1:] == ["nvidia.com/gpu"]
    assert "podman load" in "\n".join(podman.list_unit_remarks(of(GPUS, tmp_path)))
