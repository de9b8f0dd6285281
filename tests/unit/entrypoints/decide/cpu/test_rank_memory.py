"""Memory that is really there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from entrypoints.core.records import Facts
from entrypoints.decide.cpu.binding import list_rank_domains, place_ranks
from entrypoints.decide.cpu.rank_memory import (
    BLOCK,
    CacheDemand,
    compute_useful_cache,
    divide_weights,
    find_longest_sequence,
    smallest_room,
    whole_gib,
)
from entrypoints.decide.records import Thresholds
from entrypoints.model.geometry import Geometry
from entrypoints.model.weights import Weights
from tests.support.sample import GIB, PROFILE, facts

T = Thresholds(PROFILE["thresholds"])
WEIGHTS = Weights(on_disk=8 * GIB, elements=4 * GIB, other=0)
G = Geometry(layers=32, sliding_layers=0, window=0, heads=32, kv_heads=8, head_size=128, latent=0, max_length=8192)


def room(host: Facts, ranks: int = 1) -> tuple[str, float]:
    placed = place_ranks(list_rank_domains(host), ranks, None)
    rank_room = smallest_room(host, placed, divide_weights(WEIGHTS, 2, ranks, ranks), T)
    return rank_room.pool, rank_room.left / GIB


def test_one_rank_takes_weights_and_the_processes() -> None:
    assert room(facts(memory=64 * GIB)) == ("NUMA node 0", 64 - 8 - 1.5 - 1.5)


def test_ranks_share_weights_and_the_servers_part() -> None:
    assert room(facts(nodes=2, memory=64 * GIB), ranks=2) == ("NUMA node 0", 32 - 4 - 1.5 - 1.5)


def test_the_nodes_memory_decides_where_it_is_less_than_the_hosts() -> None:
    host = facts(nodes=2, memory=64 * GIB)
    tight = host._replace(nodes=(host.nodes[0], host.nodes[1]._replace(memory_free=10 * GIB)))

    assert room(tight, ranks=2) == ("NUMA node 1", 10 - 4 - 1.5 - 1.5)


def test_memory_in_use_is_not_there() -> None:
    host = facts(memory=64 * GIB)

    assert room(host._replace(memory=host.memory._replace(available=20 * GIB))) == ("available memory", 20 - 8 - 3)


def test_a_containers_limit_also_holds_the_weight_files_cached_pages() -> None:
    host = facts(memory=64 * GIB)
    limited = host._replace(cgroup=host.cgroup._replace(memory_limit=24 * GIB, memory_used=GIB))

    assert room(limited) == ("the container's memory limit", 24 - 1 - 8 - 8 - 3)


def test_a_limit_above_the_hosts_memory_is_none() -> None:
    host = facts(memory=64 * GIB)

    assert room(host._replace(cgroup=host.cgroup._replace(memory_limit=65 * GIB)))[0] == "NUMA node 0"


def test_too_little_memory_leaves_nothing_rather_than_less_than_nothing() -> None:
    assert room(facts(memory=4 * GIB)) == ("NUMA node 0", 0)


def test_a_share_of_the_room_is_cut_to_whole_gib() -> None:
    rank_room = smallest_room(
        facts(memory=64 * GIB), place_ranks(list_rank_domains(facts()), 1, None), divide_weights(None, 2, 1, 1), T
    )

    assert whole_gib(rank_room, 0.9) == int(61 * 0.9)


def test_no_more_cache_is_useful_than_all_sequences_fill_or_the_cores_keep_busy() -> None:
    token = 2 * 32 * 8 * 128 * 2
    few = compute_useful_cache(G, CacheDemand(length=8192, sequences=4, tokens=1 << 30), 2, 1)
    slow = compute_useful_cache(G, CacheDemand(length=8192, sequences=128, tokens=16384), 2, 1)
    one = compute_useful_cache(G, CacheDemand(length=131072, sequences=128, tokens=1), 2, 1)

    assert few.space == 4 * 8192 * token // GIB
    assert "4 sequences" in few.because
    assert slow.space == 16384 * token // GIB
    assert one.space == 131072 * token // GIB


@given(st.integers(0, 1 << 40), st.integers(0, 32), st.integers(1, 4096))
def test_the_longest_sequence_fits_with_a_block_to_spare_and_one_block_more_would_not(
    space: int, sliding: int, window: int
) -> None:
    model = G._replace(sliding_layers=min(sliding, 31), window=window)
    length = find_longest_sequence(model, space, 2, 1)

    assert length % BLOCK == 0
    assert model.kv_bytes(length, 2, 1) <= space or length == 0
    assert model.kv_bytes(length + 2 * BLOCK, 2, 1) > space
