from __future__ import annotations

import pytest

from drydock.core.errors import InputError
from drydock.topology.ports import Need, UsedPort, allocate_ports, find_port_collisions, number_ports


def test_ports_follow_the_base_around_those_taken() -> None:
    needs = [Need("api"), Need("status"), Need("side-channel", 3), Need("kv", 2)]
    assert allocate_ports(needs, 100, [101, 104]) == {"api": 100, "status": 102, "side-channel": 105, "kv": 108}


def test_a_purpose_has_one_port_for_every_group() -> None:
    needs = [Need("kv", 1, 300), Need("kv", 8, 200), Need("z")]
    assert allocate_ports(needs, 100, []) == {"kv": 300, "z": 100}
    assert allocate_ports([*needs, Need("y", 205)], 100, [])["y"] == 308


def test_no_room_is_an_error() -> None:
    with pytest.raises(InputError, match=r"network\.port_base: 65535: no 2 free ports in a row for kv up to 65535"):
        allocate_ports([Need("kv", 2)], 65535, [])


def test_ports_in_a_row_have_names() -> None:
    assert number_ports("kv", 7, range(3)) == {"kv": 7, "kv-1": 8, "kv-2": 9}


def test_a_port_is_for_one_purpose_of_a_node() -> None:
    used_ports = [UsedPort("a", 1, "the router"), UsedPort("b", 1, "api of g"), UsedPort("a", 1, "api of g")]
    assert [text for text, _ in find_port_collisions(used_ports)] == [
        "node a: port 1 is for the router and for api of g"
    ]
    assert find_port_collisions(used_ports[:2]) == []
