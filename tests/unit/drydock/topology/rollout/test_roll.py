"""Servers are replaced as a whole, or not at all."""

from __future__ import annotations

import pytest

from drydock.core.errors import InputError, RolloutError
from drydock.topology.planned import TopologyPlan
from drydock.topology.rollout import known, ready, roll, slices
from tests.support import topologies
from tests.support.fake_topology import Engine, Servers

OLD = topologies.disaggregated(1, 1)
SERVERS = ("prefills-0-0", "decodes-0-0")
NEW_SERVERS = ("prefills-s2-0-0", "decodes-s2-0-0")


def moved(plan: TopologyPlan, by: int) -> TopologyPlan:
    """Return a plan with other ports, as the planner gives them."""
    text = plan.model_dump_json().replace(':20000"', f':{20000 + by}"')
    found = TopologyPlan.model_validate_json(text)
    replicas = tuple(
        replica.model_copy(
            update={
                "ranks": tuple(
                    rank.model_copy(update={"ports": {name: port + by for name, port in rank.ports.items()}})
                    for rank in replica.ranks
                )
            }
        )
        for replica in found.replicas
    )
    return found.model_copy(update={"replicas": replicas})


NEW = slices.numbered(moved(OLD, 100), 2)


@pytest.fixture
def engine() -> Engine:
    return Engine(OLD)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    monkeypatch.setattr(known, "COUNTED", 0.0)
    monkeypatch.setattr(ready, "EVERY", 0.0)
    monkeypatch.setattr(roll, "QUIET", 0.0)
    found = Servers()
    found.routes = "10.2.0.11:20100"
    return found


def how(servers: Servers, seconds: float = 5.0) -> roll.RollOptions:
    return roll.RollOptions(2, seconds, servers)


def test_new_servers_start_beside_the_old_ones_are_proved_and_then_replace_them(
    engine: Engine, servers: Servers
) -> None:
    kept: list[tuple[TopologyPlan, ...]] = []
    shown = roll.roll(OLD, NEW, engine, kept.append, how(servers))

    assert engine.started == [
        (*SERVERS, *NEW_SERVERS, "router", "router-s2"),
        (*NEW_SERVERS, *SERVERS, "router"),
        (*NEW_SERVERS, "router"),
    ]
    assert kept[-1] == (NEW,)
    assert shown.pairs[0].prefill == "prefills-s2-0-0"


def test_a_wrong_new_server_leaves_the_old_ones_serving(engine: Engine, servers: Servers) -> None:
    servers.wrong.add("10.2.0.11:20100")
    kept: list[tuple[TopologyPlan, ...]] = []
    with pytest.raises(RolloutError, match="wrong answer"):
        roll.roll(OLD, NEW, engine, kept.append, how(servers))

    assert engine.plans == (OLD,)
    assert kept[-1] == (OLD,)


def test_new_servers_that_never_get_ready_are_removed(engine: Engine, servers: Servers) -> None:
    servers.ready["10.2.0.10:20101"] = "loading"
    with pytest.raises(RolloutError, match=r"prefills-s2-0-0: not ready after 0 s: load, loading"):
        roll.roll(OLD, NEW, engine, lambda _: None, how(servers, 0.0))

    assert engine.started[-1] == (*SERVERS, "router")


def test_a_failed_switch_gives_the_router_back_to_the_old_servers(engine: Engine, servers: Servers) -> None:
    start = engine.start

    def breaks(wanted: tuple[TopologyPlan, ...]) -> None:
        start(wanted)
        if wanted[0] == NEW:
            servers.wrong.add("10.2.0.10:20100")

    engine.start = breaks  # type: ignore[method-assign, assignment] - a fault of the test
    with pytest.raises(RolloutError, match="wrong answer"):
        roll.roll(OLD, NEW, engine, lambda _: None, how(servers))

    assert engine.plans == (OLD,)
    assert len(engine.started) == 3


def test_old_servers_that_could_not_be_restored_are_told_too(engine: Engine, servers: Servers) -> None:
    servers.wrong.add("10.2.0.11:20100")
    servers.ready["10.2.0.10:20001"] = "gone"
    with pytest.raises(RolloutError, match="wrong answer") as raised:
        roll.roll(OLD, NEW, engine, lambda _: None, how(servers, 0.1))

    assert "the old servers could not be restored:" in str(raised.value)


# --- what can run at the same time ---------------------------------------------------------------------------------


def test_the_same_ports_are_refused() -> None:
    with pytest.raises(InputError, match=r"port 20000 is for api of prefills-0-0 and for api of prefills-s2-0-0"):
        slices.check_beside(OLD, slices.numbered(OLD, 2))


def test_another_node_or_place_of_the_router_is_refused() -> None:
    router = NEW.router
    assert router
    elsewhere = NEW.model_copy(update={"router": router.model_copy(update={"port": 30001})})
    with pytest.raises(InputError, match=r"router: found n1:30001, expected n1:30000"):
        slices.check_beside(OLD, elsewhere)
    with pytest.raises(InputError, match=r"node n2: found 10\.2\.0\.12, expected no such node"):
        slices.check_beside(OLD, moved(topologies.disaggregated(2, 1), 100))


def test_a_topology_without_a_router_cannot_be_rolled() -> None:
    with pytest.raises(InputError, match="router: found none"):
        slices.check_beside(topologies.two_nodes(), topologies.two_nodes())


def test_ports_alternate_between_two_bases() -> None:
    above = slices.port_base(OLD, 20000)

    assert above == 20006
    assert slices.port_base(moved(OLD, above - 20000), 20000) == 20000


def test_names_do_not_grow_with_each_roll() -> None:
    third = slices.numbered(NEW, 3)

    assert [replica.group for replica in third.replicas] == ["prefills-s3", "decodes-s3"]
    assert [replica.group for replica in slices.numbered(third, 1).replicas] == ["prefills", "decodes"]


def test_a_router_on_trial_has_its_own_name_and_a_free_port() -> None:
    trial = slices.on_trial(NEW, 2, OLD)
    assert trial.router

    assert trial.router.name == "router-s2"
    assert trial.router.port == 30001
    assert trial.router.argv[trial.router.argv.index("--port") + 1] == "30001"
    assert trial.router.argv[-2:] == ("--prometheus-port", "30002")  # both routers share a node, and 29000 is taken


def test_what_no_wanted_plan_has_is_to_be_removed() -> None:
    behind = slices.without(slices.on_trial(NEW, 2, OLD), (NEW,))
    assert behind
    assert behind.replicas == ()
    assert behind.router
    assert behind.router.name == "router-s2"
    assert slices.without(OLD, (OLD,)) is None
