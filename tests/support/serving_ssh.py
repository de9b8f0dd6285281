"""A topology of two servers for machines of machines_ssh.py: its file, and the model on the machines."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.machines_ssh import Machines
from tests.support.topology_files import HOSTS, SMOLLM2, write_model

MODEL = "/srv/models/smollm2"
TOPOLOGY = """\
model: {model}
image: {image}
api_key: required
nodes:
  - {{name: n0, address: {first}, host: {host}}}
  - {{name: n1, address: {second}, host: {host}}}
groups:
  - name: whole
    replicas: 2
    env: {{STUB_VLLM: "1"}}
network: {{interface: eth0}}
goals:
  input: [16, 64]
"""


def write(folder: Path, machines: Machines, image: str) -> tuple[Path, Path]:
    """Copy the model to the machines; return the paths of topology.yaml and of the model here."""
    model = write_model(folder / "model", SMOLLM2)
    for node in machines.nodes:
        node.run("mkdir", "-p", str(Path(MODEL).parent))
        node.run("rm", "-rf", MODEL)
        subprocess.run(["docker", "cp", "--quiet", str(model), f"{node.container}:{MODEL}"], check=True)
    first, second = (node.address for node in machines.nodes)
    host = HOSTS / "cpu-xeon8380-2s" / "host.json"
    path = folder / "topology.yaml"
    path.write_text(TOPOLOGY.format(model=MODEL, image=image, first=first, second=second, host=host))
    return path, model
