"""Docker's errors as ours, and what passes through while a container runs."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import EngineError, HostError
from drydock.run import engine
from drydock.run.container import Container, RunRequest, make_container
from tests.support.containers import GPUS, RUNTIME, machine, made

DAEMON = "docker: Error response from daemon: "
ADVICE = "\n\nRun 'docker run --help' for more information\n"


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return made(GPUS.model_copy(update={"runtime": RUNTIME.runtime}), machine(tmp_path), name="llm", port=7999)


@pytest.mark.parametrize(
    ("message", "problem", "hint"),
    [
        ("unknown or invalid runtime name: habana", "container runtime habana: the engine does not have it", "toolkit"),
        ('could not select device driver "" with capabilities: [[gpu]]', "--gpus all: the engine has no", "nvidia-ctk"),
        (
            "on endpoint a (6e): failed to bind host port for 127.0.0.1:7999:1.2.3.4:8000/tcp: address already in use",
            "port 7999: already in use",
            "--port",
        ),
        ("Bind for 127.0.0.1:8000 failed: port is already allocated", "port 8000: already in use", "ss -ltnp"),
        (
            "failed to bind host port for 127.0.0.1:7999:172.17.0.2:8000/tcp: cannot assign requested address",
            "--port 127.0.0.1:7999: this machine has no such address",
            "ip address",
        ),
        (
            'error gathering device information while adding custom device "/dev/nope": no such file or directory',
            "a device is missing on this machine: error gathering device information",
            "load the driver",
        ),
        (
            'Conflict. The container name "/llm" is already in use by container "b90a". You have to remove it.',
            "container llm: exists already",
            "docker rm --force llm",
        ),
        (
            "failed to register layer: Error processing tar file(exit status 1): archive/tar: invalid tar header",
            "image drydock/cpu-vllm0.32:latest: this engine cannot unpack its layers: failed to register layer",
            "Docker 23.0 and containerd 1.5 can: update the engine",
        ),
        ('invalid mount config for type "bind": bind source path does not exist: /n', "/n: no such file", "--print"),
        ('invalid mount config for type "image": mount type unknown', "the model is an image, and this", "Docker 28"),
    ],
)
def test_what_this_machine_lacks_is_our_error_with_a_hint(
    container: Container, message: str, problem: str, hint: str
) -> None:
    error = engine.explain_docker_error(f"{DAEMON}{message}{ADVICE}", container)

    assert isinstance(error, HostError)
    assert error.problems[0].startswith(problem)
    assert hint in error.hint


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (f'{DAEMON}failed to resolve reference "r/x:1": no such host{ADVICE}', "image drydock/cpu-vllm0.32:latest:"),
        ("docker: Cannot connect to the Docker daemon at unix:///x.sock", "no Docker engine answers"),
        (f"{DAEMON}something new{ADVICE}", "docker: something new"),
        ("", "docker: failed"),
    ],
)
def test_other_errors_of_docker_are_the_engines(container: Container, message: str, problem: str) -> None:
    error = engine.explain_docker_error(message, container)

    assert isinstance(error, EngineError)
    assert error.problems[0].startswith(problem)
    assert error.hint


def started(script: str) -> list[str]:
    return [sys.executable, "-c", f"import os, sys, time, signal\n{script}"]


def test_output_passes_at_once_and_dockers_own_error_becomes_ours(
    container: Container, capfd: pytest.CaptureFixture[str]
) -> None:
    script = f"sys.stderr.write('pulling\\n'); sys.stderr.flush(); sys.stderr.write({DAEMON + 'odd'!r}); sys.exit(125)"
    with pytest.raises(EngineError, match="docker: odd"):
        engine.Here(DRYDOCK).attach(started(script), container)
    assert capfd.readouterr().err == "pulling\n"


def test_the_containers_own_words_and_code_are_kept(container: Container, capfd: pytest.CaptureFixture[str]) -> None:
    script = "print('out'); sys.stderr.write('50%\\r a docker: b\\ndocker: mine\\nmore'); sys.exit(3)"
    assert engine.Here(DRYDOCK).attach(started(script), container) == 3
    assert capfd.readouterr() == ("out\n", "50%\r a docker: b\ndocker: mine\nmore")


def test_a_part_of_a_line_is_not_held_back(container: Container) -> None:
    del container
    reading, writing = os.pipe()
    chunks: list[bytes] = []
    with open(reading, "rb") as stream, open(writing, "wb", buffering=0) as sink:  # noqa: PTH123 - descriptors
        thread = threading.Thread(target=engine.pass_on, args=(stream, chunks.append))
        thread.start()
        sink.write(b"10%\r")
        deadline = time.monotonic() + 10
        while not chunks and time.monotonic() < deadline:
            time.sleep(0.01)
        assert chunks == [b"10%\r"]
        sink.close()
        thread.join()


def test_docker_gets_each_signal_once(container: Container, tmp_path: Path) -> None:
    signal_file = tmp_path / "seen"
    script = (
        f"signal.signal(signal.SIGTERM, lambda *_: (open({str(signal_file)!r}, 'a').write('T'), sys.exit(143)))\n"
        f"time.sleep(0.5); os.kill(os.getppid(), signal.SIGTERM); time.sleep(30)"
    )
    before = signal.getsignal(signal.SIGTERM)
    assert engine.Here(DRYDOCK).attach(started(script), container) == 143
    assert signal_file.read_text() == "T"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("terminal", [True, False])
def test_only_what_reads_the_terminal_stays_in_its_foreground(
    container: Container, terminal: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    assert engine.Here(DRYDOCK).attach(started("import os; print(os.getpgrp())"), container, terminal=terminal) == 0
    assert (int(capfd.readouterr().out) == os.getpgrp()) is terminal


def test_the_version_is_that_of_docker_and_no_other_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def __init__(self, *names: str) -> None:
            self.names = names

        def version(self) -> dict[str, object]:
            return {"Components": [{"Name": name, "Version": "20.10.24+dfsg1"} for name in self.names]}

    for names, expected in ((("Engine", "containerd"), "20.10.24+dfsg1"), (("Podman Engine",), ""), ((), "")):
        monkeypatch.setattr(engine.docker, "from_env", lambda names=names, **_: Client(*names))
        assert engine.Here(DRYDOCK).docker_version() == expected

    def absent(**_: object) -> None:
        raise engine.docker.errors.DockerException("no engine")

    monkeypatch.setattr(engine.docker, "from_env", absent)
    assert engine.Here(DRYDOCK).docker_version() == ""


def test_a_detached_container_that_cannot_start_is_removed(
    container: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n'
        'if [ "$1" = run ]; then echo -n abc > "$3"; [ -z "$FAILS" ] && exit 0\n'
        f'echo "{DAEMON}unknown or invalid runtime name: habana" >&2; exit 125; fi\n'
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    assert engine.Here(DRYDOCK).detach(["docker", "run", "--detach", "i"], container) == "abc"
    monkeypatch.setenv("FAILS", "1")
    with pytest.raises(HostError, match="container runtime habana"):
        engine.Here(DRYDOCK).detach(["docker", "run", "--detach", "i"], container)
    assert (tmp_path / "calls").read_text().splitlines()[-1] == "rm --force abc"


def test_without_docker_the_hint_is_the_task_that_installs_it(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for start in (engine.Here(DRYDOCK).attach, engine.Here(DRYDOCK).detach):
        with pytest.raises(EngineError, match="docker: not found on PATH") as raised:
            start(["docker", "run", "i"], container)
        assert raised.value.hint == "run `./inv engine`"


@pytest.mark.parametrize("message", ["Unknown runtime specified habana.", "unknown or invalid runtime name: habana"])
def test_a_runtime_that_the_engine_does_not_know_is_explained_by_its_accelerators_record(
    tmp_path: Path, message: str
) -> None:
    """Docker 23 changed the words; vLLM's installation manual, Intel Gaudi, quotes those of older engines."""
    spec = make_container(
        find_variant(read_matrix(DRYDOCK), "gaudi2"), RunRequest(model="org/model"), machine(tmp_path)
    )
    error = engine.explain_docker_error(f"{DAEMON}{message}{ADVICE}", spec)

    assert error.problems == ("container runtime habana: the engine does not have it",)
    assert error.hint.startswith("install habana-container-runtime from Habana's package repository")
    assert '{"habana": {"path": "/usr/bin/habana-container-runtime", "runtimeArgs": []}}' in error.hint
    assert error.hint.endswith("restart the engine; `docker info` lists its runtimes")
