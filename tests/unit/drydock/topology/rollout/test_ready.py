"""A start is waited for, and fails early."""

from __future__ import annotations

import pytest

from drydock.core.errors import RolloutError
from drydock.topology.rollout import ready
from drydock.topology.rollout.runner import SeenContainer
from tests.support import topologies
from tests.support.fake_topology import Engine, Servers

PLAN = topologies.disaggregated(1, 1)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "EVERY", 0.0)


def test_ranks_and_router_are_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    servers = Servers()
    servers.ready["10.2.0.10:20001"] = "loads weights"
    asked = 0

    def ask(url: str, question: object = None, seconds: float = 1.0) -> object:
        nonlocal asked
        asked += 1
        if asked > 20:
            servers.ready.clear()
        return servers(url, question, seconds)  # type: ignore[arg-type] - passed on

    ready.wait(PLAN, Engine(PLAN), 60, ask)  # type: ignore[arg-type] - answers as it does

    assert capsys.readouterr().err.splitlines() == ["prefills-0-0: load, loads weights"]


def test_what_is_not_ready_in_time_is_named() -> None:
    servers = Servers()
    servers.down.add("10.2.0.11:30000")
    with pytest.raises(RolloutError, match=r"router: not ready after 0 s: no answer: ConnectionError"):
        ready.wait(PLAN, Engine(PLAN), 0, servers)


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (SeenContainer("exited", "", 0, 3), "prefills-0-0: exited, exit code 3, 0 restarts"),
        (SeenContainer("dead", ""), "prefills-0-0: dead"),
    ],
)
def test_a_container_that_ended_is_not_waited_for(seen: SeenContainer, text: str) -> None:
    servers, engine = Servers(), Engine(PLAN)
    servers.down.add("10.2.0.10")
    engine.seen["prefills-0-0"] = seen
    with pytest.raises(RolloutError, match=text):
        ready.wait(PLAN, engine, 60, servers)


def test_a_container_that_keeps_ending_is_not_waited_for() -> None:
    servers, engine = Servers(), Engine(PLAN)
    servers.down.add("10.2.0.10")
    restarts = 4
    states = engine.states

    def more() -> object:
        nonlocal restarts
        engine.seen["prefills-0-0"] = SeenContainer("restarting", "", restarts, 7)
        restarts += 1
        return states()

    engine.states = more  # type: ignore[method-assign, assignment] - a fault of the test
    with pytest.raises(RolloutError, match="prefills-0-0: restarting, exit code 7, 7 restarts"):
        ready.wait(PLAN, engine, 60, servers)


def test_servers_of_one_topology_have_one_image() -> None:
    engine = Engine(PLAN)
    ready.check_images(PLAN, engine.states())
    engine.seen["decodes-0-0"] = SeenContainer("running", "sha256:b")
    with pytest.raises(RolloutError) as raised:
        ready.check_images(PLAN, engine.states())

    assert "prefills-0-0: image sha256:a\ndecodes-0-0: image sha256:b" in str(raised.value)
