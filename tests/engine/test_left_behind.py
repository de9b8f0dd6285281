"""What is removed from the engine: an image that lost its name to a newer one, and all that a killed benchmark made."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException

from bench import cleanup_guard
from drydock.build import build, engine_images
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.engine import image_loading
from drydock.engine.connection import inspect_images
from drydock.run import engine

REPOSITORY = "drydock/left-behind"


def imported(tag: str) -> str:
    """Put an image with one file and drydock's label into the engine; return its id."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(tag))
    change = f"LABEL {image_loading.LABEL}=left-behind"
    command = ["docker", "import", "--change", change, "--change", 'CMD ["/none"]', "-", f"{REPOSITORY}:{tag}"]
    subprocess.run(command, input=content.getvalue(), check=True, capture_output=True)
    return str(docker.from_env().images.get(f"{REPOSITORY}:{tag}").id)


@pytest.fixture
def images() -> Iterator[docker.models.images.ImageCollection]:
    with contextlib.closing(docker.from_env()) as client:
        yield client.images
        for image in inspect_images(client, label=f"{image_loading.LABEL}=left-behind", intermediate=True):
            client.images.remove(image["Id"], force=True)


def ids(images: docker.models.images.ImageCollection) -> set[str]:
    return {image["Id"] for image in inspect_images(images.client, label=f"{image_loading.LABEL}=left-behind")}


def built_in(checkout: Path, tag: str) -> str:
    """Note an image as a checkout's newest build; return its id."""
    image_id = imported(tag)
    build.settle_checkout(checkout, f"{REPOSITORY}:{tag}", "linux/amd64", {}, in_engine=True)
    return image_id


def test_a_build_removes_its_checkouts_older_image_but_not_one_that_is_used_or_has_another_name(
    images: docker.models.images.ImageCollection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    old = built_in(tmp_path, "old")
    named_image = built_in(tmp_path, "named")
    assert (old in ids(images), images.get(f"{REPOSITORY}:latest").id) == (False, named_image)
    images.get(named_image).tag("someone/else", "1")
    used_image = built_in(tmp_path, "used")
    assert images.get(named_image).tags == ["someone/else:1"]
    container = images.client.containers.create(used_image)
    try:
        new = built_in(tmp_path, "new")
        assert ids(images) == {used_image, named_image, new}
    finally:
        container.remove()
    build.settle_checkout(tmp_path, f"{REPOSITORY}:new", "linux/amd64", {}, in_engine=True)
    assert ids(images) == {named_image, new}


def test_two_checkouts_run_their_own_image_whatever_latest_names(
    images: docker.models.images.ImageCollection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = built_in(tmp_path / "one", "a"), built_in(tmp_path / "two", "b")
    assert ids(images) == {one, two}
    assert images.get(f"{REPOSITORY}:latest").id == two
    for name, image in (("one", one), ("two", two)):
        here = engine.Here(Project(tmp_path / name))
        own_image = here.image(here.find_own_image(REPOSITORY))
        assert own_image
        assert own_image.digest == image
    assert [set(item.checkouts) for item in engine_images.list_engine_images(DRYDOCK) if item.row == "left-behind"] == [
        {str(tmp_path / "one")},
        {str(tmp_path / "two")},
    ]
    shutil.rmtree(tmp_path / "one")
    (unkept,) = engine_images.list_unkept_images(
        [item for item in engine_images.list_engine_images(DRYDOCK) if item.row == "left-behind"]
    )
    engine_images.remove_images([unkept])
    assert ids(images) == {two}


BENCH = """
import sys, time
import docker
from bench import cleanup_guard, compared_images
with cleanup_guard.guard_run():
    client = docker.from_env()
    volume = client.volumes.create(f"drydock-bench-{cleanup_guard.run_id()}")
    name, _, tag = compared_images.name_image("1").rpartition(":")
    client.images.get(sys.argv[1]).tag(name, tag)
    client.containers.run(sys.argv[1], ["sleep", "99"], detach=True, labels=dict(cleanup_guard.make_run_labels()),
                          volumes={volume.name: {"bind": "/cache", "mode": "rw"}})
    print(cleanup_guard.run_id(), flush=True)
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
        containers = client.containers.list(
            all=True, ignore_removed=True, filters={"label": f"{cleanup_guard.LABEL}={run}"}
        )
        volumes = client.volumes.list(filters={"name": run})
        tags = [tag for image in inspect_images(client, "drydock-bench/*") for tag in image["RepoTags"] if run in tag]
        return [*(str(container.id) for container in containers), *(volume.name for volume in volumes), *tags]
    return ["the engine does not answer"]
