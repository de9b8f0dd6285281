from __future__ import annotations

import pytest

from drydock.core.errors import InputError
from drydock.topology.plan_diff import Change, compare_topology_plans, format_plan_changes, split_command_options
from drydock.topology.plan_model import Rank, Replica, RouterPlan, TopologyPlan
from tests.support import topologies


def _rank(node: str, *argv: str, port: int = 1) -> Rank:
    command = ("python3", "-m", "server", *argv)
    return Rank(node=node, address=node, rank=0, argv=command, words=("serve",), env={"A": "1"}, ports={"api": port})


def _plan(*ranks: Rank, router: str = "x") -> TopologyPlan:
    replicas = tuple(
        Replica(group="g", role="serve", number=number, ranks=(rank,)) for number, rank in enumerate(ranks)
    )
    return TopologyPlan(
        model="m",
        image="i",
        accelerator="cpu",
        variant="v",
        api_key="required",
        replicas=replicas,
        router=RouterPlan(node="n", address="n", port=1, argv=("vllm-router", "--policy", router), image="r"),
    )


def test_equal_plans_have_no_differences() -> None:
    plan = _plan(_rank("a", "--x", "1"))
    assert compare_topology_plans(plan, plan) == ()
    assert format_plan_changes(()) == "no differences\n"


def test_ranks_commands_ports_and_the_router_are_compared() -> None:
    first = _plan(_rank("a", "--x", "1", "--y"), _rank("b"))
    second = _plan(_rank("a", "--x=2", port=3), router="z")
    where = "group g, replica 0, rank 0"
    changes = compare_topology_plans(first, second)
    assert changes == (
        Change(where, "--x", "1", "2"),
        Change(where, "--y", "", None),
        Change(where, "port api", "1", "3"),
        Change("group g, replica 1, rank 0", "rank", "on node b", None),
        Change("router", "--policy", "x", "z"),
    )
    assert format_plan_changes(changes).startswith(f"{where}\n  --x\n    - 1\n    + 2\n  --y\n    - \n  port api\n")


def _changes(plan: TopologyPlan, **update: object) -> list[tuple[str, ...]]:
    changed_plan = topologies.with_rank(plan, **update)
    return [
        (change.setting, str(change.first), str(change.second)) for change in compare_topology_plans(plan, changed_plan)
    ]


ENV = [("env node", "None", "b"), ("env address", "None", "c")]


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        ({"words": ("serve", "--load-format", "dummy")}, [("argument --load-format", "None", "dummy")]),
        ({"architecture": "sm_90"}, [("architecture", "", "sm_90")]),
        ({"argv": ("a", "--x", "1 2")}, [("--x", "1 2", "'1 2'")]),
        ({"argv": ("a", "--x", "1", "2", "--y=")}, [("--y", "None", "''")]),
        ({"env": {"node": "b", "address": "c"}}, [("env A", "1", "None"), *ENV]),
    ],
    ids=["words", "architecture", "one value or two", "an empty value", "env"],
)
def test_nothing_that_a_rank_runs_is_left_out(update: dict[str, object], expected: list[tuple[str, ...]]) -> None:
    plan = topologies.with_rank(_plan(_rank("a")), argv=("a", "--x", "1", "2"))
    assert _changes(plan, **update) == expected


def test_an_argument_that_is_an_option_too_is_shown_once() -> None:
    plan = _plan(_rank("a", "--x", "1"))
    assert _changes(plan, words=("plan", "--y", "2"), argv=("python3", "-m", "server", "--y", "2")) == [
        ("--x", "1", "None"),
        ("--y", "None", "2"),
        ("argument command", "serve", "plan"),
    ]


def test_role_and_router_are_compared() -> None:
    plan = _plan(_rank("a"))
    assert plan.router
    router = RouterPlan(node="m", address="o", port=2, argv=plan.router.argv, image="s", name="t")
    changed_plan = topologies.with_replica(plan, role="decode").model_copy(update={"router": router})
    assert [(change.where.split(",")[0], *change[1:]) for change in compare_topology_plans(plan, changed_plan)] == [
        ("group g", "role", "serve", "decode"),
        ("router", "name", "router", "t"),
        ("router", "image", "r", "s"),
        ("router", "node", "n", "m"),
        ("router", "address", "n", "o"),
        ("router", "port", "1", "2"),
    ]


def test_a_rank_that_a_plan_has_twice_is_refused() -> None:
    plan = _plan(_rank("a"))
    twice = plan.model_copy(update={"replicas": plan.replicas * 2})
    with pytest.raises(InputError, match="group g, replica 0, rank 0: found twice, expected once"):
        compare_topology_plans(plan, twice)


def test_a_command_is_read_as_options() -> None:
    assert split_command_options(("a", "b", "--c", "1", "2", "--d", "--e=3", "--c", "4")) == {
        "command": "a b",
        "--c": "1 2 4",
        "--d": "",
        "--e": "3",
    }
