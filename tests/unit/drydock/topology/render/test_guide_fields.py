"""Each field of omni-infer's tables has its place in what its own layouts, 2P1D and 4P1D, are rendered to."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from drydock.core.paths import ROOT
from drydock.topology.planned import TopologyPlan
from drydock.topology.read import read_topology
from drydock.topology.records import Group, Topology
from drydock.topology.render import hosts_of, ranktable, render
from drydock.topology.render.parts import uses_rdma
from tests.support import topologies
from tests.support.topologies import load_unsafe
from tests.support.topology_files import EXAMPLES, planned

NODES = {"2p1d-omni": (2, 2), "4p1d-omni": (4, 4)}
"""Example → machines for prefill and for decode, as in the guide's inventories."""
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


class Layout(NamedTuple):
    """A layout of the guide, planned and rendered."""

    plan: TopologyPlan
    addresses: dict[str, str]
    prefills: list[str]
    decodes: list[str]
    hosts: dict[str, Any]
    files: dict[str, str]

    def containers(self) -> Iterator[tuple[str, dict[str, str], dict[str, Any]]]:
        """Yield each rank's node, flags and container."""
        for node in (*self.prefills, *self.decodes):
            (container,) = load_unsafe(self.files[f"host_vars/{node}.yml"])["topology_ranks"]
            words = container["command"]
            pairs = zip(words, [*words[1:], "--"], strict=True)
            yield node, {name: value for name, value in pairs if name.startswith("--")}, container

    def tables(self) -> dict[str, Any]:
        return {
            name: json.loads(text)
            for name, text in render(self.plan, topologies.variant(self.plan.variant), "ranktable", self.hosts).items()
        }


@pytest.fixture(scope="module", params=NODES)
def layout(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    file = EXAMPLES / f"{request.param}.yaml"
    plan = planned(file, tmp_path_factory.mktemp("plan"))
    prefill, decode = NODES[request.param]
    prefills, decodes = [f"p{n}" for n in range(prefill)], [f"d{n}" for n in range(decode)]
    hosts = {node: topologies.chips(place, DEVICES) for place, node in enumerate((*prefills, *decodes))}
    files = render(plan, topologies.variant(plan.variant), "ansible", hosts)
    addresses = {node.name: node.address for node in read_topology(file).topology.nodes}
    return Layout(plan, addresses, prefills, decodes, hosts, files)


def test_the_recorded_hosts_of_a_topology_give_its_ranktables(layout: Layout, tmp_path: Path) -> None:
    name = next(name for name, count in NODES.items() if count == (len(layout.prefills), len(layout.decodes)))
    read = read_topology(EXAMPLES / f"{name}.yaml")
    document = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    for node in document["nodes"]:
        recorded = json.loads(read.hosts[node["name"]].read_text())
        recorded["commands"] |= layout.hosts[node["name"]]
        node["host"] = f"{node['name']}.json"
        (tmp_path / node["host"]).write_text(json.dumps(recorded))
    file = tmp_path / "topology.yaml"
    file.write_text(yaml.safe_dump(document))

    variant = topologies.variant(layout.plan.variant)
    assert render(layout.plan, variant, "ranktable", hosts_of(file, layout.plan, "")) == render(
        layout.plan, variant, "ranktable", layout.hosts
    )
    assert hosts_of(tmp_path / "plan.json", layout.plan, "") == {}
    assert hosts_of(file, topologies.disaggregated(), "") == {}


def test_machines_are_in_the_guides_groups_by_their_addresses(layout: Layout) -> None:
    inventory = yaml.safe_load(layout.files["inventory.yml"])["topology"]
    assert {name: own["ansible_host"] for name, own in inventory["hosts"].items()} == layout.addresses
    assert {name: [*group["hosts"]] for name, group in inventory["children"].items()} == {
        "topology_prefill": layout.prefills,
        "topology_decode": layout.decodes,
        "topology_router": ["p0"],
    }


def test_ranks_and_ports_are_those_of_the_guides_host_vars(layout: Layout) -> None:
    count = len(layout.prefills)
    for node, flags, container in layout.containers():
        decodes = node in layout.decodes
        transfer = json.loads(flags["--kv-transfer-config"])
        own = count if decodes else layout.prefills.index(node)
        assert (transfer["kv_rank"], transfer["engine_id"], transfer["kv_parallel_size"]) == (own, own, count + 1)
        assert transfer["kv_role"] == ("kv_consumer" if decodes else "kv_producer")
        assert flags["--port"] == "9000"
        assert flags["--max-model-len"] == ("16384" if decodes else "32000")
        assert flags.get("--node-rank") == (str(layout.decodes.index(node)) if decodes else None)
        assert flags.get("--master-addr") == (layout.addresses["d0"] if decodes else None)
        chips = [path for path in container["devices"] if re.match(r"/dev/davinci\d", path)]
        assert len(chips) == DEVICES


def test_each_rank_has_the_guides_variables(layout: Layout) -> None:
    for node, _, container in layout.containers():
        env, decodes = container["env"], node in layout.decodes
        assert env["ROLE"] == ("decode" if decodes else "prefill")
        assert (env["PREFILL_POD_NUM"], env["DECODE_POD_NUM"]) == (str(len(layout.prefills)), "1")
        machines = ",".join(layout.addresses[each] for each in layout.decodes)
        assert env["LOCAL_DECODE_SERVER_IP_LIST"] == env["GLOBAL_DECODE_SERVER_IP_LIST"] == machines
        names = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME")
        assert {env[name] for name in names} == {"enp23s0f3"}
        assert env["VLLM_HOST_IP"] == layout.addresses[node]
        assert env["HCCL_CONNECT_TIMEOUT"] == env["HCCL_EXEC_TIMEOUT"] == "1800"
        assert env["VLLM_LLMDATADIST_ZMQ_PORT"].isdigit()
        assert env.get("HCCL_BUFFSIZE") == ("1000" if decodes else None)
        for variable in ("RANK_TABLE_FILE_PATH", "GLOBAL_RANK_TABLE_FILE_PATH"):
            assert f"files{env[variable]}" in layout.files
        table = json.loads(layout.files[f"files{env['RANK_TABLE_FILE_PATH']}"])
        assert layout.addresses[node] in [server["server_ip"] for server in table["server_list"]]


def test_the_router_takes_the_global_proxys_place(layout: Layout) -> None:
    (router,) = load_unsafe(layout.files["host_vars/p0.yml"])["topology_routers"]
    words = [*map(str, router["command"])]
    lists = {
        role: [words[place + 1] for place, word in enumerate(words) if word == f"--{role}"]
        for role in ("prefill", "decode")
    }
    assert words[words.index("--port") + 1] == "7000"
    assert lists["prefill"] == [f"http://{layout.addresses[node]}:9000" for node in layout.prefills]
    assert lists["decode"] == [f"http://{layout.addresses['d0']}:9000"]


def test_ranktables_have_the_guides_keys_and_the_recorded_addresses(layout: Layout) -> None:
    tables = layout.tables()
    whole = tables[ranktable.GLOBAL]
    assert set(whole) == {"version", "status", "server_group_list"}
    assert len(whole["server_group_list"]) == len(layout.prefills) + 1
    local = [table for name, table in tables.items() if name.startswith("local_")]
    assert len(local) == len(layout.prefills) + len(layout.decodes) + 1
    addresses = set()
    for table in (*local, *whole["server_group_list"]):
        assert set(table) == (TABLE if "version" in table else TABLE - {"version", "status"})
        for server in table["server_list"]:
            assert set(server) == SERVER
            assert all(set(chip) == {"device_id", "device_ip", "rank_id"} for chip in server["device"])
            addresses |= {(server["server_ip"], chip["device_id"], chip["device_ip"]) for chip in server["device"]}
    assert addresses == {
        (layout.addresses[node], str(chip), f"10.9.{place}.{chip + 1}")
        for place, node in enumerate((*layout.prefills, *layout.decodes))
        for chip in range(DEVICES)
    }


def test_the_page_names_a_place_for_every_field_and_tag() -> None:
    rows = [
        line
        for line in (ROOT / "docs" / "many.md").read_text().splitlines()
        if line.startswith("| ") and "---" not in line
    ]
    named = {name for line in rows for name in re.findall(r"`([^`]+)`", line.split(" | ")[0])}
    keys = TABLE | (SERVER - {"device"}) | {"device_id", "device_ip", "rank_id"}
    assert {*DEPLOYMENT, *INVENTORY, *TAGS, *keys} - {"server_list"} <= named
    for line in rows:
        assert all(cell.strip() for cell in line.strip("|").split(" | ")), line


def test_the_pages_files_are_valid() -> None:
    """Those of which a part stands alone are groups."""
    text = (ROOT / "docs" / "many.md").read_text()
    whole, groups = (
        yaml.safe_load(textwrap.dedent(block)) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    )
    assert [group.role for group in Topology.model_validate(whole).groups] == ["prefill", "decode"]
    first, second = (Group.model_validate(group) for group in groups["groups"])
    assert uses_rdma(first.env)
    assert json.loads(second.flags[1])["kv_connector_extra_config"] == {"backends": ["LIBFABRIC"]}
