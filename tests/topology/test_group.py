"""One server on three nodes, by vLLM's own multi-node: one rank ends all, and they start again; and `check` before."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.topology.ports import API
from drydock.topology.topology_arguments import make_node_url
from drydock.verbs.topology_check_verb import TopologyCheckOptions, find_node_findings
from tests.support.running_topology import Cluster, Note, planned, question, started
from tests.support.waiting import wait_until

RANKS = ("serve-0-0", "serve-0-1", "serve-0-2")
PROMPT = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,"


@pytest.fixture(scope="module")
def trio(folder: Path, images: tuple[str, str]) -> Iterator[Cluster]:
    file = planned(folder, images, "tp3", f"group-{secrets.token_hex(3)}")
    with started(file, folder / "group") as running_cluster:
        yield running_cluster


def answer(trio: Cluster) -> str:
    rank = trio.plan.replicas[0].ranks[0]
    status, text = question(trio.ask, make_node_url(rank.address, rank.ports[API]), PROMPT)
    return text.split(",")[0].strip() if status == "200" else status


def restarts(trio: Cluster) -> dict[str, int]:
    return {name: int(trio.container(name).attrs["RestartCount"]) for name in RANKS}


def told(trio: Cluster, name: str) -> str:
    """Return the last lines of a container's log."""
    text: bytes = trio.container(name).logs(tail=4000)
    return text.decode(errors="replace")


def ends_as_a_whole(trio: Cluster, number: int, ended: str) -> float:
    """Break a rank, wait until all have started again; return the seconds until they are ready and answer right."""
    before = restarts(trio)
    begun = time.monotonic()
    if number == signal.SIGSTOP:
        trio.signal_all(ended, number)
    else:
        trio.kill(ended, number)
    other_ranks = [name for name in RANKS if name != ended]
    wait_until(lambda: all(restarts(trio)[name] > before[name] for name in other_ranks), "the others end", within=180)
    if number == signal.SIGSTOP:
        trio.kill(ended)  # what cannot run cannot end by itself
    trio.heal()
    assert answer(trio) == "13"
    return time.monotonic() - begun


def test_three_nodes_answer_as_one_server(trio: Cluster) -> None:
    assert trio.shown.alone == ("serve-0-0",)
    assert answer(trio) == "13"


def test_a_killed_rank(trio: Cluster, note: Note) -> None:
    seconds = ends_as_a_whole(trio, signal.SIGKILL, "serve-0-1")

    for name in ("serve-0-0", "serve-0-2"):
        assert "ended with exit code 12: rank 1 (" in told(trio, name)
    note("a rank of three is killed", "errors until the server is back", f"{seconds:.0f} s: all three start again")


def test_a_stopped_rank(trio: Cluster, note: Note) -> None:
    seconds = ends_as_a_whole(trio, signal.SIGSTOP, "serve-0-2")

    assert "rank 2" in told(trio, "serve-0-0")
    note(
        "every process of a rank of three is stopped (SIGSTOP)",
        "errors until the server is back",
        f"{seconds:.0f} s: the others end with the cause, and all three start again",
    )


def test_the_check_of_its_nodes_passes(folder: Path, images: tuple[str, str]) -> None:
    file = planned(folder, images, "1p1d", f"check-{secrets.token_hex(3)}")
    findings = find_node_findings(DRYDOCK, TopologyCheckOptions(file=str(file), format="compose"))

    assert [finding for finding in findings if finding.severity == "FAIL"] == []
    assert any(finding.severity == "PASS" for finding in findings)
