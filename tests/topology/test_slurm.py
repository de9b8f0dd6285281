"""A rendered script that Slurm really runs: three nodes of one host, and a container of Podman on each."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from drydock.build import build, standins
from drydock.config.project import DRYDOCK
from drydock.topology.plan_model import Rank, Replica, TopologyPlan
from drydock.topology.render import slurm, write_plan
from tests.support.ports import free_port
from tests.support.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "podman", "runc")
ABSENT = [program for program in PROGRAMS if not shutil.which(program)]
pytestmark = pytest.mark.skipif(bool(ABSENT), reason=f"no {', '.join(ABSENT)}: apt-get install podman runc slurm-wlm")
NODES = ("n0", "n1", "n2")
PROGRAM = (
    "import os, signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0));"
    " print(sys.argv[1:], os.environ['OWN'].encode(), len(os.environ['VLLM_API_KEY']), os.getuid(), flush=True);"
    " signal.pause()"
)
ARGUMENT = "a 'b' $X"
HOSTILE = "\nNODE\n$(id) 'x'"
CONFIGURATION = """
ClusterName=drydock
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
{nodes}
PartitionName=all Nodes={names} Default=YES State=UP
"""
CONTAINERS = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
"""
"""Limits that root has without CAP_SYS_RESOURCE, and what runs on cgroups of version 1 and 2."""
STORAGE = """
[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start Slurm with three nodes and a Podman of its own; return the environment of its clients."""
    folder = tmp_path_factory.mktemp("slurm")
    ports, host = [free_port() for _ in range(1 + len(NODES))], socket.gethostname()
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 RealMemory=100"
        for node, port in zip(NODES, ports[1:], strict=True)
    )
    texts = {
        "slurm.conf": CONFIGURATION.format(host=host, folder=folder, ports=ports, nodes=nodes, names=",".join(NODES)),
        "containers.conf": CONTAINERS,
        "storage.conf": STORAGE.format(folder=folder),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    (folder / "state").mkdir()
    own = {"SLURM_CONF": "slurm.conf", "CONTAINERS_CONF": "containers.conf", "CONTAINERS_STORAGE_CONF": "storage.conf"}
    env = {**os.environ, **{name: str(folder / file) for name, file in own.items()}}
    files = [f"--{name}={folder}/munge.{name}" for name in ("socket", "log-file", "pid-file", "seed-file")]
    commands = [("munged", "--force", "--foreground", f"--key-file={folder}/munge.key", *files), ("slurmctld", "-D")]
    commands += [("slurmd", "-D", "-N", node) for node in NODES]
    running = [subprocess.Popen(command, env=env) for command in commands]
    try:
        idle = ("sinfo", "--noheader", "--states=idle", "--format=%D")
        wait_until(lambda: said(env, *idle) == str(len(NODES)), "idle nodes")
        yield env
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(60)
        said(env, "podman", "rm", "--force", "--all")
        said(env, "podman", "rmi", "--force", "--all")


@pytest.fixture(scope="module")
def image(cluster: Mapping[str, str]) -> str:
    """Load a stand-in, whose entrypoint is the real one, into Podman."""
    name = build.build(standins.stand_in(DRYDOCK, "cpu")).image
    with subprocess.Popen(("docker", "save", name), stdout=subprocess.PIPE) as saved:
        subprocess.run(("podman", "load", "--quiet"), stdin=saved.stdout, env=cluster, check=True)
    return name


def said(env: Mapping[str, str], *command: str) -> str:
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout.strip()


def address() -> str:
    """Return an address of this machine that is not loopback, which a plan refuses; nothing connects to it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("10.255.255.255", 1))
        return str(sock.getsockname()[0])


def planned(image: str) -> TopologyPlan:
    """Return one server of three nodes, in place of which a program prints what it got."""
    ranks = tuple(
        Rank(
            node=node,
            address=address(),
            rank=number,
            argv=("vllm",),
            words=("/usr/bin/python3", "-c", PROGRAM, f"{number}", ARGUMENT),
            env={"OWN": HOSTILE},
            ports={"api": free_port(), "status": free_port()},
        )
        for number, node in enumerate(NODES)
    )
    replica = Replica(group="whole", role="serve", number=0, ranks=ranks)
    return TopologyPlan(
        model="org/m", image=image, accelerator="cpu", variant="cpu-vllm0.32", api_key="required", replicas=(replica,)
    )


def test_each_node_runs_its_rank_and_the_end_of_one_ends_the_job(
    cluster: Mapping[str, str], image: str, tmp_path: Path
) -> None:
    write_plan(DRYDOCK, planned(image), "slurm", tmp_path, {})
    log = tmp_path / "log"
    command = ("sbatch", "--wait", f"--output={log}", slurm.SCRIPT)
    with subprocess.Popen(command, cwd=tmp_path, env=cluster, stdout=subprocess.DEVNULL) as job:
        wait_until(lambda: log.is_file() and log.read_text().count(" 10001\n") == len(NODES), "three ranks")
        lines = [line for line in log.read_text().splitlines() if line.endswith(" 10001")]
        assert sorted(lines) == [f"{n}: {[str(n), ARGUMENT]} {HOSTILE.encode()!r} 64 10001" for n in range(len(NODES))]
        names = {f"whole-0-{n}" for n in range(len(NODES))}
        assert {*said(cluster, "podman", "ps", "--format={{.Names}}").split()} == names

        said(cluster, "podman", "kill", "--signal=KILL", "whole-0-1")
        assert job.wait(120) == 128 + 9
    assert "1: whole-0-1 ended with status 137" in log.read_text()
    assert said(cluster, "podman", "ps", "--all", "--quiet") == ""
