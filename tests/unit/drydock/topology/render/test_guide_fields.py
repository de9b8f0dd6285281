"""Each field of omni-infer's tables has its place in what its own layouts, 2P1D and 4P1D, are rendered to."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.render import FORMATS, find_host_commands, render_plan
from drydock.topology.render.parts import uses_rdma
from drydock.topology.topology_file import read_topology
from drydock.topology.topology_records import Group, Topology
from tests.support import topologies
from tests.support.hosts import cloudmatrix
from tests.support.topology_files import EXAMPLES, plan_example

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
    plan, read = plan_example(name), read_topology(source)
    prefill, decode = ([f"{role}{number}" for number in range(NODES[name])] for role in "pd")
    hosts = find_host_commands(source, plan, "")
    inventory = yaml.safe_load(rendered(plan, "ansible", hosts)["inventory.yml"])["topology"]
    assert {node: entry["ansible_host"] for node, entry in inventory["hosts"].items()} == {
        node.name: node.address for node in read.topology.nodes
    }
    assert {group: [*entry["hosts"]] for group, entry in inventory["children"].items()} == {
        "topology_prefill": prefill,
        "topology_decode": decode,
        "topology_router": ["p0"],
    }
    tables = rendered(plan, "ranktable", hosts)
    groups = json.loads(tables["global_ranktable_merge.json"])["server_group_list"]
    assert [len(group["server_list"]) for group in groups] == [1] * NODES[name] + [NODES[name]]
    chips = [chip["device_ip"] for group in groups for server in group["server_list"] for chip in server["device"]]
    assert len({*chips}) == len(chips) == 2 * NODES[name] * DEVICES
    assert rendered(plan, "ranktable", find_host_commands(source, plan, str(source.parent / "hosts"))) == tables
    assert find_host_commands(tmp_path / "plan.json", plan, "") == {}
    assert find_host_commands(source, topologies.disaggregated(), "") == {}


def test_the_examples_hosts_are_the_recorded_machine_with_addresses_of_chips() -> None:
    assert {path: path.read_text() for path in cloudmatrix.FOLDER.iterdir()} == cloudmatrix.hosts()


@pytest.mark.parametrize("kind", FORMATS)
def test_an_example_renders_with_its_own_hosts_or_says_why_not(kind: str) -> None:
    source = EXAMPLES / "2p1d-omni.yaml"
    plan = plan_example(source.stem)
    hosts = find_host_commands(source, plan, "")
    if kind in ("kubernetes", "disaggregatedset"):
        with pytest.raises(InputError, match="a ranktable names chips, but Kubernetes' device plugin chooses them"):
            rendered(plan, kind, hosts)
        return
    files = rendered(plan, kind, hosts)
    tables = {Path(path).name for path in files if path.endswith(".json") and "ranktable" in path}
    assert len(tables) == len(("p0", "p1", "d0", "d1", "decode over both", "global", "vllm-ascend's"))
    text = "".join(files.values())
    assert kind == "ranktable" or all(f"/dev/davinci{chip}" in text for chip in range(DEVICES))
    assert kind == "ranktable" or {"ROLE", "/ranktables/global_ranktable_merge.json"} <= {
        *re.findall(r"[\w./-]+", text)
    }


ROLES: dict[str, dict[str, str]] = {
    "prefill": {
        "--tensor-parallel-size": "16",
        "--data-parallel-size": "1",
        "--enable-expert-parallel": "true",
        "--enforce-eager": "true",
        "--speculative-config": '{"method": "deepseek_mtp", "num_speculative_tokens": 1}',
        "--max-num-batched-tokens": "30000",
        "--max-num-seqs": "16",
        "--disable-log-requests": "true",
        "--gpu-memory-utilization": "0.92",
        "VLLM_ENABLE_MC2": "1",
        "HCCL_OP_EXPANSION_MODE": "AIV",
        "HCCL_BUFFSIZE": "500",
        "OMNI_USE_DSV3": "1",
        "TNG_HOST_COPY": "1",
        "AUTO_USE_UC_MEMORY": "1",
        "TASK_QUEUE_ENABLE": "2",
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        "ASCEND_RT_VISIBLE_DEVICES": ",".join(map(str, range(DEVICES))),
    },
    "decode": {
        "--tensor-parallel-size": "1",
        "--data-parallel-size": "32",
        "--enable-expert-parallel": "true",
        "--additional-config": '{"enable_graph_mode": true, "use_cached_npu_graph": true}',
        "--speculative-config": '{"method": "deepseek_mtp", "num_speculative_tokens": 1}',
        "--max-num-seqs": "32",
        "--disable-log-requests": "true",
        "--gpu-memory-utilization": "0.92",
        "VLLM_ENABLE_MC2": "1",
        "HCCL_OP_EXPANSION_MODE": "AIV",
        "HCCL_BUFFSIZE": "1000",
        "OMNI_USE_DSV3": "1",
        "TNG_HOST_COPY": "1",
        "AUTO_USE_UC_MEMORY": "1",
        "TASK_QUEUE_ENABLE": "2",
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        "ASCEND_RT_VISIBLE_DEVICES": ",".join(map(str, range(DEVICES))),
    },
}
"""What the playbook of the guide's day sets: omni-infer 22dd926, tools/ansible/template/omni_infer_server_template.yml,
tools/scripts/pd_run.sh and start_api_servers.py."""


def test_each_role_has_the_playbooks_settings_with_their_sources() -> None:
    plan = plan_example("2p1d-omni")
    for role, expected in ROLES.items():
        replica = next(candidate for candidate in plan.replicas if candidate.role == role)
        reasons = {reason.setting: reason for reason in replica.reasons}
        assert {name: reasons[name].value for name in expected} == expected
        assert reasons["VLLM_ENABLE_MC2"].because.startswith(f"{role}: ")
        assert "omni_infer_server" in reasons["VLLM_ENABLE_MC2"].because
        assert ("omni_placement" in reasons["MODEL_EXTRA_CFG_PATH"].because) == (role == "decode")
        assert ("--enforce-eager" in replica.ranks[0].argv) == (role == "prefill")
    assert not [text for text in plan.findings if text.startswith(("NPU-041", "NPU-042"))]


def rendered(plan: TopologyPlan, kind: str, hosts: Any) -> dict[str, str]:
    return render_plan(plan, topologies.variant(plan.variant), kind, hosts)


def test_the_page_names_a_place_for_every_field_and_tag() -> None:
    rows = [
        line
        for line in (ROOT / "docs" / "omni-infer.md").read_text().splitlines()
        if line.startswith("| ") and "---" not in line
    ]
    page_names = {name for line in rows for name in re.findall(r"`([^`]+)`", line.split(" | ")[0])}
    keys = TABLE | (SERVER - {"device"}) | {"device_id", "device_ip", "rank_id"}
    assert {*DEPLOYMENT, *INVENTORY, *TAGS, *keys} - {"server_list"} <= page_names
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
