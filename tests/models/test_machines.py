"""The machines that recommendations are compared on: what is handed over, cut from a recording or continued."""

from __future__ import annotations

import pytest

from tests.support import machines
from tests.support.hosts import expect
from tests.support.planned import host

COUNTS = (1, 2, 8)
ALIKE = 0.9
"""Least ratio of the memory of devices of one kind: firmware takes more of one than of another."""


@pytest.mark.parametrize("kind", machines.KINDS)
def test_a_machine_has_as_many_devices_as_are_handed_over_each_with_its_own_address(kind: str) -> None:
    known = machines.KINDS[kind]
    for count in COUNTS:
        facts = machines.machine(kind, count).facts
        if machines.accelerator(kind) == "cpu":
            assert len(facts.nodes) == count
            continue
        devices = facts.devices
        assert [device.number for device in devices] == [*range(len(devices))]
        assert sum(device.cores for device in devices) == count * known.ranks
        cards = {device.number if device.card is None else device.card for device in devices}
        assert len({device.bus for device in devices}) >= len(cards)
        assert not any(device.busy for device in devices)
        sizes = {device.memory_total or 0 for device in devices}
        assert known.cores > 1 or min(sizes) >= ALIKE * max(sizes)
        assert all(link.first < link.second < len(devices) for link in facts.links)


@pytest.mark.parametrize("kind", machines.KINDS)
def test_a_kind_that_is_not_recorded_says_where_its_memory_and_links_are_from(kind: str) -> None:
    known = machines.KINDS[kind]
    assert known.host in expect.names()
    changed = known.name or known.memory is not None or known.link is not None
    assert bool(known.source) == bool(changed)


def test_the_first_devices_of_a_recording_are_as_recorded() -> None:
    recorded, cut = host("cuda-h100-8x").facts, machines.machine("h100", 4).facts

    assert cut.devices == recorded.devices[:4]
    assert set(cut.links) == {link for link in recorded.links if link.second < 4}


@pytest.mark.parametrize(
    ("kind", "count", "pair", "link"),
    [
        ("h100", 8, (0, 7), "NV18"),
        ("max1550", 8, (4, 5), "MDF"),  # dies of the third card
        ("max1550", 8, (3, 4), "XL16"),
        ("inf2", 24, (5, 6), "NeuronLink"),
    ],
)
def test_further_devices_are_linked_as_those_recorded(kind: str, count: int, pair: tuple[int, int], link: str) -> None:
    links = {(each.first, each.second): each.kind for each in machines.machine(kind, count).facts.links}

    assert links[pair] == link


def test_a_chip_with_two_cores_is_two_devices() -> None:
    devices = machines.machine("v7x", 4).facts.devices

    assert len(devices) == 8
    assert [device.card for device in devices] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_some_cores_of_a_chip_have_their_share_of_its_memory() -> None:
    whole, part = machines.machine("trn2", 5).facts.devices

    assert (whole.cores, part.cores) == (4, 1)
    assert part.memory_total == (whole.memory_total or 0) // 4


def test_processors_have_a_node_for_each_device_with_its_own_cores() -> None:
    facts = machines.machine("xeon", 4).facts

    assert len({cpu.id for cpu in facts.cpus}) == len(facts.cpus)
    assert {cpu.node for cpu in facts.cpus} == {0, 1, 2, 3}
    assert facts.memory.total == sum(node.memory_total for node in facts.nodes)
    assert "amx_bf16" in facts.processor.flags
