"""The task `prove` without Docker: what it starts, what it records, and what counts as proof."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drydock.build import build
from drydock.core.errors import BuildError, EngineError
from drydock.prove import demo, prove
from drydock.run import docker_command
from drydock.run.container import Container, RunRequest
from tests.support.containers import NODES, RUNTIME, machine, made, variant
from tests.unit.drydock.verbs.test_run_verb import FakeHere

DIGEST = "sha256:" + "a" * 64
BUILT = build.Built(
    variant="cpu-vllm0.32",
    platform="linux/amd64",
    image="drydock/cpu-vllm0.32:abc",
    digest=DIGEST,
    inputs_sha256="b" * 64,
    layout="l",
    seconds=0,
    phases={},
)
CARDS: dict[str, Any] = {"devices": [{"name": "910B3"}, {"name": "910B3"}], "processor": {"model": "Kunpeng"}}
NO_CARD: dict[str, Any] = {"devices": [], "processor": {"model": "Xeon Platinum 8380"}}


class Docker:
    """Stores each command; `fails` is the subcommand that fails."""

    def __init__(self, fails: str = "") -> None:
        self.commands: list[list[str]] = []
        self.fails = fails

    def __call__(self, argv: Sequence[str]) -> str:
        self.commands.append([*argv])
        if argv[1] == self.fails:
            raise EngineError("it failed")
        return ""


def wanted(folder: Path) -> Container:
    job = SimpleNamespace(variant=variant(NODES))
    here = FakeHere(folder)
    return prove.what_to_start(job, BUILT, RunRequest(model="org/model", arguments=("--x",)), here)  # type: ignore[arg-type]


def test_the_built_image_is_started_on_loopback_with_a_known_name(tmp_path: Path) -> None:
    container = wanted(tmp_path)
    published = [option[1] for option in docker_command.docker_options(container) if option[0] == "--publish"]

    assert container.image == BUILT.image
    assert container.arguments == ("serve", "--model", "org/model", "--served-model-name", "proof", "--x")
    assert published == [f"127.0.0.1:{container.port}:8000", f"127.0.0.1:{container.port + 1}:8001"]


def test_the_port_after_a_free_port_is_free() -> None:
    port = prove.free_port()

    for number in (port, port + 1):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", number))


def test_the_host_is_recorded_before_serving_and_containers_are_removed(tmp_path: Path) -> None:
    docker = Docker()
    container = wanted(tmp_path)

    where = prove.record_proof_host(container, tmp_path / "hosts" / "ascend-910b3", docker)

    assert where == tmp_path / "hosts" / "ascend-910b3"
    assert [command[1] for command in docker.commands] == ["run", "cp", "rm", "run"]
    inside = f"/cache/{container.name}"
    assert docker.commands[0][-3:] == ["facts", "--record", inside]
    assert docker.commands[1][2:] == [f"{container.name}:{inside}", str(where)]
    assert docker.commands[3][-3:] == ["rm", "-rf", inside]


def test_an_existing_recorded_host_is_kept(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()

    assert prove.record_proof_host(wanted(tmp_path), tmp_path / "host", Docker()) == tmp_path / "host-2"


def test_a_container_is_removed_if_copying_fails(tmp_path: Path) -> None:
    docker = Docker(fails="cp")

    with pytest.raises(EngineError):
        prove.record_proof_host(wanted(tmp_path), tmp_path / "host", docker)
    assert [command[1] for command in docker.commands] == ["run", "cp", "rm", "run"]


def test_removing_a_missing_container_is_no_error(tmp_path: Path) -> None:
    prove.remove_container(wanted(tmp_path), Docker(fails="rm"))


def test_ready_without_a_compared_answer_is_an_error() -> None:
    with pytest.raises(BuildError, match="no answer was compared"):
        prove.check_compared_answers(["not compared: this vLLM returns no token ids"], "Paris")
    with pytest.raises(BuildError, match="no answer was compared"):
        prove.check_compared_answers([], "Paris")


def test_compared_answers_are_printed() -> None:
    lines = prove.check_compared_answers(
        ["prefill and decode agree on 16 tokens", "not compared: no answer is recorded"], "Paris."
    )

    assert lines[0] == "prefill and decode agree on 16 tokens"
    assert lines[-1].endswith("'Paris.'")


def test_the_proof_names_model_and_device(tmp_path: Path) -> None:
    local = made(NODES, machine(tmp_path), model=str(tmp_path))

    assert prove.name_served_model(wanted(tmp_path), CARDS) == "invoke prove: org/model on 2 of 910B3"
    assert prove.name_served_model(local, NO_CARD) == f"invoke prove: {tmp_path.name} on Xeon Platinum 8380"


@pytest.mark.parametrize(("text", "name"), [("8 of HL-225", "8-of-hl-225"), ("µ", "machine"), ("A  B", "a-b")])
def test_a_recorded_host_is_named_after_its_device(text: str, name: str) -> None:
    assert prove.make_folder_name(text) == name


def test_the_report_says_what_was_shown(tmp_path: Path) -> None:
    text = prove.format_proof_report(BUILT, CARDS, tmp_path, ["prefill and decode agree"])

    for part in (BUILT.image, DIGEST, "2 of 910B3", str(tmp_path), "prefill and decode agree"):
        assert part in text


@pytest.mark.parametrize(
    ("port", "path", "expected"),
    [(demo.API_PORT, "/v1", "http://127.0.0.1:9000/v1"), (demo.STATUS_PORT, "/readyz", "http://127.0.0.1:9001/readyz")],
)
def test_a_container_in_the_hosts_network_has_the_port_of_its_arguments(
    tmp_path: Path, port: str, path: str, expected: str
) -> None:
    arguments = made(RUNTIME, machine(tmp_path), port=9000).arguments
    attributes = {
        "NetworkSettings": {"Ports": {}},
        "HostConfig": {"NetworkMode": "host"},
        "Config": {"Cmd": [*arguments]},
    }
    running: Any = SimpleNamespace(attrs=attributes)

    assert demo.find_port_url(running, port, path) == expected
    attributes["Config"] = {"Cmd": ["serve"]}
    assert demo.find_port_url(running, demo.API_PORT, "") == "http://127.0.0.1:8000"
    attributes["HostConfig"] = {"NetworkMode": "bridge"}
    assert demo.find_port_url(running, demo.API_PORT, "") == ""
