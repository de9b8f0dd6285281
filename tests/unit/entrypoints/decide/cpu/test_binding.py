"""Cores for ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoints.core.parse import parse_id_list
from entrypoints.decide.cpu.binding import (
    Domain,
    Rank,
    count_reserved_cores,
    format_thread_binding,
    list_rank_domains,
    place_ranks,
    reserved_by_user,
)
from entrypoints.decide.records import Thresholds
from tests.support.sample import PROFILE, facts, with_threads

T = Thresholds(PROFILE["thresholds"])


def domain(node: int, cores: int, memory: int = 1) -> Domain:
    return Domain(node, tuple((node * 100 + core,) for core in range(cores)), memory)


def test_a_node_needs_cores_and_memory() -> None:
    host = facts(cores=4, nodes=2)
    hollow = host.nodes[1]._replace(memory_total=0)

    assert [node_domain.node for node_domain in list_rank_domains(host)] == [0, 1]
    assert [node_domain.node for node_domain in list_rank_domains(host._replace(nodes=(host.nodes[0], hollow)))] == [0]
    assert [node_domain.node for node_domain in list_rank_domains(host, visible=(1,))] == [1]


def test_where_no_node_has_both_everything_is_one() -> None:
    host = facts(cores=4, nodes=2)
    hollow = tuple(node._replace(memory_total=0) for node in host.nodes)

    assert [len(node_domain.cores) for node_domain in list_rank_domains(host._replace(nodes=hollow))] == [4]


def test_one_thread_of_each_core_is_bound_and_only_what_may_be_used() -> None:
    host = with_threads(facts(cores=3), 2)
    limited = host._replace(cpus=tuple(cpu for cpu in host.cpus if cpu.id != 2))

    assert format_thread_binding(place_ranks(list_rank_domains(host), 1, None), (0,), 1) == "0,2,4"
    assert format_thread_binding(place_ranks(list_rank_domains(limited), 1, None), (0,), 1) == "0,3-4"


def test_power_binds_several_threads_of_each_core() -> None:
    host = with_threads(facts(cores=2), 8)

    assert format_thread_binding(place_ranks(list_rank_domains(host), 1, None), (0,), 4) == "0-3,8-11"


def test_the_nodes_with_most_memory_come_first_and_ranks_go_by_number() -> None:
    node_domains = (domain(0, 4, 5), domain(1, 4, 9), domain(3, 4, 7))

    assert [rank.node for rank in place_ranks(node_domains, 1, None)] == [1]
    assert [rank.node for rank in place_ranks(node_domains, 2, None)] == [1, 3]


def test_more_ranks_than_nodes_share_cores_and_memory() -> None:
    ranks = place_ranks((domain(0, 5, 100),), 2, None)

    assert [rank.cores for rank in ranks] == [((0,), (1,)), ((2,), (3,), (4,))]
    assert [rank.memory for rank in ranks] == [50, 50]


def test_cpu_time_limits_cores_and_leaves_one_at_least() -> None:
    assert [len(rank.cores) for rank in place_ranks((domain(0, 8), domain(1, 8)), 2, 4)] == [2, 2]
    assert [len(rank.cores) for rank in place_ranks((domain(0, 8), domain(1, 8)), 2, 1)] == [1, 1]


@pytest.mark.parametrize(("cores", "reserved"), [(1, 0), (15, 0), (16, 1), (31, 1), (32, 2), (200, 2)])
def test_cores_are_kept_for_the_server_only_where_that_pays(cores: int, reserved: int) -> None:
    assert count_reserved_cores(Rank(0, domain(0, cores).cores, 1), T) == reserved


def test_a_users_reserved_cores_are_split_as_vllm_splits_them() -> None:
    assert reserved_by_user(3, 2) == (1, 2)
    assert reserved_by_user(4, 2) == (2, 2)
    assert reserved_by_user(0, 3) == (0, 0, 0)


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.integers(1, 6),
    st.none() | st.integers(1, 50),
    st.integers(0, 20),
)
def test_every_rank_binds_some_core_and_cores_are_shared_only_when_there_are_too_few(
    sizes: list[int], count: int, limit: int | None, keep: int
) -> None:
    node_domains = tuple(domain(node, size) for node, size in enumerate(sizes))
    ranks = place_ranks(node_domains, count, limit)
    lists = [parse_id_list(text) for text in format_thread_binding(ranks, (keep,) * count, 1).split("|")]
    bound = [cpu for cpus in lists for cpu in cpus]

    assert len(lists) == count
    assert all(lists)
    assert len(bound) == len(set(bound)) or count > min(sizes)
