"""A build that is killed, interrupted, doubled, or loses engine or disk leaves nothing the next one trips over."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from bench.small_project import VARIANT
from drydock.build import build
from drydock.build.build_job import Job
from drydock.core.errors import BuildError, DiskFullError, EngineError, StaleError
from drydock.engine.run_container import run_to_end
from drydock.oci.layout_diff import compare_layouts
from tests.support import terminal
from tests.support.small_disk import small_disk
from tests.support.small_image import Small


@pytest.fixture(scope="module")
def small(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Small:
    build.fetch_contexts(job)  # its base is the real one
    return Small(tmp_path_factory.mktemp("small"), job.lock)


@pytest.fixture(scope="module")
def undisturbed(small: Small) -> dict[str, Any]:
    return small.build()


def kill(process: subprocess.Popen[str], number: signal.Signals) -> None:
    os.killpg(process.pid, number)
    process.communicate()


def test_a_build_killed_at_any_moment_is_simply_run_again(small: Small, undisturbed: dict[str, Any]) -> None:
    chance = random.Random(7)  # noqa: S311 - moments to kill at, the same each run
    for _ in range(4):
        process = small.start_build()
        time.sleep(chance.uniform(0.3, 0.9 * undisturbed["seconds"]))
        kill(process, signal.SIGKILL)

    assert small.build()["digest"] == undisturbed["digest"]
    assert small.leftovers() == []


def test_two_builds_at_once_take_turns(small: Small, undisturbed: dict[str, Any]) -> None:
    processes = [small.start_build() for _ in range(2)]
    outputs = [process.communicate(timeout=300) for process in processes]

    assert [process.returncode for process in processes] == [0, 0]
    assert all(undisturbed["digest"] in stdout for stdout, _ in outputs)
    assert sum("waiting for another drydock run" in stderr for _, stderr in outputs) == 1


def test_on_a_terminal_each_step_is_a_line_and_ctrl_c_says_how_to_start_again(small: Small, tmp_path: Path) -> None:
    words = ["build", "--target", VARIANT, "--offline", "--no-cache"]
    command = [sys.executable, str(small.root / "tasks.py"), *words]
    environment = {**small.environment, "TMPDIR": str(tmp_path)}
    stopped, output = terminal.run(
        command, environment, awaited="RUN /opt/venv/bin", then=lambda process: os.killpg(process.pid, signal.SIGINT)
    )
    assert stopped == 130
    assert terminal.lines(output)[-1] == f"interrupted; to start again, run: {small.root}/inv {' '.join(words)}"
    assert small.leftovers() == list(tmp_path.iterdir()) == []

    code, output = terminal.run(command, environment, within=300)
    lines = terminal.lines(output)
    assert code == 0, output
    steps = [line.split()[0] for line in lines[:-2]]
    assert steps[:4] == ["foundation", "export", "build", "export"]
    assert steps[4:] in ([], ["load"])  # the engine may have every layer: its BuildKit wrote them
    assert max(map(len, lines)) <= 80
    docker.from_env().images.remove(f"drydock/{VARIANT}:latest")
    docker.from_env().images.remove(lines[-2])


def test_an_engine_that_is_absent_is_named(small: Small) -> None:
    result = small.invoke("build", "--target", VARIANT, DOCKER_HOST="unix:///nonexistent/docker.sock")

    assert result.returncode == EngineError.code
    assert "DOCKER_HOST=unix:///nonexistent/docker.sock" in result.stderr
    assert "Traceback" not in result.stderr


class FragileEngine:
    """The real engine behind a socket of its own that can be cut."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "engine.sock"
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            engine = socket.socket(socket.AF_UNIX)
            engine.connect("/var/run/docker.sock")
            self._open += [client, engine]
            for pair in ((client, engine), (engine, client)):
                threading.Thread(target=self._copy, args=pair, daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def cut(self) -> None:
        self._listener.close()
        for end in self._open:
            end.close()


def test_an_engine_that_dies_during_a_build_is_an_error_and_the_next_build_works(
    small: Small, undisturbed: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory(prefix="drydock-") as folder:  # a socket's path has at most 107 bytes
        engine = FragileEngine(Path(folder))
        process = small.start_build(DOCKER_HOST=f"unix://{engine.path}")
        assert any("layer.py install" in line for line in process.stderr or ())
        engine.cut()
        _, stderr = process.communicate(timeout=120)

    assert process.returncode in {EngineError.code, BuildError.code}, stderr[-2000:]
    assert "Traceback" not in stderr
    assert small.build()["digest"] == undisturbed["digest"]


@pytest.fixture
def tiny_disk(small: Small, tmp_path: Path) -> Iterator[Path]:
    """Return a cache folder of 16 MiB that shares store and bases."""
    with small_disk(tmp_path / "disk", "16m") as disk:
        for shared in ("store", "bases"):
            (disk / shared).symlink_to((small.cache / shared).resolve())
        yield disk


def test_a_full_disk_is_said_and_nothing_half_written_stays(small: Small, tiny_disk: Path) -> None:
    process = small.start_build(DRYDOCK_CACHE=str(tiny_disk))
    _, stderr = process.communicate(timeout=120)

    assert process.returncode == DiskFullError.code, stderr[-2000:]
    assert "no space left" in stderr
    assert "Traceback" not in stderr
    assert list((tiny_disk / "images").rglob("index.json")) == []


def test_an_edited_input_makes_another_image_and_the_difference_is_named(
    small: Small, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    other_layout = tmp_path / "other"
    shutil.copytree(undisturbed["layout"], other_layout)
    module = small.root / "entrypoints" / "core" / "errors.py"
    original = module.read_text()
    module.write_text(original.replace("OK = 0", "OK = 9"))
    try:
        changed = small.build(below=True)
        differences = compare_layouts(other_layout, Path(changed["layout"]))
    finally:
        module.write_text(original)
    files = {(difference.path, difference.field) for difference in differences}

    assert changed["digest"] != undisturbed["digest"]
    assert ("opt/drydock/entrypoints/core/errors.py", "content") in files


@pytest.mark.parametrize("name", ["Dockerfile", "lock.json"])
def test_a_planted_edit_is_refused(small: Small, name: str) -> None:
    file = small.root / "images" / VARIANT / name
    original = file.read_text()
    file.write_text(original.replace("0.32", "0.33", 1) if name != "lock.json" else original.replace("a", "b", 5))
    try:
        checks = [
            small.invoke("render", "--target", VARIANT, "--check"),
            small.invoke("lock", "--target", VARIANT, "--check"),
            small.invoke("build", "--target", VARIANT),
        ]
    finally:
        file.write_text(original)
    codes = [result.returncode for result in checks]

    assert codes[0] == codes[2] == StaleError.code, [result.stderr for result in checks]
    assert codes[1] == (StaleError.code if name == "lock.json" else 0)


def test_the_small_image_serves_as_the_real_one_does(small: Small) -> None:
    result = small.invoke("build", "--target", VARIANT, "--offline", "--json", "--builder", "default")
    assert result.returncode == 0, result.stderr[-2000:]
    client = docker.from_env()
    image = client.images.get(f"drydock/{VARIANT}:latest")
    try:
        output = run_to_end(image.id, ["version"])
        assert VARIANT.encode() in output
    finally:
        client.images.remove(image.id, force=True)
