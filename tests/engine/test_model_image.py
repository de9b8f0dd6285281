"""A model from a registry, by digest: the engine mounts it, and refuses a byte that was changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import docker as engine_client
import docker.errors
import pytest

from drydock.build import build
from drydock.build.build_job import Job
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import UntrustedError
from drydock.engine import daemon
from drydock.engine.connection import inspect_images
from drydock.prove import demo, prove
from drydock.publish import model_push
from drydock.run.container import Container, RunRequest
from drydock.run.engine import Here
from drydock.run.needed_image import require_image
from drydock.verbs.model_push_verb import ModelPushOptions, push_folder
from tests.support.model_folder import write
from tests.support.servers import Registry

CACHE = f"drydock-test-model-{os.getpid()}"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    """A registry of the loopback address; what the engine pulled from it is removed, and so is the test's volume."""
    with Registry(tmp_path / "registry") as server:
        yield server
    client = engine_client.from_env()
    digests = {name for image in inspect_images(client) for name in image["RepoDigests"]}
    for name in (name for name in digests if server.host in name):
        client.images.remove(name)
    try:
        client.volumes.get(CACHE).remove()
    except docker.errors.NotFound:
        return


def wanted(job: Job, built: build.Built, folder: Path, registry: Registry) -> Container:
    """Push a model, and return the container that `run --model oci://…` starts."""
    pushed = push_folder(ModelPushOptions(folder=str(folder), name=f"{registry.host}/own/smollm2"))
    return prove.what_to_start(job, built, RunRequest(model=pushed.model, cache=CACHE), Here(DRYDOCK))


def test_a_model_is_served_by_digest(job: Job, built: build.Built, model: Path, registry: Registry) -> None:
    model_image = require_image(wanted(job, built, model, registry), "cpu", Here(DRYDOCK))
    with prove.run_proof_container(model_image) as running:
        demo.wait_until_ready(running)
        assert demo.EXPECTED in demo.ask_chat_question(running, demo.QUESTION, model=prove.SERVED)
        code, listed = running.exec_run(["sh", "-c", "touch /models/smollm2/x; ls /models/smollm2"])
    assert code == 0
    assert b"Read-only file system" in listed
    assert b"drydock-model.json\n" in listed


def test_a_changed_byte_of_the_weights_is_an_error_before_anything_starts(
    job: Job, built: build.Built, tmp_path: Path, registry: Registry
) -> None:
    folder = write(tmp_path / "m")
    container = wanted(job, built, folder, registry)
    blob = registry.blob_file([*model_push.layers_of(folder)[1]][-1])
    blob.write_bytes(blob.read_bytes().replace(b"bbbb", b"bbbB", 1))
    with pytest.raises(UntrustedError, match="the registry sent other bytes than the digest names"):
        require_image(container, "cpu", Here(DRYDOCK))
    assert not daemon.run_docker(["docker", "ps", "--all", "--quiet", "--filter", f"name={container.name}"])
