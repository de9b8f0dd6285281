"""The test cluster's name service, for pods that have a host name and a subdomain. IO.

A name is unknown until the tests have seen the pod's address, as it is in every cluster while a pod starts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.cluster_processes import start

SCRIPT = Path(__file__).with_name("name_server.py")

ADDRESS = "10.96.0.10"
"""Where each pod asks (clusterDNS of the kubelet)."""
DOMAIN = "svc.cluster.local"
PORT = 5353


def start_names(cluster: Cluster) -> Path:
    """Start the server; return its file, in which names get their addresses. It ends with the cluster."""
    file = cluster.folder / "names.json"
    write_names(file, ())
    first = cluster.networks[0]
    command = first.inside(sys.executable, "-I", SCRIPT, first.address, PORT, file)
    cluster.processes["names"] = start(cluster.log / "names", *command)
    metadata = {"name": "names", "namespace": "kube-system"}
    port = {"name": "dns", "protocol": "UDP"}
    ports = [{**port, "port": 53, "targetPort": PORT}]
    endpoints = {"addresses": [{"ip": first.address}], "ports": [{**port, "port": PORT}]}
    objects = (
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"clusterIP": ADDRESS, "ports": ports}},
        {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": [endpoints]},
    )
    for item in objects:
        cluster.kubectl("apply", "--filename=-", given=json.dumps(item))
    return file


def write_names(file: Path, pods: Iterable[Mapping[str, Any]]) -> None:
    """Write the names of pods that have an address, instead of those in the file."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(dict(_names(pods))))
    new.replace(file)


def _names(pods: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for pod in pods:
        spec, address = pod["spec"], pod["status"].get("podIP")
        if address and spec.get("subdomain"):
            yield f"{spec['hostname']}.{spec['subdomain']}.{pod['metadata']['namespace']}.{DOMAIN}", address
