"""A prefill and a decode server are checked, replaced while clients ask, and kept if their successors do not start."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from drydock.core.errors import RolloutError
from drydock.prove import demo_topology
from drydock.topology.preflight import verbs as preflight
from drydock.topology.preflight.verbs import CheckOptions
from drydock.topology.rollout import verbs
from drydock.topology.rollout.state import TopologyPlace
from drydock.topology.rollout.verbs import Options
from tests.support.running_topology import Clients, Cluster, Note, Where, planned, started


class Plans(NamedTuple):
    """Files of plans: what is started first, and what takes its place."""

    first: Path
    successor: Path


class Pair(NamedTuple):
    """What runs, and its right answers."""

    running: Cluster
    answers: dict[str, str]


@pytest.fixture(scope="module")
def plans(folder: Path, images: tuple[str, str]) -> Plans:
    name, subnet = f"roll-{secrets.token_hex(3)}", demo_topology.free_subnet()
    first = planned(folder, images, "1p1d", name, Where(subnet))
    return Plans(first, planned(folder, images, "1p1d", f"{name}-2", Where(subnet, port_base=23000)))


@pytest.fixture(scope="module")
def pair(plans: Plans, folder: Path) -> Iterator[Pair]:
    with started(TopologyPlace(plans.first, output=str(folder / "roll"))) as running:
        yield Pair(running, running.answers())


def test_the_check_of_its_nodes_passes(plans: Plans) -> None:
    found = preflight.check(plans.first, CheckOptions(format="compose"))

    assert [finding for finding in found if finding.severity == "FAIL"] == []
    assert any(finding.severity == "PASS" for finding in found)


def test_servers_that_are_not_ready_in_time_are_removed(pair: Pair, plans: Plans, note: Note) -> None:
    running = pair.running
    before = running.runner.states()
    with Clients(running.router, pair.answers) as clients:
        clients.until_good(2)
        with pytest.raises(RolloutError):
            verbs.roll(running.place, plans.successor, Options(seconds=5))
        clients.until_good()
    clients.check()

    assert running.runner.states() == before
    note("the new servers of a roll are not ready in time", clients.summary(), "at once: the old servers serve on")


def test_a_roll_replaces_both_servers(pair: Pair, plans: Plans, note: Note) -> None:
    running, begun = pair.running, time.monotonic()
    before = {state.image for state in running.runner.states().values()}
    with Clients(running.router, pair.answers) as clients:
        clients.until_good(2)
        shown = verbs.roll(running.place, plans.successor, Options(seconds=600))
        clients.until_good()
    clients.check()

    assert shown.router
    assert shown.router.transferred > 2 * shown.block
    states = running.place.runner(running.place.running(), {}).states()
    assert {name for name in states if "-0-0" in name} == {"prefill-s2-0-0", "decode-s2-0-0"}
    assert {state.image for state in states.values()} == before
    note("`topology roll` replaces all servers", clients.summary(), f"{time.monotonic() - begun:.0f} s in all")
