from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest

from drydock.core.paths import ROOT
from drydock.topology.plan_model import TopologyPlan
from tests.support.topology_files import EXAMPLES, EXPECTED, examples, plan_example, planned, shape


@pytest.fixture(params=examples())
def example(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_an_example_is_planned_as_recorded(example: str) -> None:
    example_plan = plan_example(example)
    assert shape(example_plan) == json.loads(EXPECTED.read_text())[example]
    assert TopologyPlan.model_validate_json(example_plan.model_dump_json()) == example_plan
    _check_ports(example_plan)
    _check_words(example_plan)


def test_ports_are_allocated_around_those_of_rays_workers(tmp_path: Path) -> None:
    text = (EXAMPLES / "deepseek-gaudi3-2nodes.yaml").read_text()
    source = tmp_path / "topology.yaml"
    text = text.replace("../../tests", str(ROOT / "tests")).replace("network: {", "network: {port_base: 10001, ")
    source.write_text(text)
    first, second = planned(source, tmp_path).replicas[0].ranks
    assert first.ports == {"api": 10001, "status": 20000, "ray": 6379}
    assert second.ports == {"status": 20000}


def _check_ports(example_plan: TopologyPlan) -> None:
    """No node has a port twice, and a purpose has one port."""
    for rank in (rank for replica in example_plan.replicas for rank in replica.ranks):
        router = [example_plan.router.port] if example_plan.router and example_plan.router.node == rank.node else []
        ports = [*rank.ports.values(), *router]
        assert len(ports) == len(set(ports))
        assert rank.ports["status"] > 0
    every = [rank.ports for replica in example_plan.replicas for rank in replica.ranks]
    for one, other_ports in combinations(every, 2):
        assert all(other_ports.get(purpose, port) == port for purpose, port in one.items())


def _check_words(example_plan: TopologyPlan) -> None:
    """A container gets the ports and addresses of the plan, and the model as the nodes know it."""
    for replica in example_plan.replicas:
        assert sum("api" in rank.ports for rank in replica.ranks) == 1
        for rank in replica.ranks:
            assert rank.words[:2] == ("serve", example_plan.model)
            assert rank.words[rank.words.index("--status-port") + 1] == str(rank.ports["status"])
            if len(replica.ranks) > 1:
                assert rank.words[rank.words.index("--node-rank") + 1] == str(rank.rank)
                assert rank.words[rank.words.index("--master-addr") + 1] == replica.ranks[0].address
                assert rank.env["VLLM_HOST_IP"] == rank.address
