"""Several equal hosts: which splits, in which order, and why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoints.core.errors import DOES_NOT_FIT, USAGE, EntrypointError
from entrypoints.decide.parallelism.constraints import possible_splits
from entrypoints.decide.parallelism.fit import Fit, Rules, fit_model
from entrypoints.decide.parallelism.fit_input import read_case, read_space
from entrypoints.decide.parallelism.hosts import (
    FABRIC,
    NVLINK,
    RDMA,
    SLICE,
    SLICE_HOSTS,
    link_between,
    make_reach_fields,
    read_reach,
)
from entrypoints.decide.parallelism.objective import rank_splits
from entrypoints.decide.parallelism.rules import Space, Split
from entrypoints.decide.records import Thresholds
from entrypoints.model.geometry import Geometry
from entrypoints.model.read import ModelFacts
from tests.support.fit_hosts import LLAMA_70B, RULES, host, model, said

MIXTURE = Geometry(
    60, 0, 0, 128, 128, 128, 576, 131072, hidden=7168, vocabulary=129280, intermediate=18432, experts=256,
    expert_width=2048,
)  # fmt: skip
DENSE = model(LLAMA_70B, 405)
EXPERTS = model(MIXTURE, 405, expert_share=0.95)
RULED = RULES._replace(expert="needed")


def space(hosts: int = 2, between: str = "", aim: str | None = None, **changes: Any) -> Space:
    plain = read_space(said("--nnodes", str(hosts), **({"optimize": aim} if aim else {})), 8, 8, between)
    return plain._replace(**changes)


def splits(what: ModelFacts, rules: Rules, there: Space) -> tuple[Split, ...]:
    case = read_case(host(8), what, said(), rules)._replace(space=there)
    return rank_splits(case, possible_splits(case))


def first(what: ModelFacts, rules: Rules = RULED, **changes: Any) -> Split:
    return splits(what, rules, space(**changes))[0]


def on_hosts(*words: str, what: ModelFacts = DENSE, rules: Rules = RULED, memory: int = 80, **changes: Any) -> Fit:
    return fit_model(host(8, memory, "NV18", **changes), what, said(*words), rules)


def shapes(candidate_splits: tuple[Split, ...]) -> list[tuple[int, int, int]]:
    return [(split.tensor, split.pipeline, split.engines) for split in candidate_splits]


# --- which splits ---------------------------------------------------------------------------------------------------


def test_a_dense_model_gets_stages_over_hosts_and_tensor_parallelism_inside() -> None:
    placement = on_hosts("--nnodes", "2")

    assert (placement.tensor, placement.pipeline) == (8, 2)
    assert "only activations cross the link" in placement.values["--pipeline-parallel-size"].because


def test_a_dense_model_that_one_host_holds_gets_engines() -> None:
    placement = on_hosts("--nnodes", "2", what=model(LLAMA_70B, 70))

    assert (placement.tensor, placement.pipeline, placement.data) == (8, 1, 1)
    assert placement.values["--data-parallel-size"].value == "2"
    assert placement.values["--data-parallel-size-local"].value == "1"


def test_one_device_is_not_called_devices() -> None:
    placement = fit_model(host(1, 80, "NV18"), model(LLAMA_70B, 20), said("--nnodes", "2"), RULED)

    assert "inside a host, 1 device on each of 2 equal hosts" in placement.values["--tensor-parallel-size"].because


def test_four_hosts_of_which_two_hold_the_model_run_two_pipelines() -> None:
    placement = on_hosts("--nnodes", "4")

    assert (placement.tensor, placement.pipeline) == (8, 2)
    assert placement.values["--data-parallel-size"].value == "2"
    assert placement.values["--data-parallel-size-local"].value == "1"


def test_a_mixture_of_experts_spreads_them_over_hosts_that_rdma_joins() -> None:
    placement = on_hosts("--nnodes", "2", what=EXPERTS, kernel={"rdma_devices": "mlx5_0"})

    assert (placement.tensor, placement.pipeline) == (8, 1)
    assert placement.values["--data-parallel-size"].value == "2"
    assert placement.values["--enable-expert-parallel"].value is True
    assert "RDMA" in placement.values["--data-parallel-size"].because


def test_a_mixture_of_experts_gets_stages_over_a_link_that_is_not_known() -> None:
    placement = on_hosts("--nnodes", "2", what=EXPERTS)

    assert (placement.tensor, placement.pipeline) == (8, 2)
    assert "--data-parallel-size" not in placement.values
    assert "not known" in placement.values["--pipeline-parallel-size"].because


def test_throughput_gives_a_mixture_of_experts_narrow_engines_on_every_host() -> None:
    split = first(EXPERTS, aim="throughput")

    assert (split.tensor, split.data, split.engines, split.experts) == (1, 8, 16, True)


def test_tensor_parallelism_crosses_hosts_of_one_fabric() -> None:
    usual = shapes(splits(DENSE, RULED, space(between=FABRIC)))

    assert usual[0] == (8, 1, 2)
    assert usual.index((16, 1, 1)) < usual.index((8, 2, 1))
    assert shapes(splits(DENSE, RULED, space(between=FABRIC, aim="latency")))[0] == (16, 1, 1)
    assert shapes(splits(DENSE, RULED, space(between=RDMA)))[-1] == (16, 1, 1)


def test_hosts_that_nvlink_joins_are_split_as_one_host() -> None:
    large, small = model(None, 405), model(None, 8)

    assert shapes(splits(large, RULED, space(between=NVLINK)))[0] == (16, 1, 1)
    assert shapes(splits(small, RULED, space(between=NVLINK)))[0] == (8, 1, 2)
    assert shapes(splits(large, RULED, space(between=NVLINK, aim="throughput")))[0] == (1, 1, 16)


def test_hosts_of_one_fabric_shorten_a_length_before_they_get_stages() -> None:
    rules = RULED._replace(link=FABRIC)
    shorter = on_hosts("--nnodes", "2", rules=rules, memory=60)
    demanded = on_hosts("--nnodes", "2", "--max-model-len", "131072", rules=rules, memory=60)

    assert (shorter.tensor, shorter.pipeline, shorter.is_shortened) == (16, 1, True)
    assert (demanded.tensor, demanded.pipeline, demanded.is_shortened) == (8, 2, False)


def test_ray_runs_one_engine_over_all_hosts() -> None:
    candidate_splits = splits(DENSE, RULED._replace(ways=("ray",)), space(hosts=4))

    assert {split.engines for split in candidate_splits} == {1}
    assert (candidate_splits[0].tensor, candidate_splits[0].pipeline) == (8, 4)


def test_only_engines_cross_hosts_where_the_stack_can_do_nothing_else() -> None:
    candidate_splits = splits(DENSE, RULED._replace(ways=("engines",)), space(hosts=4))

    assert all(split.world <= 8 for split in candidate_splits)
    assert candidate_splits[0].engines == 4


def test_an_image_for_one_host_refuses_several() -> None:
    with pytest.raises(EntrypointError) as error:
        splits(DENSE, RULED._replace(ways=()), space())

    assert error.value.code == USAGE
    assert "--nnodes 2" in error.value.message


def test_the_runtimes_sizes_are_of_one_host() -> None:
    rules = RULED._replace(ways=("ray",), pipeline=False, sizes=(1, 2, 4, 8))

    assert shapes(splits(DENSE, rules, space(hosts=2, between=FABRIC))) == [(16, 1, 1)]


# --- the user's own numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-tp", "16"), (16, 1, 1)),
        (("-tp", "4", "-pp", "4"), (4, 4, 1)),
        (("-pp", "2"), (8, 2, 1)),
        (("-dp", "16"), (1, 1, 16)),
        (("-dp", "4", "-tp", "4"), (4, 1, 4)),
    ],
)
def test_what_the_user_sets_is_kept(words: tuple[str, ...], expected: tuple[int, int, int]) -> None:
    user_space = read_space(said("--nnodes", "2", *words), 8, 8)

    assert shapes(splits(DENSE, RULED, user_space))[0] == expected


def test_more_devices_than_all_hosts_have_are_refused() -> None:
    with pytest.raises(EntrypointError) as error:
        on_hosts("--nnodes", "2", "-tp", "8", "-pp", "4")

    assert error.value.code == USAGE
    assert "needs 32 devices, 2 hosts have 16" in error.value.message


# --- one host is too small ------------------------------------------------------------------------------------------


def test_a_refusal_names_the_number_of_hosts_that_hold_the_model() -> None:
    with pytest.raises(EntrypointError) as error:
        on_hosts()

    assert error.value.code == DOES_NOT_FIT
    assert "--nnodes 2 fits: -tp 8 -pp 2" in error.value.hint


def test_a_refusal_names_no_hosts_where_the_image_serves_on_one() -> None:
    with pytest.raises(EntrypointError) as error:
        on_hosts(rules=RULED._replace(ways=()))

    assert "--nnodes" not in error.value.hint


# --- what is known of the link, and of the stack --------------------------------------------------------------------


def test_the_link_is_the_devices_own_else_what_the_kernel_shows() -> None:
    assert link_between(host(8), {}, "") == ""
    assert link_between(host(8, kernel={"rdma_devices": "mlx5_0"}), {}, "") == RDMA
    assert link_between(host(8), {}, FABRIC) == FABRIC
    joined = {"nvlink_cluster": "a1b2/3", "rdma_devices": "mlx5_0"}
    assert link_between(host(4, kernel=joined), {}, "") == NVLINK
    assert link_between(host(4, kernel=joined), {"NCCL_MNNVL_ENABLE": "0"}, "") == RDMA


def test_a_slice_is_a_fabric_if_the_environment_names_its_hosts() -> None:
    assert link_between(host(8), {}, SLICE) == ""
    assert link_between(host(8), {SLICE_HOSTS: "t0"}, SLICE) == ""
    assert link_between(host(8), {SLICE_HOSTS: "t0,t1"}, SLICE) == FABRIC


def test_a_stack_without_the_data_serves_on_one_host() -> None:
    assert read_reach(Thresholds({})).ways == ()
    assert make_reach_fields(Thresholds({"hosts_ways": {"value": ["ray"]}, "hosts_link": {"value": "rdma"}})) == {
        "ways": ("ray",),
        "link": "rdma",
    }


# --- always ---------------------------------------------------------------------------------------------------------


@given(
    st.integers(2, 6),
    st.sampled_from((4, 8, 16)),
    st.sampled_from(("", RDMA, FABRIC)),
    st.sampled_from((None, "latency", "throughput")),
    st.sampled_from((DENSE, EXPERTS, model(None, 405))),
    st.sampled_from((("native",), ("ray",), ("engines",), ("engines", "ray"))),
)
def test_every_split_is_the_same_on_each_host(
    hosts: int, devices: int, between: str, aim: str | None, what: ModelFacts, ways: tuple[str, ...]
) -> None:
    """vLLM: all ranks are divisible by the number of nodes, and engines by hosts or hosts by engines."""
    there = space(hosts, between, aim, devices=devices, wide=devices)
    for split in splits(what, RULED._replace(ways=ways), there):
        ranks = split.world * split.engines
        assert ranks % hosts == 0
        assert ranks <= hosts * devices
        assert split.engines % hosts == 0 or hosts % split.engines == 0
        assert split.data == max(1, split.engines // hosts)
