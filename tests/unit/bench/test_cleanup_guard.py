"""A benchmark that is killed leaves no process and no file, and one that begins says what it will do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench import cleanup_guard, run
from bench.bench_page import read_report
from bench.bench_records import MeasuredPart
from drydock.core.paths import ROOT
from entrypoints.host.processes import is_running
from tests.support.waiting import wait_until

BENCH = """
import os, subprocess, sys, tempfile, time
from pathlib import Path
from bench import cleanup_guard, compared_images
with cleanup_guard.guard_run():
    server = subprocess.Popen(["sleep", "61"])
    ignored = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(61)" if "deaf" in sys.argv else ""
    deaf = subprocess.Popen([sys.executable, "-c", ignored], start_new_session=True)
    with compared_images.make_temporary_folder() as folder, tempfile.TemporaryDirectory() as other:
        (folder / "registry").mkdir()
        assert Path(other).parent == folder.parent
        time.sleep(0.5)
        print(os.getpid(), server.pid, deaf.pid, flush=True)
        if "ends" not in sys.argv:
            time.sleep(61)
"""


@pytest.fixture
def started(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a benchmark; return it, and the processes that must end."""
    environment = {**os.environ, "DRYDOCK_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment["DOCKER_HOST"] = "unix:///nonexistent/docker.sock"
    words = getattr(request, "param", [])
    process = subprocess.Popen(
        [sys.executable, "-c", BENCH, *words],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout
    return process, [int(word) for word in process.stdout.readline().split()]


@pytest.mark.parametrize(
    ("started", "number"),
    [(["deaf"], signal.SIGKILL), ([], signal.SIGTERM), ([], signal.SIGINT)],
    ids=["SIGKILL", "SIGTERM", "SIGINT"],
    indirect=["started"],
)
def test_a_killed_benchmark_leaves_nothing(
    started: tuple[subprocess.Popen[str], list[int]], number: signal.Signals, tmp_path: Path
) -> None:
    process, pids = started
    assert list(tmp_path.glob("bench-*")) != []
    os.kill(process.pid, number)
    process.wait(60)

    wait_until(lambda: list(tmp_path.iterdir()) == [], "the folders to go", 20)
    assert [pid for pid in pids if is_running(pid)] == []


@pytest.mark.parametrize("started", [["ends"]], indirect=True)
def test_one_that_ends_leaves_nothing_either(started: tuple[subprocess.Popen[str], list[int]], tmp_path: Path) -> None:
    process, pids = started

    assert process.wait(60) == 0
    assert list(tmp_path.iterdir()) == []
    assert [pid for pid in pids if is_running(pid)] == []


def test_the_environment_is_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    before = dict(os.environ)
    with cleanup_guard.guard_run():
        assert os.environ["TMPDIR"] == str(cleanup_guard.make_bench_folder())
        assert cleanup_guard.make_run_labels() == {cleanup_guard.LABEL: os.environ[cleanup_guard.VARIABLE]}
    assert dict(os.environ) == before
    assert cleanup_guard.run_id() == "none"


def recorded() -> dict[str, MeasuredPart]:
    part = next(iter(read_report(ROOT).parts.values()))
    return {
        "build": part.model_copy(update={"seconds": 600.0, "rounds": 2}),
        "tool": part.model_copy(update={"seconds": 35.0, "rounds": 7}),
    }


def test_it_says_what_it_measures_and_for_how_long() -> None:
    assert run.announce_bench(["build", "size", "tool"], 0, recorded()).splitlines() == [
        "bench measures:",
        "  build  2 rounds, about 10 min",
        "  size   1 round, unknown time",
        "  tool   7 rounds, about 35 s",
        "about 11 min in all, by the last recorded run (docs/benchmarks.json); builds come on top",
    ]


def test_the_time_follows_the_rounds_asked_for() -> None:
    assert "  build  4 rounds, about 20 min" in run.announce_bench(["build"], 4, recorded())
    assert run.announce_bench(["size"], 1, {}) == "bench measures:\n  size   1 round, unknown time"
