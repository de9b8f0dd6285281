"""Three ranks of one server as real processes on the stub: joining, readiness, and one rank's end for all."""

from __future__ import annotations

import http.client
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from entrypoints.core import errors
from entrypoints.host.processes import list_children
from entrypoints.serve.rank_coordination import LINGER, Leader
from entrypoints.serve.rank_protocol import Member
from entrypoints.serve.watch import SharedState
from tests.support.ports import free_port
from tests.support.running_server import Run, Running, get

PATIENCE = 5.0
"""Seconds: on a busy machine a rank may be silent for some."""
HOSTS = 3
SECRET, OTHER = "the secret of a test", "the secret of another"


class Ranks(NamedTuple):
    """A group."""

    start: Callable[..., Running]
    all: list[Running]

    def until_ready(self) -> None:
        for rank in self.all:
            rank.until_ready()


@pytest.fixture
def group(run: Run) -> Callable[..., Ranks]:
    """Start ranks; keywords are options of all of them, `secret` theirs."""

    def begin(ranks: tuple[int, ...] = tuple(range(HOSTS)), secret: str = SECRET, **options: Any) -> Ranks:
        leader = free_port()

        def start(rank: int, stub: Any = None, secret: str = secret, **fields: Any) -> Running:
            place = {"rank": rank, "hosts": HOSTS, "address": "127.0.0.1", "headless": rank > 0}
            times = {"group_patience": PATIENCE, "leader_port": leader, "drain_timeout": 5.0, **options}
            port = {} if rank else {"status_port": leader}
            stub = {"engine": True, "looks_every": 60.0, **(stub or {})}
            flags = ("--headless",) if rank else ()
            env = {"DRYDOCK_GROUP_SECRET": secret} if secret else {}
            return run(stub=stub, env=env, group=place, flags=flags, options={**times, **port}, **fields)

        return Ranks(start, [start(rank) for rank in ranks])

    return begin


def last_line(server: Running) -> str:
    return server.said().rstrip().splitlines()[-1]


def post(port: int, query: str, address: str = "127.0.0.9") -> int:
    """Send a report from an address of this machine; return the status of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE, source_address=(address, 0))
    try:
        connection.request("POST", f"/group?{query}")
        return connection.getresponse().status
    finally:
        connection.close()


def until_heard_again(followers: Sequence[Running]) -> None:
    """Wait until rank 0 has answered each of the others once more: with an end, if it had taken one in."""
    begun = time.monotonic()
    for follower in followers:
        follower.until(
            lambda follower=follower: follower.status("/group")[1]["heard"] < time.monotonic() - begun,
            "another answer of rank 0",
        )


# --- start and readiness --------------------------------------------------------------------------------------------


def test_every_rank_is_ready_once_the_group_has_loaded(group: Callable[..., Ranks]) -> None:
    ranks = group()
    ranks.until_ready()

    group_state = ranks.all[0].status("/group")[1]
    assert (group_state["rank"], group_state["hosts"], group_state["absent"], group_state["ended"]) == (
        0,
        HOSTS,
        [],
        False,
    )
    assert [(rank["rank"], rank["address"], rank["ended"]) for rank in group_state["ranks"]] == [
        (1, "127.0.0.1", False),
        (2, "127.0.0.1", False),
    ]
    assert ranks.all[1].status("/group")[1]["phase"] == "ready"


def test_a_rank_without_its_first_host_starts_nothing_and_says_why(group: Callable[..., Ranks]) -> None:
    rank = group(ranks=(1,)).all[0]
    status, body = rank.until(
        lambda: (answer := rank.status("/readyz"))[1]["reason"][:4] == "rank" and answer, "a reason"
    )

    assert status == 503
    assert body["phase"] == "join"
    assert "rank 0 (127.0.0.1) has not answered for" in body["reason"]
    assert "Connection refused" in body["reason"]
    assert list_children(rank.process.pid) == ()
    rank.signal()
    assert rank.exit_code() == 0


def test_a_rank_is_not_ready_while_its_first_host_is_silent_and_ready_again_after(group: Callable[..., Ranks]) -> None:
    ranks = group(ranks=(), group_patience=60.0)
    first, rank, _ = (ranks.start(number) for number in range(HOSTS))
    rank.until_ready()
    first.signal(signal.SIGSTOP)
    _, body = rank.until(lambda: (answer := rank.status("/readyz"))[0] == 503 and answer, "not ready")
    first.signal(signal.SIGCONT)

    assert body["reason"].startswith("rank 0 (127.0.0.1) has not answered for ")
    rank.until_ready()


def test_a_start_waits_for_the_others_for_a_bounded_time(group: Callable[..., Ranks]) -> None:
    leader = group(ranks=(0, 1), group_wait=1.0).all[0]
    lone = group(ranks=(1,), group_wait=1.0).all[0]

    assert lone.exit_code() == errors.GROUP_ENDED
    assert "rank 0 (127.0.0.1) has not answered" in last_line(lone)
    assert last_line(lone).endswith("waited 1 s")
    assert leader.process.poll() is None  # its vLLM answers: the absent rank runs without drydock


def test_a_first_host_whose_vllm_never_answers_does_not_wait_forever(group: Callable[..., Ranks]) -> None:
    ranks = group(ranks=(), group_wait=1.0)
    leader = ranks.start(0, {"delay": 60.0})
    status, body = leader.until(
        lambda: (answer := leader.status("/readyz"))[1]["reason"][:4] == "wait" and answer, "it"
    )

    assert (status, body["reason"]) == (503, "waiting for ranks 1, 2 of 3 hosts")
    assert leader.exit_code() == errors.GROUP_ENDED
    assert "ranks 1, 2 did not start within 1 s" in last_line(leader)


def test_a_server_on_one_host_tells_its_state_too(run: Run) -> None:
    server = run(stub={})
    server.until_ready()
    group_state = server.status("/group")[1]

    assert (
        group_state["rank"],
        group_state["hosts"],
        group_state["phase"],
        group_state["ended"],
        group_state["cause"],
    ) == (0, 1, "ready", False, "")
    assert group_state["interfaces"]["lo"] > 0


# --- an end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_of_any_rank_ends_every_rank_with_its_cause(group: Callable[..., Ranks], rank: int) -> None:
    ranks = group()
    ranks.until_ready()
    worker = ranks.all[rank].engine()
    os.kill(worker, signal.SIGKILL)
    codes = [host.exit_code() for host in ranks.all]

    assert codes == [errors.DIED if host == rank else errors.GROUP_ENDED for host in range(HOSTS)]
    for number, host in enumerate(ranks.all):
        assert f"(process {worker}) ended without being asked to" in last_line(host)
        assert (f"rank {rank} (127.0.0.1) ended: " in last_line(host)) == (number != rank)


def test_a_killed_vllm_is_named_with_its_signal(group: Callable[..., Ranks]) -> None:
    ranks = group(ranks=(1, 2))
    leader = ranks.start(0, {"engine": False})  # of several processes, another one may be told as the first to end
    for rank in (leader, *ranks.all):
        rank.until_ready()
    os.kill(leader.leader(), signal.SIGKILL)

    assert [rank.exit_code() for rank in ranks.all] == [errors.GROUP_ENDED] * 2
    for rank in ranks.all:
        assert "rank 0 (127.0.0.1) ended: " in last_line(rank)
        assert "killed by signal 9" in last_line(rank)


def test_the_zero_of_a_first_host_that_lost_a_rank_is_not_believed(group: Callable[..., Ranks]) -> None:
    ranks = group(ranks=())
    leader, first = ranks.start(0, {"looks_every": 0.0}), ranks.start(1)
    ranks.start(2)
    leader.until_ready()
    first.until_ready()
    os.kill(first.engine(), signal.SIGKILL)
    os.kill(leader.engine(), signal.SIGKILL)  # so that its vLLM exits with 0 at once

    assert leader.exit_code() != 0
    assert first.exit_code() != 0


def test_a_rank_that_is_silent_ends_the_group(group: Callable[..., Ranks]) -> None:
    ranks = group()
    ranks.until_ready()
    ranks.all[1].signal(signal.SIGSTOP)

    assert ranks.all[0].exit_code() == errors.GROUP_ENDED
    assert "rank 1 (127.0.0.1) ended: it has not reported for" in last_line(ranks.all[0])
    assert ranks.all[2].exit_code() == errors.GROUP_ENDED
    assert last_line(ranks.all[2]) == last_line(ranks.all[0])
    ranks.all[1].signal(signal.SIGCONT)
    assert ranks.all[1].exit_code() == errors.GROUP_ENDED
    assert "rank 0 (127.0.0.1) " in last_line(ranks.all[1]) or "has not reported" in last_line(ranks.all[1])


def test_a_server_that_hangs_for_too_long_ends_the_group(group: Callable[..., Ranks]) -> None:
    ranks = group(ranks=())
    leader = ranks.start(0, stall=1.0)
    followers = [ranks.start(rank) for rank in (1, 2)]
    for server in (leader, *followers):
        server.until_ready()
    os.kill(leader.engine(), signal.SIGSTOP)

    assert [server.exit_code() for server in (leader, *followers)] == [errors.GROUP_ENDED] * HOSTS
    assert "the server makes no progress: vLLM has not generated a token" in last_line(leader)
    assert "rank 0 (127.0.0.1) ended: the server makes no progress" in last_line(followers[1])


def test_a_killed_supervisor_of_the_first_host_ends_the_others(group: Callable[..., Ranks]) -> None:
    ranks = group()
    ranks.until_ready()
    ranks.all[0].signal(signal.SIGKILL)

    for server in ranks.all[1:]:
        server.until(lambda server=server: server.process.poll() is not None, "its end")
        assert server.exit_code() == errors.GROUP_ENDED
        silent = re.search(r"rank 0 \(127\.0\.0\.1\) has not answered for (\d+) s: ", last_line(server))
        assert silent
        assert int(silent[1]) >= PATIENCE


# --- a stop ---------------------------------------------------------------------------------------------------------


def test_a_stop_of_all_is_no_failure_of_any(group: Callable[..., Ranks]) -> None:
    ranks = group()
    ranks.until_ready()
    for server in reversed(ranks.all):
        server.signal()

    assert [server.exit_code() for server in ranks.all] == [0, 0, 0]


def test_a_rank_that_is_stopped_lets_running_requests_finish(group: Callable[..., Ranks]) -> None:
    ranks = group(ranks=(), drain_timeout=10.0)
    leader = ranks.start(0, {"token_delay": 0.1})
    followers = [ranks.start(rank) for rank in (1, 2)]
    for server in (leader, *followers):
        server.until_ready()
    answer = leader.stream(20)
    followers[0].signal()

    assert answer.read().endswith(b"data: [DONE]\n\n")
    assert followers[0].exit_code() == 0
    assert leader.exit_code() == errors.GROUP_ENDED
    assert "rank 1 (127.0.0.1) stops: SIGTERM received" in last_line(leader)
    assert followers[1].exit_code() == errors.GROUP_ENDED


def test_warm_ends_every_rank_with_success(group: Callable[..., Ranks], tmp_path: Path) -> None:
    ranks, together = group(ranks=(), group_patience=60.0), tmp_path / "together"
    leader = ranks.start(0, {"waits_for": str(together)}, verb="warm")
    followers = [ranks.start(rank, verb="warm") for rank in range(1, HOSTS)]
    leader.until(lambda: not leader.status("/group")[1]["absent"], "rank 0 to know of every rank")
    followers[1].signal(signal.SIGSTOP)  # a host that is busy when rank 0 ends
    together.touch()
    leader.until(lambda: leader.status("/group")[1]["ended"], "the end of rank 0")
    time.sleep(LINGER)
    followers[1].signal(signal.SIGCONT)

    assert [server.exit_code() for server in (leader, *followers)] == [0, 0, 0]


# --- a restart ------------------------------------------------------------------------------------------------------


def test_a_rank_that_starts_again_waits_for_the_others_to_start_again(group: Callable[..., Ranks]) -> None:
    ranks = group()
    ranks.until_ready()
    ranks.all[1].signal(signal.SIGKILL)
    again = ranks.start(1)

    assert ranks.all[0].exit_code() == errors.GROUP_ENDED
    assert "rank 1 (127.0.0.1) ended: it was started again" in last_line(ranks.all[0])
    assert ranks.all[2].exit_code() == errors.GROUP_ENDED
    assert list_children(again.process.pid) == ()
    leader, follower = ranks.start(0), ranks.start(2)
    for server in (leader, follower, again):
        server.until_ready()


def test_a_first_host_that_starts_again_ends_those_of_before(group: Callable[..., Ranks]) -> None:
    ranks = group(group_patience=30.0)
    ranks.until_ready()
    ranks.all[0].signal(signal.SIGKILL)
    ranks.start(0)

    assert ranks.all[1].exit_code() == errors.GROUP_ENDED
    assert "does not accept this rank any more: rank 0 was started again" in last_line(ranks.all[1])


# --- what anyone may send -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("secret", "statuses"), [(SECRET, [403] * 4), ("", [200, 409, 409, 409])])
def test_no_request_of_another_address_ends_a_server(
    group: Callable[..., Ranks], secret: str, statuses: list[int]
) -> None:
    ranks = group(ranks=(), secret=secret)
    leader = ranks.start(0)
    port = leader.status_port()
    before = [post(port, "rank=1&run=x&ended=bye")]
    followers = [ranks.start(rank) for rank in (1, 2)]
    for item in (leader, *followers):
        item.until_ready()
    run = leader.status("/group")[1]["run"]
    attacks = [("rank=1&run=x", "127.0.0.1"), ("rank=1&run=x&stopping=x&ended=bye", "127.0.0.1")]
    after = [post(port, *item) for item in (*attacks, (f"rank=1&run=x&joined={run}&ended=bye", "127.0.0.9"))]
    until_heard_again(followers)

    assert before + after == statuses
    assert [item.status("/readyz")[0] for item in (leader, *followers)] == [200] * HOSTS
    for address in ("127.0.0.1", "127.0.0.9"):
        refusal = f"WARN a report from {address} is not believed, and changes nothing: it is not signed"
        assert leader.said().count(refusal) == int(bool(secret)), address


def test_a_rank_with_another_secret_waits_and_says_why(group: Callable[..., Ranks]) -> None:
    ranks = group(ranks=(0,))
    rank = ranks.start(1, secret=OTHER)
    rank.until(lambda: "report is not believed: it is signed with another group secret" in rank.said(), "the reason")

    assert list_children(rank.process.pid) == ()
    assert not any("the secret of" in server.said() for server in (*ranks.all, rank))


def test_no_answer_shows_the_names_that_reports_are_believed_with(group: Callable[..., Ranks]) -> None:
    ranks = group()
    ranks.until_ready()
    leader, *followers = ranks.all
    answers = [str(rank.status("/group")[1]) for rank in ranks.all]
    port = ranks.all[0].status_port()

    assert not any("run" in rank for rank in ranks.all[0].status("/group")[1]["ranks"])
    assert "'run'" not in answers[1]
    assert get(port, "/group?rank=1&run=x&ended=no")[0] == 200  # a GET reports nothing
    until_heard_again(followers)
    assert leader.status("/readyz")[0] == 200


def test_a_report_that_is_none_is_refused() -> None:
    leader = Leader(_member(), SharedState(time.monotonic()), print)
    for query in (
        "",
        "rank=1",
        "rank=x&run=a",
        "rank=1&run=a%20b",
        "rank=1&run=a&rank=2",
        "rank=1&run=a&phase=no",
        "rank=1&run=a&since=nan",
        "rank=1&run=a&ago=-1",
        "rank=1&run=a&number=-1",
        "rank=1&run=a&more=1",
    ):
        assert leader.take(query, "10.0.0.2").status == 400, query
    assert leader.take("rank=3&run=a", "10.0.0.2").status == 409
    assert leader.take("rank=1&run=a", "10.0.0.2").status == 200


def _member() -> Any:
    return Member(0, HOSTS, "10.0.0.1", 8001, PATIENCE, 600.0)


# --- expired leases -------------------------------------------------------------------------------------------------


def test_expired_kv_caches_are_counted_and_told(run: Run) -> None:
    server = run(stub={"engine": True, "expires": 2}, stall=1.5)
    server.until_ready()
    server.until(lambda: "WARN the KV cache of 2 requests expired" in server.said(), "the event")

    assert "\ndrydock_kv_expired_requests 2\n" in server.status("/metrics")[1]
    assert server.said().count("requests expired before") == 1
