"""Requirements of the Docker engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from drydock.core.errors import EngineError
from drydock.core.ownership import user_name
from drydock.engine import daemon, debian

SNAPSHOTTER = [["driver-type", "io.containerd.snapshotter.v1"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("28.5.2+dfsg4", (28, 5, 2)),
        ("github.com/docker/buildx 0.29.1+ds1 0.29.1+ds1-4", (0, 29, 1)),
        ("v0.13.0-rc1", (0, 13, 0)),
        ("unknown", ()),
        ("", ()),
    ],
)
def test_the_first_dotted_number_is_the_version(text: str, expected: tuple[int, ...]) -> None:
    assert expected == daemon.parse_version(text)


def test_a_current_engine_lacks_nothing() -> None:
    assert daemon.find_shortcomings("28.5.2", SNAPSHOTTER, "0.29.1") == []


@pytest.mark.parametrize(
    ("version", "status", "buildx", "problem"),
    [
        ("20.10.24", SNAPSHOTTER, "0.29.1", "docker engine: found 20.10.24, expected 25.0 or newer"),
        ("28.5.2", SNAPSHOTTER, "", "docker buildx: found none, expected 0.13 or newer"),
        ("28.5.2", SNAPSHOTTER, "0.9.1", "docker buildx: found 0.9.1, expected 0.13 or newer"),
        ("28.5.2", [["Backing Filesystem", "extfs"]], "0.29.1", "found the classic image store"),
    ],
)
def test_each_problem_says_found_and_expected(version: str, status: list[list[str]], buildx: str, problem: str) -> None:
    problems = daemon.find_shortcomings(version, status, buildx)

    assert len(problems) == 1
    assert problem in problems[0]


def test_every_engine_that_is_new_enough_starts_with_the_settings_that_drydock_writes() -> None:
    """Docker 25 to 27, such as Debian 13's 26.1: `dockerd did not start: invalid size: ''` without keepStorage."""
    policy = daemon.KEEP_LAYERS
    assert policy["keepStorage"] == policy["maxUsedSpace"]
    assert policy["reservedSpace"] == "0", "Docker 28 takes keepStorage for it, and then frees nothing for minFreeSpace"


def test_a_missing_command_is_an_engine_error() -> None:
    with pytest.raises(daemon.EngineError, match="no-such-docker: not found on PATH"):
        daemon.run_docker(["no-such-docker", "info"])


def test_the_error_of_a_failing_command_has_its_last_line() -> None:
    with pytest.raises(daemon.EngineError, match="exit 3: the reason"):
        daemon.run_docker(["sh", "-c", "echo noise >&2; echo the reason >&2; exit 3"])


@pytest.fixture
def inspected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Return what sets the answers of `buildx inspect`: the one of its start, and a later one."""

    def answers(first: str, later: str) -> None:
        fake = tmp_path / "docker"
        fake.write_text(f'#!/bin/sh\n[ "$3" = --bootstrap ] && printf "{first}" || printf "{later}"\n')
        fake.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return answers


LATE = "Name:   kube\\nError:  context deadline exceeded\\n"
"""What buildx prints, and ends well, if the builder started and that took longer than 20 seconds."""
READY = "Name:   kube\\n\\nNodes:\\nName:   kube0\\nStatus: running\\nPlatforms:  linux/amd64*, linux/arm64\\n"


def test_a_builder_that_starts_slowly_has_the_platforms_of_its_nodes(inspected: Callable[[str, str], None]) -> None:
    inspected(LATE, READY)

    assert daemon.list_builder_platforms("kube") == {"linux/amd64", "linux/arm64"}


@pytest.mark.parametrize(
    ("text", "reason"), [(LATE, "context deadline exceeded"), ("Nodes:\\nStatus: inactive\\n", "inactive")]
)
def test_a_builder_without_a_node_that_answers_is_an_error(
    inspected: Callable[[str, str], None], text: str, reason: str
) -> None:
    inspected(text, text)

    with pytest.raises(EngineError, match=f"builder kube: none of its nodes answers: {reason}"):
        daemon.list_builder_platforms("kube")


@pytest.mark.parametrize(
    "message", ["to the Docker daemon socket at unix:///run/docker.sock", "to the docker API at x"]
)
def test_an_engine_that_refuses_the_user_is_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    fake = tmp_path / "docker"
    fake.write_text(f"#!/bin/sh\necho permission denied while trying to connect {message} >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    name = user_name(os.geteuid())
    with pytest.raises(EngineError, match=f"the Docker engine refuses the user {name}: permission denied") as raised:
        daemon.find_engine()
    assert f"as root: `usermod --append --groups docker {name}`" in raised.value.hint


def test_what_dockers_client_says_of_the_socket_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    assert "refuses the user" in str(
        daemon.make_unreachable_error("('Connection aborted.', PermissionError(13, 'Permission denied'))")
    )
    assert str(daemon.make_unreachable_error("no socket")).startswith("cannot connect to the Docker engine: no socket")
    silent = "('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))"
    assert str(daemon.make_unreachable_error(silent)).startswith("no Docker engine is running\n")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nosuch")  # `./inv engine` starts none there
    assert "no Docker engine answers at DOCKER_HOST=unix:///nosuch" in str(daemon.make_unreachable_error(silent))


def test_waiting_ends_when_the_condition_holds() -> None:
    answers = iter([False, True])

    assert daemon.wait_for(lambda: next(answers), seconds=5)
    assert not daemon.wait_for(lambda: False, seconds=0.05)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("docker.io:\n  Installed: (none)\n  Candidate: 28.5.2+dfsg4-5\n", (28, 5, 2)),
        ("x:\n  Candidate: 2:1.3.5-7\n", (1, 3, 5)),
        ("x:\n  Candidate: (none)\n", ()),
        ("", ()),
    ],
)
def test_the_candidate_is_what_apt_would_install(text: str, expected: tuple[int, ...]) -> None:
    assert expected == debian.parse_policy(text)


@pytest.mark.parametrize(("text", "expected"), [("ID=debian\n", True), ("ID=ubuntu\nID_LIKE=debian\n", False)])
def test_only_debian_itself_is_debian(tmp_path: Path, text: str, expected: bool) -> None:
    release = tmp_path / "os-release"
    release.write_text(text)

    assert expected is debian.is_debian(release)


def test_an_engine_is_not_installed_where_nothing_may_be_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    monkeypatch.setattr(daemon, "find_engine", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(debian, "install_packages", lambda *_, **__: pytest.fail("installed"))
    with pytest.raises(EngineError, match="no Docker engine is installed"):
        daemon.ensure_engine(install=False)
