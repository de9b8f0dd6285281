"""A real Kubernetes of two nodes, and images and a model on them, made once for all tests of this folder."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from drydock.build import build
from drydock.build.build_job import prepare_job
from drydock.config.project_choice import DRYDOCK
from drydock.prove import smollm2
from tests.support.kubernetes import cluster_images
from tests.support.kubernetes.cluster import Cluster, lacking, running
from tests.support.kubernetes.cluster_node import SYSCTLS
from tests.support.kubernetes.space import Space, default_class
from tests.support.small_image import Small
from tests.support.topology_files import SMOLLM2, write_model

KERNEL = (*SYSCTLS, "net/ipv4/ip_forward", "net/netfilter/nf_conntrack_max")
FOLDERS = ("/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/var/log/containers", "/opt/cni", "/opt/containerd")
"""Where Kubernetes and containerd write unless they are told otherwise."""


def footprint() -> dict[str, str]:
    """Return what a Kubernetes on this machine would change: kernel settings, folders, interfaces, rules."""
    rules = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    settings = {name: path.read_text() for name in KERNEL if (path := Path("/proc/sys") / name).exists()}
    folders = {name: str(sorted(Path(name).glob("*"))) for name in FOLDERS if Path(name).exists()}
    ours = [line for line in rules.splitlines() if "KUBE-" in line or "10.244." in line]
    return {**settings, **folders, "interfaces": str(Path("/sys/class/net/cni0").exists()), "rules": "\n".join(ours)}


class World(NamedTuple):
    """The cluster and what its pods run."""

    cluster: Cluster
    image: str
    """Reference of the CPU variant's image, whose vLLM is the tests' stand-in: all else in it is as published."""
    newer: str
    """Another image, of another digest."""
    model: Path
    """Folder on every node."""
    before: dict[str, str]
    """The machine's footprint before the cluster started."""


class Real(NamedTuple):
    """The real images on both nodes, and the model."""

    server: str
    router: str
    model: Path


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A cluster with images of the small stand-in."""
    missing = lacking()
    assert not missing, f"a test cluster needs {', '.join(missing)}"
    folder = tmp_path_factory.mktemp("cluster")
    layout = Path(Small(folder / "small", prepare_job(DRYDOCK, "cpu").lock).build()["layout"])
    image, newer = cluster_images.serving(layout), cluster_images.serving(layout, Labels={"newer": "yes"})
    cluster_images.write_archive(folder / "images.tar", layout, image, newer, cluster_images.sandbox(layout))
    model = write_model(folder / "smollm2", SMOLLM2)
    home = folder / "kubernetes"
    home.mkdir()
    before = footprint()
    try:
        with running(home, folder / "images.tar") as cluster:
            cluster.kubectl("apply", "--filename=-", given=json.dumps(default_class()))
            yield World(cluster, image.reference, newer.reference, model, before)
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def real(world: World, tmp_path_factory: pytest.TempPathFactory) -> Real:
    """The images of this checkout, built if they are not, on both nodes."""
    builds = {name: build.build_image(prepare_job(DRYDOCK, name)) for name in ("cpu", "router")}
    archive = tmp_path_factory.mktemp("images") / "image.tar"
    references = {}
    for name, built in builds.items():
        layout = Path(built.layout)
        image = cluster_images.own(layout)
        cluster_images.write_archive(archive, layout, image)
        for node in world.cluster.nodes:
            world.cluster.load(node, archive)
        references[name] = image.reference
    archive.unlink()
    model = tmp_path_factory.mktemp("models") / "smollm2"
    shutil.copytree(smollm2.make_small_model(builds["cpu"].image), model)  # a container's user cannot enter /root
    return Real(references["cpu"], references["router"], model)


@pytest.fixture(scope="module")
def space(world: World, request: pytest.FixtureRequest) -> Iterator[Space]:
    """A namespace for a module; its pods end while the next module runs."""
    module_space = Space(world.cluster, request.module.__name__.rpartition("test_")[2].replace("_", "-"))
    yield module_space
    world.cluster.kubectl("delete", "namespace", module_space.name, "--wait=false")


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what makes an empty folder for a volume."""
    return tmp_path_factory.mktemp
