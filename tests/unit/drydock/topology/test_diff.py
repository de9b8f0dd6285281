from __future__ import annotations

from drydock.topology.diff import Change, as_text, compare, options
from drydock.topology.planned import Rank, Replica, RouterPlan, TopologyPlan


def _rank(node: str, *argv: str, port: int = 1) -> Rank:
    command = ("python3", "-m", "server", *argv)
    return Rank(node=node, address=node, rank=0, argv=command, words=(), env={"A": "1"}, ports={"api": port})


def _plan(*ranks: Rank, router: str = "x") -> TopologyPlan:
    replicas = tuple(
        Replica(group="g", role="serve", number=number, ranks=(rank,)) for number, rank in enumerate(ranks)
    )
    return TopologyPlan(
        model="m",
        image="i",
        accelerator="cpu",
        variant="v",
        replicas=replicas,
        router=RouterPlan(node="n", address="n", port=1, argv=("vllm-router", "--policy", router), image="r"),
    )


def test_equal_plans_have_no_differences() -> None:
    plan = _plan(_rank("a", "--x", "1"))
    assert compare(plan, plan) == ()
    assert as_text(()) == "no differences\n"


def test_ranks_commands_ports_and_the_router_are_compared() -> None:
    first = _plan(_rank("a", "--x", "1", "--y"), _rank("b"))
    second = _plan(_rank("a", "--x=2", port=3), router="z")
    where = "group g, replica 0, rank 0"
    changes = compare(first, second)
    assert changes == (
        Change(where, "--x", "1", "2"),
        Change(where, "--y", "", None),
        Change(where, "port api", "1", "3"),
        Change("group g, replica 1, rank 0", "rank", "on node b", None),
        Change("router", "--policy", "x", "z"),
    )
    assert as_text(changes).startswith(f"{where}\n  --x\n    - 1\n    + 2\n  --y\n    - \n  port api\n")


def test_a_command_is_read_as_options() -> None:
    assert options(("a", "b", "--c", "1", "2", "--d", "--e=3", "--c", "4")) == {
        "command": "a b",
        "--c": "1 2 4",
        "--d": "",
        "--e": "3",
    }
