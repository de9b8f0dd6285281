from __future__ import annotations

from typing import Any

import pytest

from drydock.core.errors import InputError
from drydock.topology.groups import check_placements, collect_node_traits, compare_traits, is_joined, place_replicas
from drydock.topology.topology_records import Group, Node, Topology

H100 = {"name": "NVIDIA H100 80GB HBM3", "architecture": "9.0", "memory_total": 80 << 30}
FACTS: dict[str, Any] = {
    "accelerator": "cuda",
    "processor": {"architecture": "x86_64", "model": "Xeon"},
    "cpus": [{}] * 4,
    "devices": [H100] * 8,
    "versions": {"driver": "580.95.05", "tool": "1"},
}
ALIKE = collect_node_traits(FACTS)
OLDER = collect_node_traits({**FACTS, "versions": {"driver": "535.1"}})


def _topology(*groups: Group, nodes: str = "abcd") -> Topology:
    topology_nodes = tuple(Node(name=name, address=name, host="host.json") for name in nodes)
    return Topology(model="m", target="cuda", nodes=topology_nodes, groups=groups)


DEVICES = {name: [*range(8)] for name in "abcd"}


def _names(topology: Topology, node_traits: dict[str, Any]) -> list[str]:
    return ["".join(node.name for node in replica.nodes) for replica in place_replicas(topology, node_traits, DEVICES)]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"devices": [H100] * 4}, "devices 4 instead of 8"),
        ({"devices": [{**H100, "name": "H20"}] * 8}, "card H20 (9.0, 80 GiB) instead of NVIDIA H100"),
        ({"devices": [{**H100, "memory_total": None}] * 8}, "card NVIDIA H100 80GB HBM3 (9.0) instead of"),
        ({"versions": {"driver": "535.1"}}, "driver 535.1 instead of 580.95.05"),
        ({"versions": {"driver": "580.95.05", "firmware": "2"}}, "firmware 2 instead of unknown"),
        ({"processor": {"architecture": "aarch64", "model": "Grace"}}, "architecture aarch64 instead of x86_64"),
        ({"versions": {"driver": "580.95.05", "tool": "2"}}, ""),
        ({"processor": {"architecture": "x86_64", "model": "another"}}, ""),
    ],
)
def test_what_nodes_of_a_replica_must_share(changed: dict[str, Any], text: str) -> None:
    difference = compare_traits(ALIKE, collect_node_traits({**FACTS, **changed}))
    assert difference.startswith(text)
    assert bool(difference) == bool(text)


def test_without_devices_the_processors_are_compared() -> None:
    epyc_facts = {**FACTS, "devices": [], "processor": {"architecture": "x86_64", "model": "EPYC"}}
    assert (
        compare_traits(collect_node_traits({**FACTS, "devices": []}), collect_node_traits(epyc_facts))
        == "processor EPYC instead of Xeon"
    )


def test_what_a_terminal_would_obey_is_not_told() -> None:
    hostile = {"architecture": "x86_64", "model": "\x1b[31mXeon\u202e"}
    assert collect_node_traits({**FACTS, "devices": [], "processor": hostile})["processor"] == "\ufffd[31mXeon\ufffd"


def test_super_pods_are_compared() -> None:
    assert (
        compare_traits(collect_node_traits(FACTS, "0"), collect_node_traits(FACTS, "1")) == "super pod 1 instead of 0"
    )


def test_a_replica_takes_nodes_that_are_alike() -> None:
    topology = _topology(Group(name="g", nodes=2))
    placed = place_replicas(topology, {"a": OLDER, "b": ALIKE, "c": OLDER, "d": ALIKE}, DEVICES)
    assert [node.name for node in placed[0].nodes] == ["a", "c"]
    because = placed[0].because
    assert because.because.startswith("2 nodes that are alike: accelerator cuda, architecture x86_64, devices 8")
    assert because.instead == tuple(f"{name}: driver 580.95.05 instead of 535.1" for name in "bd")


def test_groups_that_name_their_nodes_are_placed_first() -> None:
    topology = _topology(Group(name="any", replicas=2), Group(name="own", on=("a",)))
    assert _names(topology, dict.fromkeys("abcd", ALIKE)) == ["b", "c", "a"]


def test_mixed_nodes_of_one_replica_are_an_error_that_says_what_differs() -> None:
    with pytest.raises(InputError) as raised:
        place_replicas(_topology(Group(name="g", nodes=3), nodes="abc"), {"a": ALIKE, "b": OLDER, "c": ALIKE}, DEVICES)
    expected = (
        "group g, replica 0: found no 3 nodes that are alike; compared with a: b: driver 535.1 instead of 580.95.05;"
        " c: alike"
    )
    assert raised.value.problems == (expected,)


def test_every_group_without_nodes_is_reported() -> None:
    groups = (Group(name="g", replicas=2, on=("a",)), Group(name="h", nodes=5))
    with pytest.raises(InputError) as raised:
        place_replicas(_topology(*groups), dict.fromkeys("abcd", ALIKE), DEVICES)
    assert [text.partition(";")[0] for text in raised.value.problems] == [
        "group g, replica 1: found 0 free nodes (none), expected 1",
        "group h, replica 0: found 3 free nodes (b, c, d), expected 5",
    ]


def test_idle_nodes_and_unlike_replicas_are_findings() -> None:
    topology = _topology(Group(name="g", replicas=2), nodes="abc")
    node_traits = {"a": ALIKE, "b": OLDER, "c": ALIKE}
    lines = [*check_placements(topology, place_replicas(topology, node_traits, DEVICES), node_traits, DEVICES)]
    assert lines[0].startswith("TOPO-001: node c runs nothing; add it to a group")
    assert lines[1].startswith("TOPO-007: the replicas of g differ: replica 1 has driver 535.1 instead of 580.95.05;")
    assert len(lines) == 2


def test_servers_share_a_node_by_devices() -> None:
    groups = (
        Group(name="prefill", devices=2, replicas=2),
        Group(name="decode", devices=(6, 7)),
        Group(name="whole"),
    )
    topology = _topology(*groups, nodes="ab")
    known = dict.fromkeys("ab", ALIKE)
    placed = place_replicas(topology, known, DEVICES)
    assert [(replica.nodes[0].name, replica.devices, replica.slot) for replica in placed] == [
        ("a", ((0, 1),), 0),
        ("a", ((2, 3),), 1),
        ("a", ((6, 7),), 2),
        ("b", (), 0),
    ]
    (idle,) = check_placements(topology, placed, known, DEVICES)
    assert idle.startswith("TOPO-001: a part of node a (devices 4-5) runs nothing;")


def test_a_server_on_several_nodes_has_the_first_slot_that_is_free_on_all() -> None:
    groups = (Group(name="one", on=("b",), devices=4), Group(name="two", nodes=2, devices=4))
    placed = place_replicas(_topology(*groups, nodes="ab"), dict.fromkeys("ab", ALIKE), DEVICES)
    assert placed[1].devices == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert [replica.slot for replica in placed] == [0, 1]


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (
            Group(name="g", devices=6),
            Group(name="h", devices=3),
            "found 0 nodes with 3 devices free (none), expected 1",
        ),
        (Group(name="g", devices=(0,)), Group(name="h", devices=(0, 1)), "found 0 nodes with devices 0-1 free"),
        (Group(name="g", devices=1), Group(name="h"), "found 0 free nodes (none), expected 1"),
        (Group(name="g"), Group(name="h", devices=1), "found 0 nodes with 1 device free (none), expected 1"),
    ],
)
def test_a_node_without_the_devices_is_not_free(first: Group, second: Group, text: str) -> None:
    with pytest.raises(InputError) as raised:
        place_replicas(_topology(first, second, nodes="a"), {"a": ALIKE}, DEVICES)
    assert raised.value.problems[0].startswith(f"group h, replica 0: {text}")


@pytest.mark.parametrize(
    ("clusters", "nodes", "warned"),
    [
        ({"a": "x/1", "b": "y/1", "c": "x/1", "d": "y/1"}, ["ac", "bd"], 0),
        ({"a": "x/1", "b": "x/2", "c": "x/1", "d": "x/2"}, ["ac", "bd"], 0),
        ({"a": "x/1", "b": "y/1", "c": "y/1", "d": "y/1"}, ["bc", "ad"], 1),
        ({"a": "x/1"}, ["bc", "ad"], 1),
        ({}, ["ab", "cd"], 0),
    ],
)
def test_a_replica_takes_nodes_that_nvlink_joins(clusters: dict[str, str], nodes: list[str], warned: int) -> None:
    topology = _topology(Group(name="g", nodes=2, replicas=2))
    known = dict.fromkeys("abcd", ALIKE)
    placed = place_replicas(topology, known, DEVICES, clusters)

    assert ["".join(node.name for node in replica.nodes) for replica in placed] == nodes
    joined = ["NVLink joins them" in replica.because.because for replica in placed]
    assert joined == [is_joined(replica.nodes, clusters) for replica in placed]
    warnings = [
        text for text in check_placements(topology, placed, known, DEVICES, clusters) if text.startswith("TOPO-035")
    ]
    assert len(warnings) == warned
