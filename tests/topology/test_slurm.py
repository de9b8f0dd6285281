"""A rendered script that Slurm really runs: three nodes with networks of their own, and Podman on each."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from drydock.build import build, standins
from drydock.config.project_choice import DRYDOCK
from drydock.core.files import format_json
from drydock.core.paths import ROOT
from drydock.model.record import dump_record
from drydock.prove import demo_topology, smollm2
from drydock.prove.demo import EXPECTED, QUESTION
from drydock.run.access import API_KEY
from drydock.topology import planned_file
from drydock.topology.plan_model import Rank, Replica, TopologyPlan
from drydock.topology.ports import API, STATUS
from drydock.topology.render import slurm, write_plan
from drydock.topology.topology_arguments import choose_served_name, make_node_url
from tests.support.kubernetes.cluster_network import Network, networks
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
SlurmctldHost={host}({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
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


class Cluster(NamedTuple):
    """Slurm, with a network for its controller and clients, and one for each node."""

    env: Mapping[str, str]
    controller: Network
    nodes: Mapping[str, Network]

    def said(self, *command: str) -> str:
        """Run a command where the controller is; return what it prints."""
        words = self.controller.inside(*command)
        return subprocess.run(words, env=self.env, capture_output=True, text=True, check=False).stdout.strip()

    def started(self, folder: Path) -> subprocess.Popen[bytes]:
        """Start the rendered script as a job, which writes to the file `log`; it ends with the job, and its code."""
        words = self.controller.inside("sbatch", "--wait", "--output=log", slurm.SCRIPT)
        return subprocess.Popen(words, cwd=folder, env=self.env, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start Slurm with three nodes and a Podman of its own."""
    folder = tmp_path_factory.mktemp("slurm")
    controller, *node_networks = networks(1 + len(NODES), folder / "network.log")
    of, host = dict(zip(NODES, node_networks, strict=True)), socket.gethostname()
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr={network.address} CPUs=1 RealMemory=100"
        for node, network in of.items()
    )
    address, names = controller.address, ",".join(NODES)
    texts = {
        "slurm.conf": CONFIGURATION.format(host=host, folder=folder, address=address, nodes=nodes, names=names),
        "containers.conf": CONTAINERS,
        "storage.conf": STORAGE.format(folder=folder),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    (folder / "state").mkdir()
    config_files = {
        "SLURM_CONF": "slurm.conf",
        "CONTAINERS_CONF": "containers.conf",
        "CONTAINERS_STORAGE_CONF": "storage.conf",
    }
    env = {**os.environ, **{name: str(folder / file) for name, file in config_files.items()}}
    files = [f"--{name}={folder}/munge.{name}" for name in ("socket", "log-file", "pid-file", "seed-file")]
    commands = [("munged", "--force", "--foreground", f"--key-file={folder}/munge.key", *files)]
    commands += [controller.inside("slurmctld", "-D")]
    commands += [network.inside("slurmd", "-D", "-N", node) for node, network in of.items()]
    running = [subprocess.Popen(command, env=env) for command in commands]
    slurm_cluster = Cluster(env, controller, of)
    try:
        idle = ("sinfo", "--noheader", "--states=idle", "--format=%D")
        wait_until(lambda: slurm_cluster.said(*idle) == str(len(NODES)), "idle nodes")
        yield slurm_cluster
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(60)
        slurm_cluster.said("podman", "rm", "--force", "--all")
        slurm_cluster.said("podman", "rmi", "--force", "--all")
        for network in (controller, *node_networks):
            network.holder.kill()
            network.holder.wait()


def loaded(name: str, cluster: Cluster) -> str:
    """Load an image of the engine into Podman; return its name."""
    with subprocess.Popen(("docker", "save", name), stdout=subprocess.PIPE) as saved:
        subprocess.run(("podman", "load", "--quiet"), stdin=saved.stdout, env=cluster.env, check=True)
    return name


def planned(image: str, cluster: Cluster) -> TopologyPlan:
    """Return one server of three nodes, in place of which a program prints what it got."""
    ranks = tuple(
        Rank(
            node=node,
            address=cluster.nodes[node].address,
            rank=number,
            argv=("vllm",),
            words=("/usr/bin/python3", "-c", PROGRAM, f"{number}", ARGUMENT),
            env={"OWN": HOSTILE},
            ports={API: 20000, STATUS: 20001},
        )
        for number, node in enumerate(NODES)
    )
    replica = Replica(group="whole", role="serve", number=0, ranks=ranks)
    return TopologyPlan(
        model="org/m", image=image, accelerator="cpu", variant="cpu-vllm0.32", api_key="required", replicas=(replica,)
    )


def test_each_node_runs_its_rank_and_the_end_of_one_ends_the_job(cluster: Cluster, tmp_path: Path) -> None:
    image = loaded(
        build.build_image(standins.stand_in(DRYDOCK, "cpu")).image, cluster
    )  # its entrypoint is the real one
    write_plan(DRYDOCK, planned(image, cluster), "slurm", tmp_path, {})
    log = tmp_path / "log"
    with cluster.started(tmp_path) as job:
        wait_until(lambda: log.is_file() and log.read_text().count(" 10001\n") == len(NODES), "three ranks")
        lines = [line for line in log.read_text().splitlines() if line.endswith(" 10001")]
        assert sorted(lines) == [f"{n}: {[str(n), ARGUMENT]} {HOSTILE.encode()!r} 64 10001" for n in range(len(NODES))]
        names = {f"whole-0-{n}" for n in range(len(NODES))}
        assert {*cluster.said("podman", "ps", "--format={{.Names}}").split()} == names

        cluster.said("podman", "kill", "--signal=KILL", "whole-0-1")
        assert job.wait(120) == 128 + 9
    assert "1: whole-0-1 ended with status 137" in log.read_text()
    assert cluster.said("podman", "ps", "--all", "--quiet") == ""


@pytest.mark.timeout(900)
def test_a_real_model_on_three_nodes_says_paris(
    cluster: Cluster, folder: Path, images: tuple[str, str], tmp_path: Path
) -> None:
    """Each node computes a third of each layer, by vLLM's own multi-node."""
    nodes = [
        {"name": name, "address": network.address, "host": str(folder / demo_topology.HOST)}
        for name, network in cluster.nodes.items()
    ]
    shape, subnet = demo_topology.SHAPES["tp3"], demo_topology.SUBNETS[0]
    topology = {**demo_topology.make_demo_topology(shape, smollm2.make_small_model(images[0]), subnet), "nodes": nodes}
    (tmp_path / "topology.yaml").write_text(yaml.safe_dump(topology))
    plan = planned_file.plan_topology_file(DRYDOCK, tmp_path / "topology.yaml")
    plan = demo_topology.with_images(plan, loaded(images[0], cluster), "")
    (tmp_path / "plan.json").write_text(format_json(dump_record(plan)))
    write_plan(DRYDOCK, plan, "slurm", tmp_path, {})
    first, key = plan.replicas[0].ranks[0], demo_topology.key_in(tmp_path)
    ready = ("curl", "--fail", "--silent", f"{make_node_url(first.address, first.ports[STATUS])}/readyz")
    with cluster.started(tmp_path) as job:
        try:
            wait_until(lambda: cluster.said(*ready) or job.poll() is not None, "a ready server", within=600)
            verify = ("env", f"{API_KEY}={key}", sys.executable, str(ROOT / "tasks.py"), "topology", "verify")
            assert "serve-0-0" in cluster.said(*verify, str(tmp_path / "plan.json")), (tmp_path / "log").read_text()
            assert EXPECTED in asked(cluster, plan, key)
        finally:
            cluster.said("scancel", "--name=drydock")
            job.wait(120)
    wait_until(lambda: not cluster.said("podman", "ps", "--all", "--quiet"), "no container", within=60)
    assert "requests were cut off" not in (tmp_path / "log").read_text()


def asked(cluster: Cluster, plan: TopologyPlan, key: str) -> str:
    """Return the answer to QUESTION."""
    first = plan.replicas[0].ranks[0]
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": choose_served_name(plan.model), "messages": messages, "temperature": 0, "max_tokens": 16}
    headers = ("--header", f"Authorization: Bearer {key}", "--header", "Content-Type: application/json")
    where = f"{make_node_url(first.address, first.ports[API])}/v1/chat/completions"
    return cluster.said("curl", "--silent", *headers, "--data", json.dumps(body), where)
