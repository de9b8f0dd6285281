"""The network of a container: `run --network`, in every format."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.core.errors import InputError
from drydock.run import docker_command
from drydock.run.option_reasons import format_option_reasons
from tests.support.called_verbs import run_as, run_on_engine
from tests.support.containers import RUNTIME, machine, made
from tests.support.printed_forms import MODEL, pod, printed, service
from tests.unit.drydock.verbs.test_run_verb import FakeHere


def test_the_machines_network_moves_the_address_into_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = MODEL.model_copy(update={"network": "host", "port": 9000})

    argv = printed(request, "docker", tmp_path, capsys)["docker"]
    assert "--publish" not in argv
    assert argv[argv.index("--network") + 1] == "host"
    assert argv[-6:] == ["--host", "127.0.0.1", "--port", "9000", "--status-port", "9001"]
    compose_service = service(printed(request, "compose", tmp_path, capsys))
    assert (compose_service["network_mode"], "ports" in compose_service) == ("host", False)
    assert pod(printed(request, "kubernetes", tmp_path, capsys))["hostNetwork"] is True


def test_a_network_of_the_engine_keeps_the_published_ports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = MODEL.model_copy(update={"network": "mine"})

    argv = printed(request, "docker", tmp_path, capsys)["docker"]
    assert argv[argv.index("--publish") + 1] == "127.0.0.1:8000:8000"
    data = printed(request, "compose", tmp_path, capsys)
    compose_service = service(data)
    assert (compose_service["networks"], "network_mode" in compose_service) == (["mine"], False)
    assert compose_service["ports"][0] == "127.0.0.1:8000:8000"
    assert data["compose"]["networks"] == {"mine": {"external": True}}
    with pytest.raises(InputError, match="a pod is in the cluster's network"):
        run_on_engine("cpu", request, run_as("kubernetes"), here=FakeHere(tmp_path))


def test_another_network_than_the_records_is_said(tmp_path: Path) -> None:
    container = made(RUNTIME, machine(tmp_path), network="bridge")

    assert "--network bridge replaces host: host is needed" in container.notes
    assert "--publish" in docker_command.docker_argv(container)
    assert "--network bridge: --network asks for it" in format_option_reasons(RUNTIME, container, "docker")
    with pytest.raises(InputError, match="expected host, or the name of a network"):
        made(RUNTIME, machine(tmp_path), network="container:x y")
