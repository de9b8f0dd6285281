"""Compose files of a plan, checked against the Compose Specification's schema."""

from __future__ import annotations

import ipaddress
from typing import Any

import jsonschema
import pytest
import yaml

from drydock.topology.plan_model import Replica, TopologyPlan
from drydock.topology.render import compose, render_plan
from tests.support import topologies
from tests.support.printed_forms import compose_schema

PLANS = pytest.mark.parametrize("make", topologies.PLANS.values(), ids=list(topologies.PLANS))


def projects(plan: TopologyPlan) -> dict[str, dict[str, Any]]:
    files = render_plan(plan, topologies.variant(plan.variant), "compose", {})
    assert files
    return {path: yaml.safe_load(text) for path, text in files.items()}


@PLANS
def test_every_file_follows_the_specification(make: Any) -> None:
    for project in projects(make()).values():
        jsonschema.validate(project, compose_schema())


@PLANS
def test_every_rank_is_supervised_and_drained(make: Any) -> None:
    plan = make()
    for path, project in projects(plan).items():
        ranks = {name: item for name, item in project["services"].items() if name.endswith(("-0", "-1", "-2"))}
        assert ranks, path
        for item in ranks.values():
            assert item["init"] is False
            assert item["stop_grace_period"] == "30s"
            assert item["shm_size"]
            assert item["read_only"] is True
            assert item["healthcheck"]["test"][-2:] == ["--status-port", "20001"]
            assert [v["target"] for v in item["volumes"] if v["type"] == "volume"] == ["/cache"]
            assert all(v.get("read_only") for v in item["volumes"] if v["type"] == "bind")


def test_one_engine_has_the_addresses_of_the_nodes_and_a_free_gateway() -> None:
    whole = projects(topologies.disaggregated())["compose.yaml"]
    places = {name: item["networks"]["nodes"] for name, item in whole["services"].items() if "networks" in item}
    only = whole["networks"]["nodes"]["ipam"]["config"][0]

    assert {place["ipv4_address"] for place in places.values()} == {"10.2.0.10", "10.2.0.11", "10.2.0.12"}
    assert ipaddress.ip_address(only["gateway"]) in ipaddress.ip_network(only["subnet"])
    assert only["gateway"] not in {place["ipv4_address"] for place in places.values()}


def test_containers_of_one_node_share_a_network_that_none_of_them_owns() -> None:
    services = projects(topologies.disaggregated())["compose.yaml"]["services"]

    assert services["decodes-0-0"]["network_mode"] == services["router"]["network_mode"] == "service:node.n2"
    assert services["node.n2"]["ports"] == ["127.0.0.1:30000:30000"]
    assert not any("ports" in item for name, item in services.items() if name != "node.n2")


def test_nodes_with_names_are_found_by_them_and_keep_their_interface() -> None:
    whole = projects(topologies.trio())["compose.yaml"]

    assert whole["networks"]["nodes"] == {"driver": "bridge"}
    assert whole["services"]["whole-0-1"]["networks"]["nodes"] == {
        "aliases": ["cpu1.example"],
        "interface_name": "ens3",
    }
    assert whole["services"]["whole-0-0"]["ports"] == ["127.0.0.1:20000:20000"]
    assert len({item["volumes"][-1]["source"] for item in whole["services"].values()}) == 3  # a cache for each node


def test_machines_use_their_own_network_and_devices() -> None:
    service = projects(topologies.two_nodes())["nodes/gpu1/compose.yaml"]["services"]["big-0-1"]
    requested = service["deploy"]["resources"]["reservations"]["devices"][0]

    assert service["network_mode"] == "host"
    assert requested["device_ids"] == [str(number) for number in range(8)]
    assert "/dev/infiniband:/dev/infiniband" in service["devices"]
    assert "IPC_LOCK" in service["cap_add"]
    assert service["ulimits"]["memlock"] == {"soft": -1, "hard": -1}


def test_nodes_of_different_networks_have_files_of_their_own_only() -> None:
    plan = topologies.with_rank(topologies.disaggregated(), address="192.168.7.7")

    assert not compose.shares_network(plan)
    assert set(projects(plan)) == {f"nodes/n{number}/compose.yaml" for number in range(3)}


@pytest.mark.parametrize("words", [("serve", "/srv/m"), ("serve", "--model=/srv/m"), ("serve", "--model", "/models/m")])
def test_the_model_is_where_the_words_name_it(words: tuple[str, ...]) -> None:
    plan = topologies.with_rank(topologies.disaggregated(), words=words)
    plan = plan.model_copy(update={"model": "/srv/m", "replicas": plan.replicas[:1], "router": None})
    volume = projects(plan)["nodes/n0/compose.yaml"]["services"]["prefills-0-0"]["volumes"][0]

    assert (volume["source"], volume["target"]) == ("/srv/m", words[-1].removeprefix("--model="))
    assert volume["read_only"] is True


@pytest.mark.parametrize("accelerator", topologies.accelerators())
def test_every_accelerator_has_all_formats(accelerator: str) -> None:
    numbered = any(node.each for node in topologies.variant(accelerator).run.devices)
    devices = 2 if numbered or topologies.variant(accelerator).run.visible else 0
    ranks = tuple(topologies.rank(f"m{n}", f"10.3.0.{n + 1}", number=n, of=2, devices=devices) for n in range(2))
    plan = topologies.plan(accelerator, (Replica(group="all", role="serve", number=0, ranks=ranks),))

    for project in projects(plan).values():
        jsonschema.validate(project, compose_schema())
    for kind in ("kubernetes", "ansible"):
        assert render_plan(plan, topologies.variant(accelerator), kind, {})


@pytest.mark.parametrize("file", ["compose.yaml", "nodes/n2/compose.yaml"])
def test_the_router_and_each_server_get_the_key_from_one_file(file: str) -> None:
    services = projects(topologies.disaggregated())[file]["services"]
    files = {name: service["env_file"] for name, service in services.items() if not name.startswith("node.")}

    assert {"router", "decodes-0-0"} <= files.keys()
    assert {*map(tuple, files.values())} == {("../../VLLM_API_KEY.env",) if "/" in file else ("./VLLM_API_KEY.env",)}


def test_ranks_of_one_server_get_the_groups_secret_also_without_a_key() -> None:
    keyless = topologies.two_nodes().model_copy(update={"api_key": "none"})
    services = projects(keyless)["nodes/gpu1/compose.yaml"]["services"]

    assert services["big-0-1"]["env_file"] == ["../../DRYDOCK_GROUP_SECRET.env"]
