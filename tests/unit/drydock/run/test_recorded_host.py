"""A verb of a recorded host, in a container: it gets the files that it names, and no device of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.run import container
from drydock.run.container import Container, RunRequest
from drydock.run.machine import Machine

NOWHERE = Machine()
"""A laptop without any device."""


def made(target: str, *words: str) -> Container:
    request = RunRequest(model="Qwen/Qwen3-8B", arguments=words)
    return container.make_container(find_variant(read_matrix(DRYDOCK), target), request, NOWHERE)


@pytest.mark.parametrize("target", ["h100", "mi300x", "gaudi2", "cpu"])
@pytest.mark.parametrize("joined", [False, True])
def test_a_recorded_host_is_mounted_and_needs_no_device(target: str, joined: bool, tmp_path: Path) -> None:
    host = tmp_path / "host.json"
    host.write_text("{}")
    words = (f"--root={host}",) if joined else ("--root", str(host))

    spec = made(target, "plan", "--rehearse", *words)

    assert spec.missing_parts == ()
    assert (spec.devices, spec.gpus, spec.runtime, spec.mounts, spec.privileged) == ((), "", "", (), False)
    assert ("--root=/recorded/root" if joined else "/recorded/root") in spec.arguments
    binds = {bind.target: bind.source for bind in spec.volumes}
    assert binds["/recorded/root"] == str(host)
    assert binds[spec.env["DRYDOCK_KNOWN_MODELS"]].endswith("configurations.json")


def test_a_path_of_the_container_is_the_users_own_affair() -> None:
    spec = made("h100", "plan", "--root", "/mounted/by/the/user/host.json")

    assert spec.volumes == ()
    assert spec.gpus == "all"


def test_a_server_keeps_its_devices(tmp_path: Path) -> None:
    host = tmp_path / "host.json"
    host.write_text("{}")

    assert made("mi300x", "serve", "--root", str(host)).devices != ()
