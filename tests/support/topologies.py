"""Planned topologies that tests of every format share, and readers of what was rendered."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.model.variant import Role, Variant
from drydock.topology.plan_model import Rank, Replica, RouterPlan, TopologyPlan

DIGEST = "sha256:" + "a" * 64
IMAGE = f"registry.example/vllm@{DIGEST}"
ROUTER_IMAGE = f"registry.example/router@sha256:{'b' * 64}"
MODEL = "/srv/models/smollm2"


@cache
def variant(target: str) -> Variant:
    return find_variant(read_matrix(DRYDOCK), target)


def accelerators() -> list[str]:
    return sorted({item.accelerator for item in read_matrix(DRYDOCK)})


def plan(
    accelerator: str, replicas: tuple[Replica, ...], router: RouterPlan | None = None, **more: str
) -> TopologyPlan:
    fields = {"model": MODEL, "image": IMAGE, **more}
    return TopologyPlan(
        accelerator=accelerator,
        variant=variant(accelerator).id,
        api_key="required",
        replicas=replicas,
        router=router,
        **fields,
    )


def rank(  # noqa: PLR0913 - a rank's parts, by name
    node: str,
    address: str,
    *,
    number: int = 0,
    leader: str = "",
    of: int = 1,
    devices: int = 0,
    env: dict[str, str] | None = None,
    flags: tuple[str, ...] = (),
    base: int = 20000,
) -> Rank:
    """Return a rank with the words that a plan gives it."""
    ports = {"api": base, "status": base + 1}
    several = ()
    if of > 1:
        ports |= {"master": base + 2}
        several = (
            *("--nnodes", str(of), "--node-rank", str(number)),
            *("--master-addr", leader or address, "--master-port", str(base + 2)),
            *(("--headless",) if number else ()),
        )
    words = (
        *("serve", "--model", "/models/smollm2", "--port", str(base), "--status-port", str(base + 1)),
        *several,
        *flags,
    )
    argv = ("python3", "-m", "vllm.entrypoints.openai.api_server", *words[1:])
    variables = {"VLLM_HOST_IP": address, "GLOO_SOCKET_IFNAME": "eth0", **(env or {})}
    return Rank(
        node=node,
        address=address,
        rank=number,
        devices=tuple(range(devices)),
        argv=argv,
        words=words,
        env=variables,
        ports=ports,
    )


def two_nodes() -> TopologyPlan:
    """One server of two H100 nodes, with RDMA."""
    env = {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "mlx5_0,mlx5_1", "NCCL_IB_GID_INDEX": "3"}
    flags = ("--tensor-parallel-size", "8", "--pipeline-parallel-size", "2")
    ranks = tuple(
        rank(f"gpu{n}", f"10.1.0.1{n}", number=n, leader="10.1.0.10", of=2, devices=8, env=env, flags=flags)
        for n in range(2)
    )
    return plan("cuda", (Replica(group="big", role="serve", number=0, ranks=ranks),))


def connector(role: str) -> str:
    kind = "kv_producer" if role == "prefill" else "kv_consumer"
    return json.dumps({"kv_connector": "NixlConnector", "kv_role": kind, "kv_load_failure_policy": "fail"})


def disaggregated(prefill: int = 2, decode: int = 1) -> TopologyPlan:
    """2P1D with NIXL over TCP and a router, which shares the decoder's node."""
    places: list[tuple[Role, int]] = [("prefill", n) for n in range(prefill)]
    places += [("decode", n) for n in range(decode)]
    replicas = []
    for place, (role, number) in enumerate(places):
        address = f"10.2.0.{place + 10}"
        env = {"VLLM_NIXL_SIDE_CHANNEL_HOST": address, "VLLM_NIXL_SIDE_CHANNEL_PORT": "20005", "UCX_TLS": "tcp,self,sm"}
        one = rank(f"n{place}", address, env=env, flags=("--kv-transfer-config", connector(role)))
        one = one.model_copy(update={"ports": {**one.ports, "side-channel": 20005}})
        replicas.append(Replica(group=f"{role}s", role=role, number=number, ranks=(one,)))
    urls = [
        (f"--{replica.role}", f"http://{one.address}:{one.ports['api']}")
        for replica in replicas
        for one in replica.ranks
    ]
    last = replicas[-1].ranks[0]
    router = RouterPlan(
        node=last.node,
        address=last.address,
        port=30000,
        argv=(
            *("vllm-router", "--host", "0.0.0.0", "--port", "30000", "--vllm-pd-disaggregation"),
            *("--kv-connector", "nixl"),
            *(word for pair in urls for word in pair),
            *("--policy", "round_robin", "--health-check-interval-secs", "2"),
        ),
        image=ROUTER_IMAGE,
    )
    return plan("cpu", tuple(replicas), router)


def trio() -> TopologyPlan:
    """TP=3 over three CPU nodes, which have names, and an interface of another name."""
    ranks = tuple(
        rank(
            f"cpu{n}",
            f"cpu{n}.example",
            number=n,
            leader="cpu0.example",
            of=3,
            env={"GLOO_SOCKET_IFNAME": "ens3"},
            flags=("--tensor-parallel-size", "3"),
        )
        for n in range(3)
    )
    return plan("cpu", (Replica(group="whole", role="serve", number=0, ranks=ranks),), model="org/smollm2")


def with_replica(plan: TopologyPlan, place: int = 0, **update: Any) -> TopologyPlan:
    replicas = [*plan.replicas]
    replicas[place] = replicas[place].model_copy(update=update)
    return plan.model_copy(update={"replicas": tuple(replicas)})


def with_rank(plan: TopologyPlan, place: int = 0, number: int = 0, **update: Any) -> TopologyPlan:
    ranks = [*plan.replicas[place].ranks]
    ranks[number] = ranks[number].model_copy(update=update)
    return with_replica(plan, place, ranks=tuple(ranks))


PLANS = {"two-nodes": two_nodes, "2p1d": disaggregated, "trio": trio}
"""Name → what makes the plan."""


def chips(first: int, count: int, *, pod: bool = False) -> dict[str, dict[str, object]]:
    """Return recorded commands of a node whose chips have addresses from 10.9.<first>.1 on; `pod`: of a super pod."""
    results: dict[str, dict[str, object]] = {}
    for device in range(count):
        text = f"ipaddr:10.9.{first}.{device + 1}\nnetmask:255.255.0.0\n"
        results[f"hccn_tool -i {device} -ip -g"] = {"rc": 0, "stdout": text}
        if pod:
            vnic = f"vnic ipaddr:192.168.{first}.{device + 1}\nvnic netmask:255.255.0.0\n"
            results[f"hccn_tool -i {device} -vnic -g"] = {"rc": 0, "stdout": vnic}
            spod = f"\tSDID                           : {first * 1000 + device}\n\tSuper Pod ID                   : 3\n"
            results[f"npu-smi info -t spod-info -i {device // 2} -c {device % 2}"] = {"rc": 0, "stdout": spod}
    if pod:
        table = (ROOT / "tests" / "hosts" / "ascend-a3-8x2" / "host.json").read_text()
        results["npu-smi info -m"] = json.loads(table)["commands"]["npu-smi info -m"]
    return results


def ascend(prefill: int = 2, decode_nodes: int = 2, devices: int = 16) -> tuple[TopologyPlan, dict[str, dict]]:
    """Return the seed's PD layout, one decoder over several nodes, and the nodes' recorded commands."""
    replicas = []
    for number in range(prefill):
        one = rank(f"p{number}", f"7.150.0.{number + 1}", devices=devices)
        replicas.append(Replica(group="prefills", role="prefill", number=number, ranks=(one,)))
    leader = "7.150.1.1"
    decode_ranks = tuple(
        rank(f"d{n}", f"7.150.1.{n + 1}", number=n, leader=leader, of=decode_nodes, devices=devices)
        for n in range(decode_nodes)
    )
    replicas.append(Replica(group="decoder", role="decode", number=0, ranks=decode_ranks))
    hosts = {one.node: chips(place, devices) for place, one in enumerate(r for x in replicas for r in x.ranks)}
    return plan("ascend", tuple(replicas)), hosts


PROGRAMS = {
    "srun": """while [ "$1" != bash ]; do shift; done; exec "$@\"""",
    "podman": """if [ "$1" = run ]; then printf '%s\\0' "$@" > "argv.$6"; fi""",
}
"""What stands for Slurm and Podman: the task itself, and a file with the words of a container."""


def slurm_containers(script: str, node: str) -> dict[str, list[str]]:
    """Run a script of sbatch as one node, with no programs but bash, sed and ours; return name → words of podman."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for program, text in PROGRAMS.items():
            (folder / program).write_text(f"#!/bin/sh\n{text}\n")
            (folder / program).chmod(0o755)
        for program in ("bash", "sed"):
            (folder / program).symlink_to(str(shutil.which(program)))
        for secret in ("VLLM_API_KEY", "DRYDOCK_GROUP_SECRET"):
            (folder / f"{secret}.env").write_text(f"{secret}=a-secret\n")
        env = {"PATH": name, "SLURMD_NODENAME": node}
        subprocess.run([shutil.which("bash") or "bash"], input=script.encode(), cwd=name, env=env, check=False)
        return {path.suffix[1:]: path.read_bytes().decode().split("\0")[:-1] for path in folder.glob("argv.*")}


class Marked(str):
    """A text that was marked as `!unsafe`."""

    __slots__ = ()


class Loader(yaml.SafeLoader):
    """Reads Ansible's variables."""


def _marked(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    """Read a value as ansible-core 2.19 does: quotes of a text with the tag do not count, those of texts in it do."""
    if isinstance(node, yaml.ScalarNode):
        node = yaml.ScalarNode(loader.resolve(yaml.ScalarNode, node.value, (True, False)), node.value)
        return _mark(loader.construct_object(node))
    kind = (
        yaml.SafeLoader.construct_mapping if isinstance(node, yaml.MappingNode) else yaml.SafeLoader.construct_sequence
    )
    return _mark(kind(loader, node, deep=True))


def _mark(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _mark(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_mark(item) for item in value]
    return Marked(value) if isinstance(value, str) else value


Loader.add_constructor("!unsafe", _marked)


def load_unsafe(text: str) -> Any:
    """Parse Ansible's variables; what is `!unsafe` becomes Marked."""
    return yaml.load(text, Loader)  # noqa: S506 - a safe loader with one more tag
