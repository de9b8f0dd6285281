"""Machines as containers, and an image that their engines can pull."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drydock.build.build_job import prepare_job
from drydock.config.project_choice import DRYDOCK
from tests.support.machines_ssh import Machines, machines
from tests.support.pushed import push
from tests.support.servers import Registry
from tests.support.small_image import Small


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layout of an image with drydock's entrypoint and a stand-in for vLLM, made as every image is."""
    small = Small(tmp_path_factory.mktemp("small"), prepare_job(DRYDOCK, "cpu").lock)
    return Path(small.build()["layout"])


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Two machines, n0 and n1."""
    with machines(tmp_path_factory.mktemp("machines"), "n0", "n1") as ssh_machines:
        yield ssh_machines


@pytest.fixture(scope="session")
def near(tmp_path_factory: pytest.TempPathFactory, two: Machines) -> Iterator[Registry]:
    """A registry that the machines reach."""
    with Registry(tmp_path_factory.mktemp("near"), address=two.gateway) as near_registry:
        yield near_registry


@pytest.fixture(scope="session")
def image(stand_in: Path, near: Registry) -> str:
    """The stand-in image by digest, compressed as Docker 20.10 needs it."""
    return push(stand_in, near.host, "stand-in")
