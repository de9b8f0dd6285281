"""Leaves nothing of a benchmark behind, however it ends: also after kill -9. IO.

`python -m bench.cleanup_guard` is a process of its own, which waits until the benchmark has ended and then ends what it
started, by an environment variable that every process inherits, and removes what it made, by a label and a folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from drydock.core.paths import ROOT, cache_home

VARIABLE = "DRYDOCK_BENCH"
"""Environment variable: the id of the run. Containers, images and volumes have it as a label or in their names."""
LABEL = "io.drydock.bench.run"
STOPS_WITHIN = 5
"""Seconds between SIGTERM and SIGKILL."""


def run_id() -> str:
    """Return the id of the benchmark that runs."""
    return os.environ.get(VARIABLE, "none")


def make_run_labels() -> Mapping[str, str]:
    """Return the label of what the engine keeps for the benchmark that runs."""
    return {LABEL: run_id()}


def make_bench_folder() -> Path:
    """Return the folder for a benchmark's temporary files: in drydock's cache, because /tmp may be in memory."""
    path = _run_folder(run_id()) if VARIABLE in os.environ else cache_home()
    path.mkdir(parents=True, exist_ok=True)
    return path


def _run_folder(run: str) -> Path:
    return cache_home() / f"bench-{run}"


@contextlib.contextmanager
def guard_run() -> Iterator[None]:
    """Remove what the block started and made, even if this process is killed. Temporary files go into one folder."""
    run = f"{os.getpid()}-{time.time_ns():x}"
    command = [sys.executable, "-m", "bench.cleanup_guard", run]
    # Its standard input ends when this process does. Ctrl-C reaches the processes of a session: it has its own.
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True) as guard:
        environment, tempfile.tempdir = dict(os.environ), None
        try:
            os.environ[VARIABLE] = run
            os.environ["TMPDIR"] = str(make_bench_folder())
            yield
        finally:
            guard.communicate()
            tempfile.tempdir = None
            os.environ.clear()
            os.environ.update(environment)


def main(run: str) -> None:
    """Wait until standard input ends, then leave nothing of a run."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    stop_processes(run)
    clean_engine(run)
    shutil.rmtree(_run_folder(run), ignore_errors=True)


def stop_processes(run: str) -> None:
    """End all processes of a run."""
    end = time.monotonic() + STOPS_WITHIN
    while processes := _find_processes(run):
        number = signal.SIGTERM if time.monotonic() < end else signal.SIGKILL
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        time.sleep(0.2)


def _find_processes(run: str) -> list[int]:
    assignment = f"{VARIABLE}={run}".encode()
    return [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if assignment in _read_environment(folder).split(b"\0")
    ]


def _read_environment(folder: Path) -> bytes:
    try:
        return (folder / "environ").read_bytes()
    except OSError:  # it has ended, or is another user's
        return b""


def clean_engine(run: str) -> None:
    """Remove the containers, images and volumes of a run, if an engine answers."""
    import docker  # noqa: PLC0415 - slow, and the guard starts with each benchmark
    from docker.errors import DockerException  # noqa: PLC0415 - as above

    from drydock.engine.connection import inspect_images  # noqa: PLC0415 - as above

    of_run: dict[str, str | list[str] | bool] = {"label": f"{LABEL}={run}"}
    with contextlib.suppress(DockerException), contextlib.closing(docker.from_env()) as client:
        for container in client.containers.list(all=True, ignore_removed=True, filters=of_run):
            container.remove(force=True, v=True)
        for volume in client.volumes.list(filters={"name": run}):
            volume.remove(force=True)
        names = [tag for image in inspect_images(client, "drydock-bench/*") for tag in image["RepoTags"] if run in tag]
        labelled_images = inspect_images(client, label=f"{LABEL}={run}", intermediate=True)
        for name in (*names, *(image["Id"] for image in labelled_images)):
            with contextlib.suppress(DockerException):
                client.images.remove(name, force=True)


if __name__ == "__main__":
    main(sys.argv[1])
