"""Debian 12's own Docker engine (20.10, of 2023): which images it pulls and runs, and what it says of the others.

The same image, with the same content, is offered with layers compressed as gzip and as zstd. Docker reads zstd since
23.0 (https://docs.docker.com/engine/release-notes/23.0/).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.machines_ssh import Machine, Machines
from tests.support.pushed import push
from tests.support.servers import Registry

ENTRYPOINT_VERSION = ("version", "--json")


@pytest.fixture(scope="module")
def node(two: Machines) -> Machine:
    machine = two.nodes[0]
    assert machine.run("docker", "version", "--format", "{{.Server.Version}}").startswith("20.10.")
    return machine


def test_an_image_with_gzip_layers_is_pulled_and_runs(node: Machine, stand_in: Path, near: Registry) -> None:
    name = push(stand_in, near.host, "old-engine-gzip")
    node.run("docker", "pull", "--quiet", name)
    told = json.loads(node.run("docker", "run", "--rm", name, *ENTRYPOINT_VERSION))
    assert told["variant"] == "small-stand-in"


def test_an_image_with_zstd_layers_is_refused_with_words_that_docs_quote(
    node: Machine, stand_in: Path, near: Registry
) -> None:
    name = push(stand_in, near.host, "old-engine-zstd", "zstd")
    with pytest.raises(subprocess.CalledProcessError) as failure:
        node.run("docker", "pull", "--quiet", name)
    assert "archive/tar: invalid tar header" in failure.value.stderr


def test_an_archive_with_zstd_layers_is_refused_when_it_is_loaded(
    node: Machine, stand_in: Path, tmp_path: Path
) -> None:
    """`docker load` of an OCI layout: 20.10 knows docker-archive only."""
    archive = tmp_path / "image.tar"
    subprocess.run(["tar", "-C", str(stand_in), "-cf", str(archive), "."], check=True)
    subprocess.run(["docker", "cp", "--quiet", str(archive), f"{node.container}:/root/image.tar"], check=True)
    with pytest.raises(subprocess.CalledProcessError) as failure:
        node.run("docker", "load", "--input", "/root/image.tar")
    assert "manifest.json" in failure.value.stderr
