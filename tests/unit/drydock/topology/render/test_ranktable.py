"""Ranktables, equal as data to what omni-infer's and vllm-ascend's tools write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drydock.core.errors import InputError
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.render import ranktable, render_plan
from tests.support import topologies


def tables(plan: TopologyPlan, hosts: dict[str, Any]) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in ranktable.make_ranktables(plan, hosts).items()}


def super_pod() -> tuple[TopologyPlan, dict[str, Any]]:
    """Return 1P1D in a super pod, and the nodes' recorded commands."""
    plan, hosts = topologies.ascend(1, 1)
    return plan, {node: topologies.chips(place, 16, pod=True) for place, node in enumerate(hosts)}


def device(number: int, address: str, rank: int) -> dict[str, str]:
    return {"device_id": str(number), "device_ip": address, "rank_id": str(rank)}


def test_a_local_table_is_as_gen_writes_it() -> None:
    plan, hosts = topologies.ascend(devices=2)
    assert tables(plan, hosts)["local_ranktable_7.150.1.2_01.json"] == {
        "version": "1.0",
        "status": "completed",
        "group_id": "0",
        "server_count": "1",
        "server_list": [
            {
                "server_id": "7.150.1.2",
                "server_ip": "7.150.1.2",
                "device": [device(0, "10.9.3.1", 0), device(1, "10.9.3.2", 1)],
            }
        ],
    }


def test_a_merged_table_numbers_the_chips_of_all_nodes_and_counts_them_as_a_number() -> None:
    plan, hosts = topologies.ascend(devices=2)
    merged = tables(plan, hosts)["local_ranktable_merge_decoder-0.json"]
    assert merged == {
        "version": "1.0",
        "status": "completed",
        "group_id": "0",
        "server_count": 2,
        "server_list": [
            {
                "server_id": "7.150.1.1",
                "server_ip": "7.150.1.1",
                "device": [device(0, "10.9.2.1", 0), device(1, "10.9.2.2", 1)],
            },
            {
                "server_id": "7.150.1.2",
                "server_ip": "7.150.1.2",
                "device": [device(0, "10.9.3.1", 2), device(1, "10.9.3.2", 3)],
            },
        ],
    }


@pytest.mark.parametrize(("prefill", "decode"), [(2, 2), (4, 4)], ids=["2p1d", "4p1d"])
def test_the_global_table_has_the_prefill_replicas_first_and_then_the_decoder(prefill: int, decode: int) -> None:
    plan, hosts = topologies.ascend(prefill, decode)
    reversed_plan = plan.model_copy(update={"replicas": (plan.replicas[-1], *plan.replicas[:-1])})
    whole = tables(plan, hosts)[ranktable.GLOBAL]
    groups = whole["server_group_list"]

    assert {**whole, "server_group_list": []} == {"version": "1.0", "status": "completed", "server_group_list": []}
    assert [group["group_id"] for group in groups] == [str(number) for number in range(prefill + 1)]
    assert [group["server_count"] for group in groups] == [1] * prefill + [decode]
    assert [group["server_list"][0]["server_ip"] for group in groups][-1] == "7.150.1.1"
    last = [chip["rank_id"] for server in groups[-1]["server_list"] for chip in server["device"]]
    assert last == [str(number) for number in range(16 * decode)]
    assert [chip["rank_id"] for chip in groups[1]["server_list"][0]["device"]] == [str(n) for n in range(16)]
    assert tables(reversed_plan, hosts)[ranktable.GLOBAL] == whole


def test_version_1_2_counts_all_chips_from_one_on() -> None:
    plan, hosts = topologies.ascend(1, 1, devices=2)
    chip = {"server_id": "7.150.0.1", "device_id": "0", "device_ip": "10.9.0.1", "cluster_id": "1"}
    table = tables(plan, hosts)[ranktable.DISAGGREGATED]

    assert table["version"] == "1.2"
    assert table["server_count"] == "2"
    assert table["status"] == "completed"
    assert table["prefill_device_list"] == [chip, chip | {"device_id": "1", "device_ip": "10.9.0.2", "cluster_id": "2"}]
    assert [item["cluster_id"] for item in table["decode_device_list"]] == ["3", "4"]
    assert set(table) == {"version", "server_count", "status", "prefill_device_list", "decode_device_list"}


def test_a_chip_of_a_super_pod_has_its_numbers_and_its_virtual_address() -> None:
    plan, hosts = super_pod()
    ranktables = tables(plan, hosts)
    assert ranktables[ranktable.DISAGGREGATED]["decode_device_list"][3] == {
        "server_id": "7.150.1.1",
        "device_id": "3",
        "device_ip": "192.168.1.4",
        "super_pod_id": "3",
        "super_device_id": "1003",
        "cluster_id": "20",
    }
    assert ranktables["local_ranktable_7.150.1.1_0123456789101112131415.json"]["server_list"][0]["device"][3] == device(
        3, "10.9.1.4", 3
    )


def test_a_group_without_roles_has_local_and_merged_tables_only() -> None:
    plan, hosts = topologies.ascend(0, 2)
    serving = plan.replicas[0].model_copy(update={"role": "serve"})
    ranktables = tables(plan.model_copy(update={"replicas": (serving,)}), hosts)
    assert len(ranktables) == 3
    assert not {ranktable.GLOBAL, ranktable.DISAGGREGATED} & set(ranktables)


FIRST = "hccn_tool -i 0 -ip -g"


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (None, "not recorded"),
        ({"rc": 1, "stdout": "ipaddr:10.9.0.1"}, "ended with 1"),
        ({"rc": 0, "stdout": ""}, "found '' as ipaddr"),
        ({"rc": 0, "stdout": "ipaddr:10.9.0.256"}, "expected an IPv4 address"),
        ({"rc": 0, "stdout": "ipaddr:0.0.0.0"}, "expected the address of an interface"),
        ({"rc": 0, "stdout": "ipaddr:10.9.0.1;reboot"}, "expected an IPv4 address"),
        ({"rc": 0, "stdout": "ipaddr:10.9.1.1"}, "found twice of p0 0 and p1 0"),
        ({"rc": 0, "stdout": "x" * 70000}, "at most 65536 characters"),
        ({"rc": 0, "stdout": 7}, "at most 65536 characters"),
    ],
)
def test_a_recorded_address_is_checked(output: Any, problem: str) -> None:
    plan, hosts = topologies.ascend(devices=2)
    hosts["p0"] = {**hosts["p0"], FIRST: output} if output else {k: v for k, v in hosts["p0"].items() if k != FIRST}
    with pytest.raises(InputError, match=problem):
        ranktable.make_ranktables(plan, hosts)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"address": "node.example"}, "expected an IPv4 address for server_id"),
        ({"devices": ()}, "found no device"),
        ({"devices": (0, 0)}, "chip p0 0: found twice"),
        ({"devices": (0,)}, r"prefill: found \[1, 2\] chips on a node"),
        ({"node": "elsewhere"}, "node elsewhere has no recorded host"),
    ],
)
def test_a_rank_is_checked(change: dict[str, Any], problem: str) -> None:
    plan, hosts = topologies.ascend(devices=2)
    with pytest.raises(InputError, match=problem):
        ranktable.make_ranktables(topologies.with_rank(plan, **change), hosts)


def test_a_prefill_of_several_nodes_is_in_the_order_in_which_ray_starts_them() -> None:
    plan, hosts = topologies.ascend(0, 3, devices=1)
    ranks = [
        rank.model_copy(update={"address": f"7.150.1.{n}"})
        for rank, n in zip(plan.replicas[0].ranks, (1, 9, 10), strict=True)
    ]
    prefill = plan.replicas[0].model_copy(update={"role": "prefill", "ranks": tuple(ranks)})
    with pytest.raises(InputError, match="expected them sorted as text"):
        ranktable.make_ranktables(plan.model_copy(update={"replicas": (prefill,)}), hosts)


def test_a_super_pod_without_numbers_is_an_error() -> None:
    plan, hosts = super_pod()
    hosts["p0"]["npu-smi info -t spod-info -i 0 -c 1"] = {"rc": 0, "stdout": "SDID : x\nSuper Pod ID : 3\n"}
    with pytest.raises(InputError, match="found Super Pod ID '3' and SDID 'x'"):
        ranktable.make_ranktables(plan, hosts)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "found no column Chip ID, Chip Logic ID, NPU ID, expected a table"),
        ("No device\n", "found no column"),
        ("Chip ID  Chip Phy-ID\n0  0\n", "found no column NPU ID"),
        ("NPU ID  Chip ID  Chip Phy-ID\n-  0  0\n", "found '-' as NPU ID or Chip ID, expected a number"),
        ("NPU ID  Chip ID  Chip Phy-ID\n0  0  1\n", "found no device 0"),
    ],
)
def test_a_list_of_chips_without_the_chip_is_an_error(text: str, problem: str) -> None:
    plan, hosts = super_pod()
    hosts["p0"]["npu-smi info -m"] = {"rc": 0, "stdout": text}
    with pytest.raises(InputError, match=f"npu-smi info -m: {problem}"):
        ranktable.make_ranktables(plan, hosts)


def test_the_connectors_ranks_find_their_tables_and_what_is_set_wins() -> None:
    plan, hosts = topologies.ascend(devices=2)
    data = json.dumps({"kv_connector": "AscendHcclConnectorV1"})
    for place, replica in enumerate(plan.replicas):
        for rank in replica.ranks:
            words = (*rank.words, "--kv-transfer-config", data)
            plan = topologies.with_rank(plan, place, rank.rank, words=words)
    plan = topologies.with_rank(plan, 1, env={"RANK_TABLE_FILE_PATH": "/mine"})
    table_plan = ranktable.add_ranktable_paths(plan)
    first, second, decoder = (replica.ranks[-1].env for replica in table_plan.replicas)

    assert first["RANK_TABLE_FILE_PATH"] == "/ranktables/local_ranktable_7.150.0.1_01.json"
    assert decoder["RANK_TABLE_FILE_PATH"] == "/ranktables/local_ranktable_merge_decoder-0.json"
    assert {env["GLOBAL_RANK_TABLE_FILE_PATH"] for env in (first, second, decoder)} == {
        "/ranktables/global_ranktable_merge.json"
    }
    assert second["RANK_TABLE_FILE_PATH"] == "/mine"
    assert "files/ranktables/global_ranktable_merge.json" in render_plan(
        plan, topologies.variant("ascend"), "ansible", hosts
    )
    with pytest.raises(InputError, match=r"ranktable global_ranktable_merge\.json: a rank reads it"):
        render_plan(plan, topologies.variant("ascend"), "ansible", {})


@pytest.mark.parametrize("data", ["{", "[]", "null", '{"kv_connector": 7}', '{"kv_connector": "NixlConnector"}'])
def test_other_connectors_read_no_table(data: str) -> None:
    plan, _ = topologies.ascend(devices=2)
    words = (*plan.replicas[0].ranks[0].words, f"--kv-transfer-config={data}")
    plan = topologies.with_rank(plan, words=words)
    assert ranktable.add_ranktable_paths(plan) == plan
