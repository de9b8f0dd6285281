"""The CPU image serves with no more than its record asks for: as `run` starts it, and as `prove` shows it."""

from __future__ import annotations

import io
import json
import os
import socket
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import docker as engine_client
import pytest
from docker.models.containers import Container as Running

from drydock.attest.cosign import Signer, Trust
from drydock.build import build
from drydock.build.build_job import Job
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import HostError
from drydock.engine import daemon
from drydock.model.running import Run
from drydock.prove import demo, prove, served_statement
from drydock.prove.served_statement import ServedSubject
from drydock.run import docker_command
from drydock.run.container import Bind, Container, RunRequest
from drydock.run.engine import Here
from drydock.run.needed_image import require_image
from tests.support.called_verbs import run_on_engine
from tests.support.containers import machine, made
from tests.support.sigstore import key_pair

pytestmark = pytest.mark.proves("cpu-vllm0.32", "hardware")

ENTRYPOINT = ["/usr/bin/python3", "-I", "-S", "/opt/drydock/entrypoints"]


@pytest.fixture(scope="module")
def proof_container(job: Job, built: build.Built, model: Path) -> Iterator[Container]:
    """The container that `prove` starts, with a cache of its own."""
    cache = f"drydock-test-{os.getpid()}"
    yield prove.what_to_start(job, built, RunRequest(model=str(model), cache=cache), Here(DRYDOCK))
    daemon.run_docker(["docker", "volume", "rm", cache])


@pytest.fixture(scope="module")
def answers(proof_container: Container) -> tuple[Any, Any]:
    """What the image's entrypoint says before it serves: its facts, and its plan."""
    return (
        prove.ask_container(proof_container, "facts"),
        prove.ask_container(proof_container, "plan", "--json", *proof_container.arguments[1:]),
    )


@pytest.fixture(scope="module")
def running(proof_container: Container, answers: tuple[Any, Any]) -> Iterator[Running]:
    """The same, ready. Its name is that of the containers that answered."""
    del answers
    with prove.run_proof_container(proof_container) as server:
        demo.wait_until_ready(server)
        yield server


def test_nothing_that_it_needs_is_missing_on_this_machine(proof_container: Container) -> None:
    require_image(proof_container, "cpu", Here(DRYDOCK))


def test_the_host_is_recorded_as_the_container_sees_it(proof_container: Container, tmp_path: Path) -> None:
    where = prove.record_proof_host(proof_container, tmp_path / "host", daemon.run_docker)
    facts = json.loads(daemon.run_docker(docker_command.docker_argv(proof_container, command=("facts",))))

    recorded = json.loads((where / "host.json").read_text())
    assert recorded["commands"] == {}
    assert "CapBnd" in recorded["files"]["/proc/self/status"]
    assert facts["capabilities"] == ["SYS_NICE"]
    assert prove.describe_proof_devices(facts)


def test_it_serves_with_a_read_only_root_and_no_capability_but_the_one(running: Running) -> None:
    code, status = running.exec_run(["cat", "/proc/1/status"])
    lines = dict(line.split(":\t", 1) for line in status.decode().splitlines() if ":\t" in line)

    assert code == 0
    assert (lines["CapEff"], int(lines["CapBnd"], 16), lines["NoNewPrivs"]) == ("0" * 16, 1 << 23, "1")
    assert running.exec_run(["sh", "-c", "touch /x"])[0] != 0


def test_the_right_answer_is_compared_and_given(running: Running) -> None:
    answer_lines = prove.collect_answers(running)

    assert any(line.startswith("prefill and decode agree") for line in answer_lines)
    assert demo.EXPECTED in answer_lines[-1]


def test_what_prove_saw_is_signed_and_read(
    job: Job, built: build.Built, running: Running, answers: tuple[Any, Any], tmp_path: Path
) -> None:
    key, now = key_pair(tmp_path), int(time.time())
    log_text = running.logs().decode(errors="replace")
    served = prove.describe_served(job, *answers, prove.collect_answers(running), log_text, (now, now, now))
    path = tmp_path / "statement.sigstore.json"
    path.write_bytes(served_statement.sign_served(served, built.digest, Signer(str(key))))
    host = served_statement.reduce_facts(answers[0])
    inputs, epoch = {job.platform: job.inputs_sha256}, job.lock.source_date_epoch
    subject = ServedSubject(job.variant.id, {job.platform: (built.digest,)}, inputs, epoch, host=host)

    assert served_statement.read_served(str(path), Trust(str(key.with_suffix(".pub"))), subject) == served
    assert any("Available KV cache memory" in line or "KV cache size" in line for line in served.memory)
    assert served.command
    assert {"PASS"} <= {*served.checks.values()}
    assert os.uname().nodename not in path.read_text()


def test_the_check_inside_misses_nothing_that_run_gives(running: Running) -> None:
    _, output = running.exec_run([*ENTRYPOINT, "check", "--json"])

    assert [finding for finding in json.loads(output) if finding["id"].startswith("RUN-")] == []


# --- docker's errors ------------------------------------------------------------------------------------------------


TRUE = {
    "arguments": ("/usr/bin/true",),
    "mounts": tuple(Bind(source=path, target=path) for path in ("/usr", "/lib", "/lib64") if Path(path).is_dir()),
}
"""A program that ends at once: docker publishes ports only after it has found the program."""


@pytest.fixture(scope="module")
def empty(engine: object) -> Iterator[str]:
    """An image without content; its program is one of this machine's (see `TRUE`)."""
    del engine
    client, name = engine_client.from_env(), f"drydock-test/empty-{os.getpid()}:1"
    archive = io.BytesIO()
    tarfile.open(fileobj=archive, mode="w").close()
    client.api.import_image_from_data(archive.getvalue(), *name.rsplit(":", 1))
    yield name
    client.images.remove(name, force=True)


@pytest.mark.parametrize("detached", [True, False])
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"runtime": "drydock-none"}, "container runtime drydock-none: the engine does not have it"),
        ({"devices": ("/dev/drydock-none",)}, "a device is missing on this machine"),
        ({}, "port {port}: already in use on this machine"),
        ({"address": "192.0.2.7"}, "--port 192.0.2.7:{port}: this machine has no such address"),
        ({"name": "drydock-taken"}, "container drydock-taken: exists already"),
    ],
)
def test_what_docker_refuses_is_our_error_and_nothing_is_left(
    change: Mapping[str, Any], problem: str, detached: bool, empty: str, tmp_path: Path
) -> None:
    client = engine_client.from_env()
    placeholder = client.containers.create(empty, ["x"], name="drydock-taken")
    name, cache = f"drydock-test-{os.getpid()}", f"drydock-test-errors-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        request = {"image": empty, "name": name, "port": port, "cache": cache}
        container_spec = made(Run(), machine(tmp_path), **request).model_copy(update={**TRUE, **change})
        argv = docker_command.docker_argv(container_spec, lifetime=("--detach",) if detached else ("--rm",))
        try:
            with pytest.raises(HostError) as raised:
                Here(DRYDOCK).detach(argv, container_spec) if detached else Here(DRYDOCK).attach(argv, container_spec)
            container_names = [container.name for container in client.containers.list(all=True, ignore_removed=True)]
        finally:
            placeholder.remove(force=True)
            client.volumes.get(cache).remove() if client.volumes.list(filters={"name": cache}) else None

    assert raised.value.problems[0].startswith(problem.format(port=port))
    assert raised.value.hint
    assert container_spec.name not in container_names or container_spec.name == "drydock-taken"


# --- something else than serve --------------------------------------------------------------------------------------


def test_a_command_gets_the_users_variables_and_files_and_its_exit_code_comes_back(
    built: build.Built, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    value = "it's $5 {x}\ntwo"
    tmp_path.chmod(0o755)  # for the image's user
    (tmp_path / "note").write_text("from the host")
    script = "import os, sys; print(repr(os.environ['MINE'])); print(open('/data/in/note').read()); sys.exit(5)"
    (tmp_path / "script.py").write_text(script)
    cache = f"drydock-test-{os.getpid()}-once"
    request = RunRequest(
        image=built.image, name=f"drydock-test-once-{os.getpid()}", cache=cache, network="none",
        env=(f"MINE={value}",), volumes=(f"{tmp_path}:/data/in:ro",), arguments=("python3", "/data/in/script.py"),
    )  # fmt: skip
    try:
        code = run_on_engine("cpu", request, here=Here(DRYDOCK))
        assert code == 5
        assert capfd.readouterr().out == f"{value!r}\nfrom the host\n"
    finally:
        daemon.run_docker(["docker", "volume", "rm", "--force", cache])
