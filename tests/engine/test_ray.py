"""One server on three containers by Ray, as on Gaudi and TPU: it answers, and if one host ends, all do. On demand.

No device with which vLLM uses Ray is here, so the CPU image gets what it lacks: Ray's locked wheel, Gaudi's thresholds
for several hosts, and a platform plug-in for vLLM, which has no Ray for CPUs. Each container has one slot of the
resource HPU. Everything is mounted; the image stays as it is.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from docker.constants import DEFAULT_DOCKER_API_VERSION
from docker.models.containers import Container
from docker.types import EndpointConfig, IPAMConfig, IPAMPool
from testcontainers.core.network import Network

from drydock.build import build
from drydock.core.paths import ROOT
from drydock.inputs import fetch
from drydock.inputs.store import default_store
from drydock.lock import lockfile
from drydock.prove import demo, demo_topology
from entrypoints.core import errors
from tests.support.hosts import expect
from tests.support.started_containers import start_container

pytestmark = pytest.mark.packages

SITE = "/opt/venv/lib/python3.11/site-packages"
HOSTS = 3
"""SmolLM2 has 9 heads and 3 KV heads."""
PLATFORM = """
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.platforms.cpu import CpuPlatform


def plugin():
    return "ray_on_cpu.Platform"


class Platform(CpuPlatform):
    ray_device_key = "HPU"

    @classmethod
    def get_device_communicator_cls(cls):
        return "ray_on_cpu.Communicator"


class Communicator(CpuCommunicator):
    def _all_group_ranks_share_shm_group_name(self):
        return False  # Ray's workers have one name on all hosts, which vLLM takes for one host's shared memory
"""
KILL = """
import os
for name in filter(str.isdigit, os.listdir('/proc')):
    if open(f'/proc/{name}/cmdline').read().startswith('ray::RayWorkerProc'):
        os.kill(int(name), 9)
        print('killed')
"""


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory, built: build.Built, model: Path) -> list[tuple[Path, str]]:
    """The volumes of each container: the model, Ray, the plug-in and the changed profile."""
    folder = tmp_path_factory.mktemp("ray")
    site = folder / "site"
    for wheel in _wheels("ray", "msgpack"):
        with zipfile.ZipFile(default_store().path(wheel)) as archive:
            archive.extractall(site)
    for path in site.rglob("*"):
        if path.suffix in (".sh", "") and path.is_file():
            path.chmod(0o755)  # the raylet and Ray's other programs
    (site / "ray_on_cpu.py").write_text(PLATFORM)
    dist_info = site / "ray_on_cpu-1.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text("Metadata-Version: 2.1\nName: ray-on-cpu\nVersion: 1\n")
    (dist_info / "entry_points.txt").write_text("[vllm.platform_plugins]\nray_on_cpu = ray_on_cpu:plugin\n")
    profile, gaudi = (expect.profile_in(variant) for variant in (built.variant, "habana1.24-plugin0.26"))
    for name in ("hosts_ways", "hosts_environment"):
        profile["thresholds"][name] = gaudi["thresholds"][name]
    (folder / "profile.json").write_text(json.dumps(profile))
    targets = {site / path.name: f"{SITE}/{path.name}" for path in site.iterdir()}
    targets |= {folder / "profile.json": "/opt/drydock/profile.json", model: "/models/smollm2"}
    return [*targets.items()]


def _wheels(*names: str) -> list[str]:
    """Fetch wheels that a row with Python 3.11 locks; return their SHA-256."""
    lock = lockfile.read_lock(ROOT / "images" / "tpu-vllm0.21" / "lock.json")
    layers = lock.platforms["linux/amd64"].layers.values()
    wheels = [wheel for layer in layers for wheel in layer if wheel.name in names]
    assert len(wheels) == len(names)
    fetch.fetch_native_wheels(wheels, offline=False)
    return [wheel.sha256 for wheel in wheels]


@contextmanager
def serving(image: str, volumes: list[tuple[Path, str]]) -> Iterator[list[Container]]:
    """Start one server on three containers and wait until each is ready; remove all at the end."""
    subnet = demo_topology.free_subnet()
    pool = IPAMConfig(pool_configs=[IPAMPool(subnet=str(subnet))])
    with Network(docker_network_kw={"ipam": pool}) as network, ExitStack() as stack:
        hosts = [_start(image, volumes, rank, network, subnet) for rank in range(HOSTS)]
        containers = [stack.enter_context(host) for host in hosts]
        for container in containers:
            demo.wait_until_ready(container)
        yield containers


def _start(
    image: str, volumes: list[tuple[Path, str]], rank: int, network: Network, subnet: IPv4Network
) -> AbstractContextManager[Container]:
    addresses = [str(subnet[2 + number]) for number in range(HOSTS)]
    words = [
        "serve", "--model", "/models/smollm2", "--nnodes", str(HOSTS), "--node-rank", str(rank),
        "--master-addr", addresses[0], "--distributed-executor-backend", "ray", "--max-model-len", "1024",
        "--kv-cache-memory-bytes", str(256 << 20),
        "--vllm-accepts", "ray",  # it is mounted, and not in the image's list of packages
    ]  # fmt: skip
    slot = json.dumps({"HPU": 1, "CPU": 2})
    return start_container(
        image,
        *words,
        volumes=volumes,
        shm_size="1g",
        network=network,
        networking_config={network.name: EndpointConfig(DEFAULT_DOCKER_API_VERSION, ipv4_address=addresses[rank])},
        env={"RAY_OVERRIDE_RESOURCES": slot, "VLLM_CPU_OMP_THREADS_BIND": "0"},
        ports={demo.API_PORT: ("127.0.0.1", None), demo.STATUS_PORT: ("127.0.0.1", None)},
    )


def ended(containers: list[Container]) -> list[int]:
    """Return the exit codes of all; each must end soon."""
    return [container.wait(timeout=120)["StatusCode"] for container in containers]


def last_line(container: Container) -> str:
    text: bytes = container.logs()
    return text.decode(errors="replace").rstrip().splitlines()[-1]


def test_a_server_of_three_hosts_answers_and_ends_when_a_worker_is_killed(
    built: build.Built, mounted: list[tuple[Path, str]]
) -> None:
    with serving(built.image, mounted) as containers:
        assert demo.EXPECTED in demo.ask_chat_question(containers[0], demo.QUESTION)
        group: dict[str, Any] = json.loads(
            demo.fetch_status(demo.find_port_url(containers[0], demo.STATUS_PORT, "/group"))[1]
        )
        assert [(rank["rank"], rank["phase"]) for rank in group["ranks"]] == [(1, "ready"), (2, "ready")]

        code, output = containers[2].exec_run(["/usr/bin/python3", "-I", "-S", "-c", KILL])
        assert (code, output) == (0, b"killed\n")

        assert ended(containers) == [errors.DIED, errors.GROUP_ENDED, errors.GROUP_ENDED]
        assert "VLLM::EngineCore" in last_line(containers[0])
        assert all("rank 0 (" in last_line(container) for container in containers[1:])


def test_a_host_of_workers_that_is_stopped_ends_at_once_and_with_it_the_server(
    built: build.Built, mounted: list[tuple[Path, str]]
) -> None:
    with serving(built.image, mounted) as containers:
        containers[2].stop(timeout=100)

        assert ended(containers) == [errors.GROUP_ENDED, errors.GROUP_ENDED, errors.OK], last_line(containers[2])
        assert "rank 2 (" in last_line(containers[0])
