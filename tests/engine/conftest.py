"""A real engine, the real CPU image and a real model, made once for all tests that need them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from docker.models.containers import Container

from drydock.build import build
from drydock.build.build_job import Job, prepare_job
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.prove import demo, smollm2
from tests.support import caches
from tests.support.servers import Registry

HOSTS = ROOT / "tests" / "hosts"


@pytest.fixture(scope="session")
def job() -> Job:
    """The CPU variant, as committed."""
    return prepare_job(DRYDOCK, "cpu")


@pytest.fixture(scope="session")
def built(job: Job) -> build.Built:
    """The CPU image, in the engine."""
    return build.build_image(job)


@pytest.fixture(scope="session")
def model(built: build.Built) -> Path:
    """SmolLM2-135M-Instruct as safetensors."""
    return smollm2.make_small_model(built.image)


@pytest.fixture(scope="session")
def warm(built: build.Built, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that `warm` filled; tests work on copies of it."""
    cache = tmp_path_factory.mktemp("warm")
    cache.chmod(0o770)
    caches.run(built, cache, "warm", "--model", "/models/smollm2", "--served-model-name", "smollm2", model=model)
    return cache


@pytest.fixture(scope="session")
def server(built: build.Built, model: Path) -> Iterator[Container]:
    """A container that serves the model without a key, under one more name; ready. Tests only ask it."""
    with demo.run_model_server(built.image, model, environment={"DRYDOCK_ALLOWED_HOSTS": "LLM.example"}) as container:
        demo.wait_until_ready(container)
        yield container


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    """An empty registry of the loopback address."""
    with Registry(tmp_path / "registry") as server:
        yield server
