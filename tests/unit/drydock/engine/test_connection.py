"""Which engine drydock talks to: docker's own, on this machine or another, rootless, or Podman in its place."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from drydock.core.errors import EngineError
from drydock.engine import compose_plugin, connection, daemon, debian


@pytest.fixture(autouse=True)
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds, installs or starts an engine of this machine."""
    for name in (connection.HOST, connection.CONTEXT):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setattr(debian, "install_packages", lambda *_, **__: pytest.fail("installed"))
    monkeypatch.setattr(daemon, "_start_engine", lambda: pytest.fail("started"))


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Put a program `docker` first on PATH, which runs lines of a shell."""
    path = folder / "bin" / "docker"
    path.parent.mkdir()
    path.write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")


def choose_context(folder: Path, name: str) -> None:
    """Choose a context as `docker context use` does."""
    (folder / "docker").mkdir()
    (folder / "docker" / "config.json").write_text(json.dumps({"currentContext": name}))


def context(host: str, **more: object) -> str:
    """Return a line of a shell that answers `docker context inspect`."""
    answer = [{"Name": "far", "Endpoints": {"docker": {"Host": host, "SkipTLSVerify": False}}, **more}]
    return f"[ \"$1\" = context ] && echo '{json.dumps(answer)}' && exit 0"


PODMAN = {
    "the package podman-docker": [
        'echo "Emulate Docker CLI using podman. Create /etc/containers/nodocker to quiet msg." >&2',
        '[ "$1" = --version ] && echo "podman version 5.8.2"',
        '[ "$1" = info ] && echo \'{"host": {}, "version": {"Version": "5.8.2"}}\'',
        "exit 0",
    ],
    "one that says so only in version": ['[ "$1" = version ] && echo "podman version 5.8.2" && exit 0', "exit 125"],
    "one that says so only on standard error": ['echo "Emulate Docker CLI using podman." >&2', "exit 125"],
    "docker's own program with Podman's socket": [
        '[ "$1" = info ] && echo \'{"ServerVersion": "5.8.2"}\' && exit 0',
        '[ "$1" = version ] && printf "Server: linux/amd64\\n Podman Engine:\\n  Version: 5.8.2\\n" && exit 0',
        '[ "$1" = --version ] && echo "Docker version 28.5.2"',
        "exit 0",
    ],
}


@pytest.mark.parametrize("lines", PODMAN.values(), ids=PODMAN.keys())
def test_podman_in_dockers_place_is_named_and_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    program(tmp_path, monkeypatch, *lines)

    with pytest.raises(EngineError, match=r"docker is Podman's here \(.*(?i:podman)") as error:
        daemon.ensure_engine()

    assert "`./inv run --format quadlet`" in error.value.hint


def test_no_compose_is_installed_for_podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, *PODMAN["the package podman-docker"])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(debian, "is_debian", lambda: True)

    with pytest.raises(EngineError, match="docker is Podman's here"):
        compose_plugin.ensure_compose()


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        (connection.HOST, "tcp://127.0.0.1:9", "DOCKER_HOST=tcp://127.0.0.1:9"),
        (connection.HOST, "unix:///nowhere/docker.sock", "DOCKER_HOST=unix:///nowhere/docker.sock"),
        (connection.CONTEXT, "far", "DOCKER_CONTEXT=far"),
        ("", "", "the docker context in use .tcp://127.0.0.1:9."),
    ],
)
def test_no_engine_is_started_where_the_user_has_named_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, named: str
) -> None:
    program(tmp_path, monkeypatch, context("tcp://127.0.0.1:9"), "exit 1")
    choose_context(tmp_path, "far")
    if variable:
        monkeypatch.setenv(variable, value)

    with pytest.raises(EngineError, match=f"no Docker engine answers at {named}"):
        daemon.ensure_engine()


def test_a_client_talks_to_the_engine_of_the_docker_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    material = {"TLSMaterial": {"docker": ["ca.pem"]}, "Storage": {"TLSPath": "/tls"}}
    program(tmp_path, monkeypatch, context("tcp://gpu.example:2376", **material))
    choose_context(tmp_path, "far")

    assert connection.read_engine_address() == "tcp://gpu.example:2376"
    assert connection.read_context("far") == connection.Endpoint("tcp://gpu.example:2376", Path("/tls/docker"))
    assert connection.read_engine_address({connection.HOST: "tcp://h:1"}) == "tcp://h:1"
    assert connection.read_engine_address({connection.CONTEXT: "default"}) == ""
    monkeypatch.setattr(connection, "_make_tls_config", lambda endpoint: endpoint.certificates)
    monkeypatch.setattr(connection.docker, "DockerClient", lambda **options: options)
    expected = {"base_url": "tcp://gpu.example:2376", "version": "1.47", "timeout": 60, "tls": Path("/tls/docker")}
    assert connection.connect_engine("1.47") == expected


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("echo \"context 'far' does not exist\" >&2; exit 1", "context 'far' does not exist"),
        ("echo '[]'", "it names no engine"),
        ("echo '[{\"Endpoints\": {}}]'", "it names no engine"),
        ("echo not-json", "it names no engine"),
    ],
)
def test_a_context_that_is_missing_or_damaged_is_no_default_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, problem: str
) -> None:
    program(tmp_path, monkeypatch, line)
    monkeypatch.setenv(connection.CONTEXT, "far")

    for ask in (daemon.ensure_engine, connection.connect_engine):
        with pytest.raises(EngineError, match=f"docker context far: {problem}") as error:
            ask()
        assert "docker context ls" in error.value.hint


def test_an_engine_over_ssh_is_refused_with_the_way_to_forward_its_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, monkeypatch, context("ssh://gpu.example"))
    choose_context(tmp_path, "far")

    for ask in (daemon.ensure_engine, connection.connect_engine):
        with pytest.raises(EngineError, match="over ssh") as error:
            ask()
        assert "ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock gpu.example" in error.value.hint


@pytest.mark.parametrize(
    ("info", "address", "words"),
    [
        ({}, "", []),
        ({"SecurityOptions": ["name=seccomp,profile=builtin"], "CgroupDriver": "systemd"}, "unix:///run/d.sock", []),
        ({}, "tcp://127.0.0.1:2375", []),
        ({}, "tcp://localhost:2375", []),
        ({}, "tcp://gpu.example:2376", ["on another machine (tcp://gpu.example:2376)"]),
        ({}, "ssh://gpu.example", ["on another machine"]),
        ({"SecurityOptions": ["name=rootless"], "CgroupDriver": "systemd"}, "", ["the engine is rootless"]),
        (
            {"SecurityOptions": ["name=seccomp", "name=rootless"], "CgroupDriver": "none"},
            "tcp://h:1",
            ["on another machine", "the engine is rootless", "limits no memory"],
        ),
    ],
)
def test_what_an_engine_lacks_is_said(info: dict[str, object], address: str, words: list[str]) -> None:
    limits = daemon.list_engine_limits(info, address)

    assert len(limits) == len(words)
    assert all(word in limit for word, limit in zip(words, limits, strict=True))


@pytest.mark.skipif(not shutil.which("docker"), reason="reads what a docker command would")
def test_no_answer_that_is_json_is_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, "echo not-json")

    assert daemon.read_info() == {}
