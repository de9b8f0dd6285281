"""Which devices sit together."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType

import pytest

from entrypoints.core.records import Device, Link
from entrypoints.decide.parallelism.devices import (
    FABRIC,
    FAR,
    SOCKET,
    arrange_devices,
    count_widest_island,
    find_islands,
    rate_link,
)
from tests.support.fit_hosts import device


def cards(count: int, nodes: tuple[int, ...] = ()) -> tuple[Device, ...]:
    return tuple(device(number, node=nodes[number] if nodes else None) for number in range(count))


def groups(device_groups: Iterable[tuple[Device, ...]]) -> list[list[int]]:
    return [[gpu.number for gpu in group] for group in device_groups]


@pytest.mark.parametrize("kind", ["NV18", "NV4", "XGMI", "HCCS", "SIO", "MDF", "XL16", "XL*", "NeuronLink"])
def test_a_vendors_own_link_is_the_fastest(kind: str) -> None:
    assert rate_link(kind) == FABRIC


@pytest.mark.parametrize(
    ("kind", "fast"), [("PIX", SOCKET), ("PHB", SOCKET), ("NODE", SOCKET), ("PCIE", SOCKET), ("SYS", FAR), ("NA", FAR)]
)
def test_pcie_is_slower_and_slowest_between_processors(kind: str, fast: int) -> None:
    assert rate_link(kind) == fast


def test_a_ring_is_one_island() -> None:
    ring = tuple(Link(min(n, (n + 1) % 8), max(n, (n + 1) % 8), "NeuronLink") for n in range(8))

    assert groups(find_islands(cards(8), ring, FABRIC)) == [list(range(8))]
    assert count_widest_island(cards(8), ring) == 8


def test_pcie_of_one_processor_is_an_island_where_nothing_is_faster() -> None:
    links = tuple(Link(a, b, "NODE" if a // 4 == b // 4 else "SYS") for a in range(8) for b in range(a + 1, 8))

    assert count_widest_island(cards(8), links) == 4
    assert groups(arrange_devices(cards(8), links, 4, 2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_links_between_slow_pairs_only_do_not_matter() -> None:
    assert count_widest_island(cards(2), (Link(0, 1, "SYS"),)) == 2
    assert count_widest_island(cards(4), ()) == 4


def test_links_to_devices_that_are_left_out_do_not_count() -> None:
    links = (Link(0, 1, "NV4"), Link(2, 3, "NV4"))

    assert count_widest_island(cards(4)[1:3], links) == 2


def test_the_smallest_island_that_is_enough_is_taken_first() -> None:
    links = (Link(0, 1, "NV4"), Link(1, 2, "NV4"), Link(0, 2, "NV4"), Link(3, 4, "NV4"))

    assert groups(arrange_devices(cards(5), links, 2, 1)) == [[3, 4]]
    assert groups(arrange_devices(cards(5), links, 3, 1)) == [[0, 1, 2]]
    assert groups(arrange_devices(cards(5), links, 1, 2)) == [[3], [4]]


def test_a_numa_node_with_enough_devices_is_taken_whole() -> None:
    assert groups(arrange_devices(cards(6, (0, 0, 1, 1, 1, 1)), (), 3, 1)) == [[2, 3, 4]]
    assert groups(arrange_devices(cards(6, (0, 0, 1, 1, 1, 1)), (), 2, 1)) == [[0, 1]]
    assert groups(arrange_devices(cards(6, (0, 0, 0, 1, 1, 1)), (), 4, 1)) == [[0, 1, 2, 3]]


def test_a_split_island_is_no_island_any_more() -> None:
    row = tuple(Link(number, number + 1, "NV4") for number in range(5))

    assert groups(arrange_devices(cards(6, (1, 1, 0, 0, 1, 1)), row, 2, 3)) == [[2, 3], [0, 1], [4, 5]]


def test_twice_the_devices_take_four_times_the_steps_as_their_links_do() -> None:
    assert steps(64) < 5 * steps(32)


def steps(count: int) -> int:
    """Count the lines that run when each of so many devices, all joined, gets an engine of its own."""
    links = tuple(Link(first, second, "NV18") for first in range(count) for second in range(first + 1, count))
    lines, before = 0, sys.gettrace()

    def line(_frame: FrameType, event: str, _argument: object) -> object:
        nonlocal lines
        lines += event == "line"
        return line

    sys.settrace(line)
    try:
        arrange_devices(cards(count), links, 1, count)
    finally:
        sys.settrace(before)
    return lines
