"""The CPU image serves with no more than its record asks for: as `run` starts it, and as `prove` shows it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker.models.containers import Container as Running

from drydock.build import build
from drydock.build.job import Job
from drydock.engine import daemon
from drydock.prove import demo, prove
from drydock.run import docker
from drydock.run.container import Container, RunRequest
from drydock.run.run import Here, require

pytestmark = pytest.mark.proves("cpu-vllm0.32", "hardware")

ENTRYPOINT = ["/usr/bin/python3", "-I", "-S", "/opt/drydock/entrypoints"]


@pytest.fixture(scope="module")
def wanted(job: Job, built: build.Built, model: Path) -> Iterator[Container]:
    """The container that `prove` starts, with a cache of its own."""
    cache = f"drydock-test-{os.getpid()}"
    yield prove.what_to_start(job, built, RunRequest(model=str(model), cache=cache), Here())
    daemon.run(["docker", "volume", "rm", cache])


@pytest.fixture(scope="module")
def running(wanted: Container) -> Iterator[Running]:
    """The same, ready."""
    with prove.serving(wanted) as found:
        demo.wait_until_ready(found)
        yield found


def test_nothing_that_it_needs_is_missing_on_this_machine(wanted: Container) -> None:
    require(wanted, "cpu", Here())


def test_the_host_is_recorded_as_the_container_sees_it(wanted: Container, tmp_path: Path) -> None:
    where = prove.record(wanted, tmp_path / "host", daemon.run)
    facts = json.loads(daemon.run(docker.docker_argv(wanted, command=("facts",))))

    recorded = json.loads((where / "host.json").read_text())
    assert recorded["commands"] == {}
    assert "CapBnd" in recorded["files"]["/proc/self/status"]
    assert facts["capabilities"] == ["SYS_NICE"]
    assert prove.device(facts)


def test_it_serves_with_a_read_only_root_and_no_capability_but_the_one(running: Running) -> None:
    code, status = running.exec_run(["cat", "/proc/1/status"])
    lines = dict(line.split(":\t", 1) for line in status.decode().splitlines() if ":\t" in line)

    assert code == 0
    assert (lines["CapEff"], int(lines["CapBnd"], 16), lines["NoNewPrivs"]) == ("0" * 16, 1 << 23, "1")
    assert running.exec_run(["sh", "-c", "touch /x"])[0] != 0


def test_the_right_answer_is_compared_and_given(running: Running) -> None:
    said = prove.answers(running)

    assert any(line.startswith("prefill and decode agree") for line in said)
    assert demo.EXPECTED in said[-1]


def test_the_check_inside_misses_nothing_that_run_gives(running: Running) -> None:
    _, output = running.exec_run([*ENTRYPOINT, "check", "--json"])

    assert [finding for finding in json.loads(output) if finding["id"].startswith("RUN-")] == []
