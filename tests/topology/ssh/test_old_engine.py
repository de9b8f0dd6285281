"""Debian 12's own Docker engine (20.10, of 2023): which images it pulls and runs, and what it says of the others.

The same image, with the same content, is offered with layers compressed as gzip and as zstd. Docker reads zstd since
23.0 (https://docs.docker.com/engine/release-notes/23.0/). An engine that has the layers already does not fetch them, so
each test has a machine without images.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from tests.support.machines_ssh import Machine, machines
from tests.support.pushed import AS_BUILT, push
from tests.support.servers import Registry
from tests.support.standins import PLATFORM, build_layouts


class Old(NamedTuple):
    """A machine with the old engine, and a registry that it reaches."""

    node: Machine
    host: str


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Old]:
    with (
        machines(tmp_path, "o0") as ssh_machines,
        Registry(tmp_path / "registry", address=ssh_machines.gateway) as near,
    ):
        (node,) = ssh_machines.nodes
        assert node.run("docker", "version", "--format", "{{.Server.Version}}").startswith("20.10.")
        yield Old(node, near.host)


def test_an_image_with_gzip_layers_is_pulled_and_runs(old: Old, stand_in: Path) -> None:
    name = push(stand_in, old.host, "stand-in")
    old.node.run("docker", "pull", "--quiet", name)
    version = json.loads(old.node.run("docker", "run", "--rm", name, "version", "--json"))
    assert version["variant"] == "small-stand-in"


def test_an_image_with_zstd_layers_is_refused_while_it_is_pulled(old: Old, stand_in: Path) -> None:
    name = push(stand_in, old.host, "stand-in", "zstd")
    with pytest.raises(subprocess.CalledProcessError) as failure:
        old.node.run("docker", "pull", "--quiet", name)
    expected = "failed to register layer: Error processing tar file(exit status 1): archive/tar: invalid tar header"
    assert expected in failure.value.stderr


def test_an_oci_layout_is_refused_when_it_is_loaded(old: Old, stand_in: Path, tmp_path: Path) -> None:
    """`docker load` of 20.10 knows docker save's archives only."""
    archive = tmp_path / "image.tar"
    subprocess.run(["tar", "-C", str(stand_in), "-cf", str(archive), "."], check=True)
    subprocess.run(["docker", "cp", "--quiet", str(archive), f"{old.node.container}:/root/image.tar"], check=True)
    with pytest.raises(subprocess.CalledProcessError) as failure:
        old.node.run("docker", "load", "--input", "/root/image.tar")
    assert "blobs/json: no such file or directory" in failure.value.stderr


DEFAULTS = [
    variant for variant in read_matrix(DRYDOCK) if variant.default and variant.serves and PLATFORM in variant.platforms
]


@pytest.fixture
def layouts(tmp_path: Path) -> dict[str, Path]:
    """A stand-in of each accelerator's default image, as an OCI layout with the compression of its row."""
    return build_layouts(tmp_path, DEFAULTS)


def test_each_accelerators_image_is_pulled_or_refused_as_its_row_says(old: Old, layouts: dict[str, Path]) -> None:
    pulled, refused = {}, []
    for variant in DEFAULTS:
        name = push(layouts[variant.id], old.host, variant.id, AS_BUILT)
        try:
            old.node.run("docker", "pull", "--quiet", name)
            version = json.loads(old.node.run("docker", "run", "--rm", name, "version", "--json"))
            pulled[variant.id] = version["variant"] == variant.id
        except subprocess.CalledProcessError as error:
            refused.append(error.stderr)
            pulled[variant.id] = False
    assert pulled == {variant.id: variant.compression.oldest.docker == "20.10" for variant in DEFAULTS}
    assert any(pulled.values())
    assert [text for text in refused if "failed to register layer" not in text] == []
