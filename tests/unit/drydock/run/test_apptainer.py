"""Apptainer's command of a container."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError
from drydock.model.running import Run
from drydock.run import apptainer
from drydock.run.container import Container, RunRequest, make_container
from tests.support.containers import NODES, PRIVILEGED, RECORDS, RUNTIME, machine, made, recorded

SHOW = """#!/bin/sh
printf '%s\\0' "$@"
env --null | grep --null-data ^APPTAINERENV_ | sort --zero-terminated
"""
"""Stands for apptainer: prints its words and the variables that the container would get."""


def of(record: Run, folder: Path, **request: Any) -> Container:
    cache = {"cache": str(folder / "cache"), "network": "host"}
    return made(record, machine(folder), **cache, **request)


def in_a_shell(spec: Container, folder: Path, **env: str) -> tuple[list[str], dict[str, str]]:
    """Run the command; return apptainer's words, and the container's variables."""
    program = folder / "bin" / "apptainer"
    program.parent.mkdir(exist_ok=True)
    program.write_text(SHOW)
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    result = subprocess.run(
        apptainer.apptainer_argv(spec),
        env={"PATH": path, **env},
        capture_output=True,
        check=True,
    )
    words = result.stdout.decode().split("\0")[:-1]
    names = [word.removeprefix(apptainer.VARIABLE) for word in words if word.startswith(apptainer.VARIABLE)]
    return [word for word in words if not word.startswith(apptainer.VARIABLE)], dict(n.split("=", 1) for n in names)


@pytest.mark.parametrize("record", RECORDS.values(), ids=list(RECORDS))
def test_words_and_variables_are_what_they_were(tmp_path: Path, record: Run) -> None:
    spec = of(record, tmp_path, arguments=("--x", "a 'b' $HOME \n `id`"), env=("VLLM_X=$(id), c=d",))
    words, variables = in_a_shell(spec, tmp_path, HF_ENDPOINT="https://mirror")

    assert words[0] == "exec"
    assert words[-len(spec.arguments) :] == list(spec.arguments)
    assert {**spec.env, **spec.visible, "HF_ENDPOINT": "https://mirror"}.items() <= variables.items()
    assert variables["VLLM_X"] == "$(id), c=d"
    assert (tmp_path / "cache" / f"apptainer-{spec.name}").is_dir()


@pytest.mark.parametrize(
    ("target", "host", "devices", "words", "variables"),
    [
        ("cuda", "cuda-h100-8x", "0,1", ["--nv"], {"CUDA_VISIBLE_DEVICES": "0,1"}),
        ("cuda", "cuda-h100-8x", "", ["--nv"], {}),
        ("gaudi2", "habana-gaudi2-8x", "0,1", ["--intel-hpu"], {"HABANA_VISIBLE_DEVICES": "0,1"}),
        ("cpu", "cpu-xeon8380-2s", "", [], {}),
    ],
)
def test_a_recorded_host_gets_its_devices(
    tmp_path: Path, target: str, host: str, devices: str, words: list[str], variables: dict[str, str]
) -> None:
    variant = find_variant(read_matrix(DRYDOCK), target)
    request = apptainer.adapt_request(
        RunRequest(model="org/m", devices=devices, cache=str(tmp_path / "cache"), port=9000), variant.accelerator
    )
    spec = make_container(variant, request, recorded(host, tmp_path))
    argv, env = in_a_shell(spec, tmp_path)

    assert [word for word in argv if word in apptainer.RUNTIMES.values()] == words
    assert {name: env.get(name) for name in apptainer.CHOSEN.split() + list(variables)} == {
        apptainer.CHOSEN: None
    } | variables
    assert {"--containall", "--no-eval"} <= {*argv}
    assert argv[-8:] == ["--model", "org/m", "--host", "127.0.0.1", "--port", "9000", "--status-port", "9001"]


def test_devices_and_files_are_bound_and_the_rest_is_said(tmp_path: Path) -> None:
    files = ["/dev/davinci0", "/dev/davinci_manager", "/dev/devmm_svm", "/usr/local/Ascend/driver/x"]
    cache = str(tmp_path / "c")
    spec = made(NODES, machine(tmp_path, files), cache=cache, network="host", model=str(tmp_path))
    argv, _ = in_a_shell(spec, tmp_path)

    assert [argv[n + 1] for n, word in enumerate(argv) if word == "--bind"] == files[:3]
    mounts = [argv[n + 1] for n, word in enumerate(argv) if word == "--mount"]
    assert mounts[-2:] == [
        f"type=bind,source={tmp_path},target=/models/{tmp_path.name},readonly",
        f"type=bind,source={cache},target=/cache",
    ]
    remark_names = {text.partition(" ")[0].rstrip(":") for text in apptainer.list_apptainer_remarks(spec)}
    assert remark_names == {"apptainer", "groups", "ulimits", "shm-size", "image"}
    other_remarks = [
        *apptainer.list_apptainer_remarks(of(PRIVILEGED, tmp_path)),
        *apptainer.list_apptainer_remarks(of(RUNTIME, tmp_path)),
    ]
    assert {"privileged", "user", "capabilities"} <= {text.partition(" ")[0].rstrip(":") for text in other_remarks}
    assert "--containall" not in in_a_shell(of(RUNTIME, tmp_path), tmp_path)[0]  # it has the host's IPC


def test_a_shell_without_the_key_starts_nothing(tmp_path: Path) -> None:
    spec = of(Run(), tmp_path, address="0.0.0.0")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        in_a_shell(spec, tmp_path)
    assert b"set the key that clients must send" in failed.value.stderr
    assert in_a_shell(spec, tmp_path, VLLM_API_KEY="a-key")[1]["VLLM_API_KEY"] == "a-key"


def test_an_empty_key_reaches_the_entrypoint_which_refuses_it(tmp_path: Path) -> None:
    assert in_a_shell(of(Run(), tmp_path), tmp_path, VLLM_API_KEY="")[1]["VLLM_API_KEY"] == ""
    assert "VLLM_API_KEY" not in in_a_shell(of(Run(), tmp_path), tmp_path)[1]


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"network": "none"}, "--network none: Apptainer uses the machine's network"),
        ({"cache": "volume"}, "--cache volume: Apptainer has no volumes"),
        ({"model": f"oci://registry.example/m@sha256:{'1' * 64}"}, "Apptainer mounts no image"),
    ],
)
def test_what_apptainer_has_not_is_refused(request_: dict[str, str], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        apptainer.adapt_request(RunRequest(**request_), "cpu")
