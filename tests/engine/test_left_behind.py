"""What is removed from the engine: an image that lost its name to a newer one, and all that a killed benchmark made."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator

import docker
import pytest
from docker.errors import DockerException

from bench import guard
from drydock.build import build
from drydock.core.paths import ROOT
from drydock.engine import loading

REPOSITORY = "drydock/left-behind"


def imported(tag: str) -> str:
    """Put an image with one file and drydock's label into the engine; return its id."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(tag))
    change = f"LABEL {loading.LABEL}=left-behind"
    command = ["docker", "import", "--change", change, "--change", 'CMD ["/none"]', "-", f"{REPOSITORY}:{tag}"]
    subprocess.run(command, input=content.getvalue(), check=True, capture_output=True)
    return str(docker.from_env().images.get(f"{REPOSITORY}:{tag}").id)


@pytest.fixture
def images() -> Iterator[docker.models.images.ImageCollection]:
    with contextlib.closing(docker.from_env()) as client:
        yield client.images
        for image in client.images.list(all=True, filters={"label": f"{loading.LABEL}=left-behind"}):
            client.images.remove(str(image.id), force=True)


def ids(images: docker.models.images.ImageCollection) -> set[str]:
    return {str(image.id) for image in images.list(filters={"label": f"{loading.LABEL}=left-behind"})}


def test_an_image_whose_only_name_was_latest_is_removed(images: docker.models.images.ImageCollection) -> None:
    imported("old")
    loading.supersede(f"{REPOSITORY}:old")
    images.remove(f"{REPOSITORY}:old")
    new = imported("new")
    loading.supersede(f"{REPOSITORY}:new")

    assert ids(images) == {new}


def test_an_image_with_another_name_and_one_that_a_container_uses_stay(
    images: docker.models.images.ImageCollection,
) -> None:
    used, named = imported("used"), imported("named")
    images.get(named).tag("someone/else", "1")
    container = images.client.containers.create(used)
    try:
        new = imported("new")
        loading.supersede(f"{REPOSITORY}:new")
        assert ids(images) == {used, named, new}
        assert images.get(named).tags == ["someone/else:1"]
    finally:
        container.remove()
    loading.supersede(f"{REPOSITORY}:new")
    assert ids(images) == {named, new}


BENCH = """
import sys, time
import docker
from bench import guard, images
with guard.guarded():
    client = docker.from_env()
    volume = client.volumes.create(f"drydock-bench-{guard.run_id()}")
    client.images.get(sys.argv[1]).tag(images.named("1").rpartition(":")[0], images.named("1").rpartition(":")[2])
    client.containers.run(sys.argv[1], ["sleep", "99"], detach=True, labels=dict(guard.labels()),
                          volumes={volume.name: {"bind": "/cache", "mode": "rw"}})
    print(guard.run_id(), flush=True)
    time.sleep(99)
"""


def test_a_killed_benchmark_leaves_nothing_in_the_engine(built: build.Built) -> None:
    command = [sys.executable, "-c", BENCH, built.image]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        run = process.stdout.readline().strip()
        assert len(left(run)) == 3
        process.send_signal(signal.SIGKILL)
    end = time.monotonic() + 30
    while left(run) and time.monotonic() < end:
        time.sleep(0.2)

    assert left(run) == []
    with contextlib.closing(docker.from_env()) as client:
        assert client.images.get(built.image).id


def left(run: str) -> list[str]:
    """Return what the engine has of a benchmark."""
    with contextlib.closing(docker.from_env()) as client, contextlib.suppress(DockerException):
        containers = client.containers.list(all=True, filters={"label": f"{guard.LABEL}={run}"})
        volumes = client.volumes.list(filters={"name": run})
        tags = [tag for image in client.images.list(name="drydock-bench/*") for tag in image.tags if run in tag]
        return [*(str(each.id) for each in containers), *(volume.name for volume in volumes), *tags]
    return ["the engine does not answer"]
