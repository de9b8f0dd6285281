"""Each field of omni-infer's tables has its place in what its own layouts, 2P1D and 4P1D, are rendered to."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from drydock.core.paths import ROOT
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.read import read_topology
from drydock.topology.records import Group, Topology
from drydock.topology.render import hosts_of, render
from drydock.topology.render.parts import uses_rdma
from tests.support import topologies
from tests.support.topology_files import EXAMPLES, planned

NODES = {"2p1d-omni": 2, "4p1d-omni": 4}
"""Example → machines for prefill and as many for decode, as in the guide's inventories."""
DEVICES = 16
DEPLOYMENT = (
    *("user", "hosts", "master_port", "base_api_port", "private_key", "ascend_rt_visible_devices", "local_code_path"),
    *("model_path", "code_path", "docker_image", "prefill: max_model_len", "decode: max_model_len"),
)
"""Fields of omni_infer_deployment.yml (the guide, lines 301-321)."""
INVENTORY = (
    *("ansible_host", "ansible_user", "ansible_ssh_private_key_file", "node_rank", "kv_rank", "node_port", "api_port"),
    *("host_ip", "ascend_rt_visible_devices", "global_port_base", "base_api_port", "proxy_port", "port_offset"),
)
"""Fields of the inventories in omni-infer's tools/ansible/template."""
TAGS = ("run_docker", "ranktable", "run_server", "run_proxy", "sync_code", "pip_install", "stop_server", "fetch_log")
SERVER = {"server_id", "server_ip", "device"}
TABLE = {"version", "status", "group_id", "server_count", "server_list"}


@pytest.mark.parametrize("name", NODES)
def test_machines_are_in_the_guides_groups_and_their_recorded_hosts_give_the_ranktables(
    name: str, tmp_path: Path
) -> None:
    source = EXAMPLES / f"{name}.yaml"
    plan, read = planned(source, tmp_path), read_topology(source)
    prefill, decode = ([f"{role}{number}" for number in range(NODES[name])] for role in "pd")
    hosts = {node: topologies.chips(place, DEVICES) for place, node in enumerate((*prefill, *decode))}
    inventory = yaml.safe_load(rendered(plan, "ansible", hosts)["inventory.yml"])["topology"]
    assert {node: own["ansible_host"] for node, own in inventory["hosts"].items()} == {
        node.name: node.address for node in read.topology.nodes
    }
    assert {group: [*own["hosts"]] for group, own in inventory["children"].items()} == {
        "topology_prefill": prefill,
        "topology_decode": decode,
        "topology_router": ["p0"],
    }

    document = yaml.safe_load(source.read_text())
    for node in document["nodes"]:
        recorded = json.loads(read.hosts[node["name"]].read_text())
        recorded["commands"] |= hosts[node["name"]]
        node["host"] = f"{node['name']}.json"
        (tmp_path / node["host"]).write_text(json.dumps(recorded))
    file = tmp_path / "topology.yaml"
    file.write_text(yaml.safe_dump(document))
    assert rendered(plan, "ranktable", hosts_of(file, plan, "")) == rendered(plan, "ranktable", hosts)
    assert hosts_of(tmp_path / "plan.json", plan, "") == {}
    assert hosts_of(file, topologies.disaggregated(), "") == {}


def rendered(plan: TopologyPlan, kind: str, hosts: Any) -> dict[str, str]:
    return render(plan, topologies.variant(plan.variant), kind, hosts)


def test_the_page_names_a_place_for_every_field_and_tag() -> None:
    rows = [
        line
        for line in (ROOT / "docs" / "omni-infer.md").read_text().splitlines()
        if line.startswith("| ") and "---" not in line
    ]
    named = {name for line in rows for name in re.findall(r"`([^`]+)`", line.split(" | ")[0])}
    keys = TABLE | (SERVER - {"device"}) | {"device_id", "device_ip", "rank_id"}
    assert {*DEPLOYMENT, *INVENTORY, *TAGS, *keys} - {"server_list"} <= named
    for line in rows:
        assert all(cell.strip() for cell in line.strip("|").split(" | ")), line


def test_the_pages_files_are_valid() -> None:
    """Those of which a part stands alone are groups."""
    text = (ROOT / "docs" / "topology.md").read_text()
    whole, groups = (
        yaml.safe_load(textwrap.dedent(block)) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    )
    assert [group.role for group in Topology.model_validate(whole).groups] == ["prefill", "decode"]
    first, second = (Group.model_validate(group) for group in groups["groups"])
    assert uses_rdma(first.env)
    assert json.loads(second.flags[1])["kv_connector_extra_config"] == {"backends": ["LIBFABRIC"]}
