"""Two prefill servers, a decode server and their router: real ones, on networks of one engine, and what clients see."""

from __future__ import annotations

import os
import platform
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drydock.build import build
from drydock.build.build_job import prepare_job
from drydock.config.project_choice import DRYDOCK
from drydock.core.files import write_atomically
from drydock.core.paths import ROOT
from drydock.prove import demo_topology
from drydock.topology import up
from tests.support.running_topology import (
    Clients,
    Cluster,
    Note,
    planned,
    small_disk,
    started,
)

TABLE = ROOT / "build" / "topology-faults.md"


@pytest.fixture(scope="session")
def images() -> tuple[str, str]:
    """The images of servers and router."""
    return build.build_image(prepare_job(DRYDOCK, "cpu")).image, build.build_image(prepare_job(DRYDOCK, "router")).image


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, images: tuple[str, str]) -> Path:
    """A folder with a recorded host."""
    topology_folder = tmp_path_factory.mktemp("topology")
    demo_topology.record_demo_host(topology_folder, images[0])
    return topology_folder


@pytest.fixture(scope="module")
def cluster(folder: Path, images: tuple[str, str]) -> Iterator[Cluster]:
    """Give 2P1D, ready."""
    file = planned(folder, images, "2p1d", f"faults-{secrets.token_hex(3)}")
    small_disk(f"drydock-{up.name_topology(file)}", "cache.n1")
    with started(file, folder / "running") as running_cluster:
        yield running_cluster


@pytest.fixture(scope="module")
def answers(cluster: Cluster) -> dict[str, str]:
    """What each prompt is answered while nothing is wrong."""
    return cluster.answers()


@pytest.fixture
def clients(cluster: Cluster, answers: dict[str, str]) -> Iterator[Clients]:
    """Clients that ask while a test breaks something; everything is ready before."""
    cluster.heal()
    with Clients(cluster.ask, cluster.router, answers) as topology_clients:
        topology_clients.until_good(2)
        yield topology_clients


@pytest.fixture(scope="session")
def note() -> Iterator[Note]:
    """Take rows of the table: the fault, what clients saw, and how it healed."""
    rows: list[tuple[str, str, str]] = []
    yield lambda fault, saw, healed: rows.append((fault, saw, healed))
    head = f"{platform.machine()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d', time.gmtime())}"
    lines = [f"<!-- {head} -->", "| fault | what clients saw | healed after |", "| --- | --- | --- |"]
    TABLE.parent.mkdir(exist_ok=True)
    write_atomically(TABLE, "".join(f"{line}\n" for line in (*lines, *(f"| {' | '.join(row)} |" for row in rows))))
