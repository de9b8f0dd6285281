"""Several servers on one machine, in each format."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from drydock.core.errors import InputError
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.render import render_plan
from tests.support import topologies
from tests.support.topology_files import SHARED, planned, write


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> TopologyPlan:
    folder = tmp_path_factory.mktemp("shared")
    return planned(write(folder, SHARED, "ascend-a3-8x2"), folder)


def rendered(plan: TopologyPlan, kind: str) -> dict[str, str]:
    return render_plan(plan, topologies.variant(plan.variant), kind, {})


def cards(text: str) -> list[int]:
    return sorted({int(number) for number in re.findall(r"/dev/davinci(\d+)", text)})


SERVERS = {"prefill-0-0": [0, 1, 2, 3], "prefill-1-0": [4, 5, 6, 7], "prefill-2-0": [8, 9, 10, 11]}


def test_a_machines_compose_file_has_each_server_with_its_devices_and_ports(plan: TopologyPlan) -> None:
    services = yaml.safe_load(rendered(plan, "compose")["nodes/m0/compose.yaml"])["services"]
    assert {name: cards(json.dumps(services[name])) for name in SERVERS} == SERVERS
    ports = [services[name]["command"][services[name]["command"].index("--port") + 1] for name in SERVERS]
    assert ports == [str(replica.ranks[0].ports["api"]) for replica in plan.replicas[:3]]
    assert len({*ports}) == len(SERVERS)


def test_ansible_starts_each_server_on_the_machine(plan: TopologyPlan) -> None:
    text = rendered(plan, "ansible")["host_vars/m0.yml"]
    variables: dict[str, Any] = yaml.load(text, Loader=_Unmarked)  # noqa: S506 - of our own text
    assert {rank["name"]: cards(json.dumps(rank["devices"])) for rank in variables["topology_ranks"]} == SERVERS
    assert len({rank["ready"] for rank in variables["topology_ranks"]}) == len(SERVERS)


class _Unmarked(yaml.SafeLoader):
    """Reads a text that is marked as no template."""


def _value(loader: _Unmarked, node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    return loader.construct_scalar(node)  # type: ignore[arg-type]


_Unmarked.add_constructor("!unsafe", _value)


def test_slurm_starts_each_server_in_the_nodes_case(plan: TopologyPlan) -> None:
    (case,) = re.findall(r"^m0\)\n(.*?)^  ;;$", rendered(plan, "slurm")["topology.sbatch"], re.DOTALL | re.MULTILINE)
    starts = case.split("start ")[1:]
    assert {words.split()[0]: cards(words) for words in starts if words.split()[0] in SERVERS} == SERVERS


def test_pods_on_one_node_share_a_template_because_each_has_an_address_of_its_own(plan: TopologyPlan) -> None:
    files = rendered(plan, "kubernetes")
    deployment = yaml.safe_load(files["deployment-prefill.yaml"])["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    assert deployment["replicas"] == len(SERVERS)
    assert container["resources"]["limits"]["huawei.com/Ascend910"] == len(SERVERS["prefill-0-0"])
    config = json.loads(container["args"][container["args"].index("--kv-transfer-config") + 1])
    assert config["kv_port"] in {port["containerPort"] for port in container["ports"]}


def test_pods_cannot_share_the_nodes_own_network(plan: TopologyPlan) -> None:
    variant = topologies.variant(plan.variant)
    network = topologies.variant("cloudmatrix384").run.network
    host_network_variant = variant.model_copy(update={"run": variant.run.model_copy(update={"network": network})})
    with pytest.raises(InputError, match="node m0: prefill-0-0 and prefill-1-0 and prefill-2-0 would have the same"):
        render_plan(plan, host_network_variant, "kubernetes", {})
