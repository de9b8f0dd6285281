"""Several servers of a small real model on this machine, each in a container, queried through their router. IO.

Each container stands for a node, with an address of its own. Prefill and decode servers exchange the KV cache by NIXL
over TCP; the servers of tp3 compute each token together, by vLLM's own multi-node.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from drydock.core.console import log
from drydock.core.errors import BuildError, EngineError, VerifyError
from drydock.core.files import format_json
from drydock.core.project import Project
from drydock.engine.connection import connect_engine
from drydock.engine.run_container import run_to_end
from drydock.model.record import dump_record
from drydock.prove.demo import QUESTION, TARGET, DemoImage
from drydock.run.access import API_KEY
from drydock.topology import planned_file, topology_keys, up
from drydock.topology.plan_model import TopologyPlan, read_plan
from drydock.topology.ports import API
from drydock.topology.topology_arguments import choose_served_name, make_node_url
from entrypoints.serve import topology_answer
from entrypoints.serve.topology_answer import NoAnswer, ShownAnswers, parse_reply

ROUTER = "router"
HOST = "host.json"
SHM = "4g"
"""Size of /dev/shm, as templates/cpu/accelerator.yaml says for a server."""
PROJECT = "com.docker.compose.project"
"""Label that Compose gives what it makes (Compose's source, pkg/api/labels.go)."""
LINES = 15
"""Last lines of each container that are shown if one does not start."""
SUBNETS = [ipaddress.IPv4Network(f"172.{second}.213.0/28") for second in range(16, 32)]
"""Private networks (RFC 1918), of which the first that is free is used."""
SMALL = (
    *("--max-model-len", "1024"),
    *("--max-num-seqs", "4"),
    *("--kv-cache-memory-bytes", str(256 << 20)),
)
"""Each server plans for the whole machine, so the demo bounds what it takes."""


class Arrangement(NamedTuple):
    """Groups of servers."""

    groups: tuple[Mapping[str, Any], ...]
    routed: bool = True


SHAPES = {
    "1p1d": Arrangement(({"name": "prefill", "role": "prefill"}, {"name": "decode", "role": "decode"})),
    "2p1d": Arrangement(({"name": "prefill", "role": "prefill", "replicas": 2}, {"name": "decode", "role": "decode"})),
    "tp3": Arrangement(({"name": "serve", "nodes": 3, "flags": ["--tensor-parallel-size", "3"]},), routed=False),
}
"""Tensor parallelism of three: SmolLM2 has nine heads."""


def format_topology_report(image: DemoImage, laps: Mapping[str, float], answer: str) -> str:
    """Return the answer, the digest and the seconds of each phase."""
    seconds = ", ".join(f"{phase} {duration:.1f}" for phase, duration in laps.items())
    return f"question  {QUESTION}\nanswer    {answer}\ndigest    {image.describe_digest()}\nseconds   {seconds}\n"


def serve_topology(project: Project, name: str, model: Path, image: str, router: str) -> tuple[ShownAnswers, str]:
    """Start the servers, ask and stop them; return what the known answer showed, and the answer to QUESTION.

    Raises the DrydockError of any step; the last lines of what did not start are logged.
    """
    with tempfile.TemporaryDirectory(prefix="drydock-demo-") as folder:
        file = plan_demo_topology(project, Path(folder), SHAPES[name], model, image, router)
        plan, output = read_plan(file), Path(folder, "running")
        try:
            up.write_files_to_start(project, plan, up.COMPOSE, output, {})
            known_answers = up.start_by_compose(plan, file, output, up.compute_start_seconds(project, plan))
            return known_answers, ask_question(plan, key_in(output))
        except (EngineError, VerifyError):
            up.show_topology_logs(file, output, LINES)
            raise
        finally:
            if output.is_dir():
                up.stop_by_compose(file, output)
            remove_volumes(f"drydock-{up.name_topology(file)}")


def key_in(folder: Path) -> str:
    """Return the key of a topology that runs, from the folder of its rendered files."""
    return topology_keys.ensure_secrets(folder, (API_KEY,))[API_KEY]


def remove_volumes(project: str) -> None:
    """Remove the caches of a project's containers, which `topology down` keeps."""
    for volume in connect_engine().volumes.list(filters={"label": f"{PROJECT}={project}"}):
        volume.remove()


def plan_demo_topology(
    project: Project, folder: Path, shape: Arrangement, model: Path, image: str, router: str
) -> Path:
    """Record this machine, write a topology of containers on it, and plan it; return the plan's file."""
    log("recording this machine, and planning")
    record_demo_host(folder, image)
    file = folder / "topology.yaml"
    file.write_text(yaml.safe_dump(make_demo_topology(shape, model, free_subnet())))
    plan = folder / f"demo-{secrets.token_hex(3)}.json"  # its name is the Compose project's
    plan.write_text(
        format_json(dump_record(with_images(planned_file.plan_topology_file(project, file), image, router)))
    )
    return plan


def with_images(plan: TopologyPlan, image: str, router: str) -> TopologyPlan:
    """Return a plan whose containers are made of these images. Pure."""
    update: dict[str, Any] = {"image": image}
    if plan.router:
        update["router"] = plan.router.model_copy(update={"image": router})
    return plan.model_copy(update=update)


def make_demo_topology(shape: Arrangement, model: Path, subnet: ipaddress.IPv4Network) -> dict[str, Any]:
    """Return what a topology.yaml says: a node for each server. Pure."""
    count = sum(group.get("replicas", 1) * group.get("nodes", 1) for group in shape.groups)
    addresses = [*map(str, subnet.hosts())][1:]  # the engine takes the first one
    nodes = [{"name": f"n{number}", "address": addresses[number], "host": HOST} for number in range(count)]
    groups = [{**group, "flags": [*group.get("flags", ()), *SMALL]} for group in shape.groups]
    router = {"router": {"node": "n0", "policy": "round_robin"}} if shape.routed else {}
    network = {"interface": "eth0"}
    what = {"model": str(model), "target": TARGET, "api_key": "required"}
    return {**what, "nodes": nodes, "groups": groups, "network": network, **router}


def record_demo_host(folder: Path, image: str) -> None:
    """Write HOST, the recorded host of a container on this machine, into a folder."""
    folder.chmod(0o755)
    bind = {str(folder): {"bind": "/recorded", "mode": "rw"}}
    words = ["facts", "--record", f"/recorded/{HOST}"]
    user = f"{os.getuid()}:{os.getgid()}"
    run_to_end(image, words, volumes=bind, user=user, shm_size=SHM)


def free_subnet() -> ipaddress.IPv4Network:
    """Return the first of SUBNETS that neither the engine nor a route of this machine uses. Raises BuildError."""
    networks = (network.attrs["IPAM"]["Config"] or () for network in connect_engine().networks.list())
    engine_networks = [
        ipaddress.ip_network(one["Subnet"]) for network in networks for one in network if one.get("Subnet")
    ]
    used_networks = [*engine_networks, *_parse_route_networks(Path("/proc/net/route").read_text())]
    for subnet in SUBNETS:
        if not any(network.version == subnet.version and network.overlaps(subnet) for network in used_networks):
            return subnet
    text = f"no network is free among {SUBNETS[0]} to {SUBNETS[-1]}"
    raise BuildError(text, hint="`docker network prune` removes networks without containers")


def _parse_route_networks(table: str) -> Iterator[ipaddress.IPv4Network]:
    """Yield the destinations of /proc/net/route but for the default; its numbers are hexadecimal, lowest byte first."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        destination, mask = (int.from_bytes(bytes.fromhex(fields[place]), "little") for place in (1, 7))
        if mask:
            yield ipaddress.IPv4Network((destination, mask.bit_count()))


def ask_question(plan: TopologyPlan, key: str) -> str:
    """Ask the router, or the only server, and return the answer."""
    first = plan.replicas[0].ranks[0]
    base = (
        make_node_url(plan.router.address, plan.router.port)
        if plan.router
        else make_node_url(first.address, first.ports[API])
    )
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": choose_served_name(plan.model), "messages": messages, "temperature": 0, "max_tokens": 16}
    reply = topology_answer.ask_server(f"{base}/v1/chat/completions", body, seconds=120, key=key)
    try:
        return str(parse_reply(reply)["choices"][0]["message"]["content"])
    except (NoAnswer, LookupError, TypeError) as error:
        raise BuildError(f"{base} answers {reply.status}: {reply.text[:400]}") from error
