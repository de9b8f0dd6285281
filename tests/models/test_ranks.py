"""Models that one recorded host cannot hold, on several: each host's command, and what it must add up to."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest

from entrypoints.core.errors import EntrypointError
from entrypoints.core.records import RankPlan
from tests.evidence import ranks_page
from tests.evidence.ranks_page import ADDRESS, CLUSTERS, Cluster

KNOWN = ranks_page.models()
SHORT = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size"}


@cache
def made(cluster: Cluster, *flags: str) -> tuple[RankPlan, ...]:
    return ranks_page.plan(cluster, KNOWN[cluster.model], "--master-addr", ADDRESS, *flags).ranks


def flag(rank: RankPlan, name: str, default: str = "") -> str:
    return dict(pairwise(rank.argv)).get(name, default)


def number(rank: RankPlan, name: str) -> int:
    return int(flag(rank, name, "1"))


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_one_host_does_not_hold_the_model_and_the_hint_says_how_many_do(cluster: Cluster) -> None:
    assert "--nnodes" in ranks_page.refusal(cluster)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_every_host_has_one_command_and_all_devices_work(cluster: Cluster) -> None:
    rank_plans = made(cluster)
    head = rank_plans[0]
    world = number(head, "--tensor-parallel-size") * number(head, "--pipeline-parallel-size")
    devices = len(ranks_page.expect.read(cluster.host, ranks_page.expect.profile_of(cluster.host)).devices)

    assert [rank.rank for rank in rank_plans] == list(range(cluster.hosts))
    assert world * number(head, "--data-parallel-size") == cluster.hosts * devices


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_ports_and_addresses_are_the_same_on_every_host(cluster: Cluster) -> None:
    rank_plans = made(cluster)

    for name in ("--master-addr", "--master-port", "--data-parallel-address", "--data-parallel-rpc-port"):
        assert len({flag(rank, name) for rank in rank_plans if "ray.scripts.scripts" not in rank.argv}) == 1
    joined = [word for rank in rank_plans[1:] for word in rank.argv if word.startswith(ADDRESS) and ":" in word]
    assert len(set(joined)) <= 1


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_only_the_first_host_answers_clients(cluster: Cluster) -> None:
    first, *later_ranks = made(cluster)

    assert "--headless" not in first.argv
    assert all("--headless" in rank.argv or "ray.scripts.scripts" in rank.argv for rank in later_ranks)
    assert all("serve" in rank.argv for rank in later_ranks if "--headless" in rank.argv)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_engines_tile_the_hosts(cluster: Cluster) -> None:
    engine_ranks = [rank for rank in made(cluster) if number(rank, "--data-parallel-size") > 1]
    starts = [int(flag(rank, "--data-parallel-start-rank", "0")) for rank in engine_ranks]
    local = number(engine_ranks[0], "--data-parallel-size-local") if engine_ranks else 1

    if engine_ranks and local * cluster.hosts == number(engine_ranks[0], "--data-parallel-size"):
        assert starts == [rank * local for rank in range(cluster.hosts)]
    else:
        assert not any(starts)  # vLLM takes the engine's rank from the host's


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_each_host_plans_for_itself_what_the_first_planned_for_it(cluster: Cluster) -> None:
    last = cluster.hosts - 1
    model = KNOWN[cluster.model]
    planned = made(cluster)[last]
    host_plan = ranks_page.plan(cluster, model, "--master-addr", ADDRESS, "--node-rank", str(last))

    assert sorted(host_plan.argv) == sorted(planned.argv)
    assert host_plan.env == planned.env
    assert host_plan.ranks[0].argv == made(cluster)[0].argv


@pytest.mark.parametrize("host", sorted({cluster.host for cluster in CLUSTERS}))
@pytest.mark.parametrize("aim", [None, "latency", "throughput"])
@pytest.mark.parametrize("hosts", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_nothing_is_refused_that_half_of_the_memory_holds(host: str, aim: str | None, hosts: int) -> None:
    profile = ranks_page.expect.profile_of(host)
    devices = ranks_page.expect.read(host, profile).devices
    memory = {"v6e": 31, "v5p": 95}.get(devices[0].architecture, (devices[0].memory_total or 0) >> 30) << 30
    for model in KNOWN.values():
        even = model.geometry is not None and model.geometry.divides(len(devices)) and not model.quantization
        if not even or not model.weights or model.weights.loaded(2) * 2 > memory * len(devices) * hosts:
            continue
        try:
            serve_plan = ranks_page.plan(Cluster(host, hosts, model.name, aim), model)
        except EntrypointError as error:
            pytest.fail(f"{model.name}: {error}")
        assert len(serve_plan.ranks) == hosts
