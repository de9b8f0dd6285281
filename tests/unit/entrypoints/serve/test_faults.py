"""The supervisor when vLLM's processes are killed, hang, or are asked to drain; the stub as real processes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from entrypoints.core import errors
from entrypoints.host.processes import is_running
from entrypoints.plan.supervision import MIDDLEWARE_NAME
from tests.support.running import Run, Running

STALL = 1.5
"""Seconds; a step of the stub takes none."""


def last_line(server: Running) -> str:
    return server.said().rstrip().splitlines()[-1]


# --- a crash --------------------------------------------------------------------------------------------------------


@pytest.mark.attack(
    what="an engine core is killed with SIGKILL, and vLLM exits with 0 five seconds later",
    before="the server is ready for five seconds more, and its exit code is 0 or 7 by chance",
    after="the server is not ready at once, and its exit code is 9",
)
def test_a_killed_engine_core_ends_the_server_and_is_named(run: Run) -> None:
    server = run(stub={"engine": True, "looks_every": 60.0})
    server.until_ready()
    engine = server.engine()
    os.kill(engine, signal.SIGKILL)
    server.until(lambda: f"VLLM::EngineCore 600 (process {engine}) ended" in server.said(), "the loss")
    assert server.exit_code() == errors.DIED
    assert last_line(server) == (
        f"drydock: ended with exit code 9: VLLM::EngineCore 600 (process {engine}) ended without being asked to"
    )


def test_a_server_that_has_lost_a_process_is_not_ready(run: Run) -> None:
    server = run(stub={"engine": True, "looks_every": 60.0, "ignores_sigterm": True})
    server.until_ready()
    os.kill(server.engine(), signal.SIGKILL)
    status, told = server.until(lambda: (found := server.status("/readyz"))[0] != 200 and found, "not ready")
    assert status == 503
    assert "ended without being asked to" in told["reason"]


def test_a_crash_while_draining_is_no_success(run: Run) -> None:
    server = run(stub={"engine": True, "token_delay": 0.05, "looks_every": 0.0}, options={"drain_timeout": 60})
    server.until_ready()
    server.stream(tokens=10_000)
    server.signal()
    server.until(lambda: "draining" in server.said(), "draining")
    os.kill(server.engine(), signal.SIGKILL)
    assert server.exit_code() == errors.DIED


def test_a_stopped_engine_core_has_not_ended(run: Run) -> None:
    server = run(stub={"engine": True})
    server.until_ready()
    engine = server.engine()
    os.kill(engine, signal.SIGSTOP)
    assert is_running(engine)
    os.kill(engine, signal.SIGCONT)


# --- no progress ----------------------------------------------------------------------------------------------------


@pytest.mark.attack(
    what="an engine core hangs while requests run",
    before="ready and alive forever",
    after="not ready after the stall time, not alive after twice that time, ready again when it makes progress",
)
@pytest.mark.parametrize("reports", [True, False], ids=["requests are reported", "the engine hung while it was idle"])
def test_a_hung_engine_core_is_not_ready_then_not_alive_and_recovers(run: Run, reports: bool) -> None:
    server = run(stub={"engine": True, "token_delay": 0.01, "reports": reports}, stall=STALL)
    server.until_ready()
    os.kill(server.engine(), signal.SIGSTOP)
    if reports:
        server.stream(tokens=10)
    server.until(lambda: server.status("/readyz")[0] == 503, "not ready")
    assert "for" in server.status("/readyz")[1]["reason"]
    status, told = server.until(lambda: (found := server.status("/livez"))[0] != 200 and found, "not alive")
    assert (status, told["alive"]) == (503, False)
    os.kill(server.engine(), signal.SIGCONT)
    server.until_ready()
    assert server.status("/livez")[0] == 200
    assert "ready again: vLLM makes progress" in server.said()


@pytest.mark.attack(
    what="vLLM's API process hangs",
    before="/livez stays 200 forever",
    after="not ready, then /livez answers 503; ready again when it answers",
)
def test_a_hung_api_process_is_not_alive_and_recovers(run: Run) -> None:
    server = run(stall=STALL)
    server.until_ready()
    os.kill(server.leader(), signal.SIGSTOP)
    server.until(lambda: server.status("/readyz")[0] == 503, "not ready")
    server.until(lambda: server.status("/livez")[0] == 503, "not alive")
    assert "vLLM's server has not answered" in server.status("/livez")[1]["reason"]
    os.kill(server.leader(), signal.SIGCONT)
    server.until_ready()
    assert server.status("/livez")[0] == 200


def test_without_a_stall_time_nothing_is_asked(run: Run) -> None:
    server = run(stub={"engine": True})
    server.until_ready()
    before = server.until(lambda: _tokens(server), "tokens")
    time.sleep(1.0)
    assert _tokens(server) == before


def test_an_idle_server_is_asked_for_a_token(run: Run) -> None:
    server = run(stub={"engine": True}, stall=3.0)
    server.until_ready()
    before = _tokens(server)
    server.until(lambda: _tokens(server) > before, "a token that nobody else asked for")
    assert server.status("/readyz")[0] == 200


def test_a_stop_while_nothing_moves_does_not_wait_and_says_that_requests_were_lost(run: Run) -> None:
    server = run(stub={"engine": True}, stall=0.5, options={"drain_timeout": 60})
    server.until_ready()
    os.kill(server.engine(), signal.SIGSTOP)
    server.until(lambda: server.status("/readyz")[0] == 503, "not ready")
    server.signal()
    assert server.exit_code() == errors.STALLED
    assert "SIGTERM received: requests were lost" in last_line(server)


def _tokens(server: Running) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", server.start.port, timeout=10)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith("vllm:generation_tokens_total")))


# --- a drain --------------------------------------------------------------------------------------------------------


@pytest.mark.attack(
    what="clients go on sending requests to a server that drains",
    before="after half of the drain timeout, 500 with the text: cannot schedule new futures",
    after="503 with Retry-After and Connection: close; the running request is completed",
)
def test_new_requests_are_refused_well_while_the_running_one_ends(run: Run) -> None:
    flags = ("--shutdown-timeout", "30", "--middleware", MIDDLEWARE_NAME)
    server = run(stub={"token_delay": 0.05}, flags=flags, options={"drain_timeout": 10})
    server.until_ready()
    running = server.stream(tokens=40)
    server.signal()
    server.until(lambda: "draining" in server.said(), "draining")
    refused = server.until(lambda: (answer := server.stream(tokens=1)).status == 503 and answer, "a refusal")
    assert (refused.getheader("Retry-After"), refused.getheader("Connection")) == ("1", "close")
    assert running.read().endswith(b"[DONE]\n\n")
    assert server.exit_code() == 0
    assert last_line(server) == "drydock: ended with exit code 0: SIGTERM received: every request had ended"


def test_during_the_pause_the_server_is_not_ready_and_still_serves(run: Run) -> None:
    flags = ("--middleware", MIDDLEWARE_NAME)
    server = run(flags=flags, options={"drain_pause": 6.0, "drain_timeout": 20.0})
    server.until_ready()
    server.signal()
    server.until(lambda: server.status("/readyz")[0] == 503, "not ready")
    answers = Counter(server.stream(tokens=1).status for _ in range(3))
    assert answers == {200: 3}
    assert server.exit_code() == 0


def test_a_person_who_presses_ctrl_c_does_not_wait_for_balancers(run: Run) -> None:
    server = run(options={"drain_pause": 60.0, "drain_timeout": 120.0})
    server.until_ready()
    server.signal(signal.SIGINT)
    assert server.exit_code() == 0


def test_the_drain_file_is_gone_afterwards(run: Run, tmp_path: Path) -> None:
    server = run(env={"TMPDIR": str(tmp_path)}, options={"drain_timeout": 5})
    server.until_ready()
    server.signal()
    assert server.exit_code() == 0
    assert not list(tmp_path.glob("drydock-draining*"))


# --- the last line --------------------------------------------------------------------------------------------------


def test_the_last_line_names_the_end(run: Run) -> None:
    server = run(stub={"dies_with": 3})
    assert server.exit_code() == 3
    assert last_line(server) == (
        "drydock: ended with exit code 3: vLLM exited with 3 in phase import, without being asked to stop"
    )


def test_a_vllm_that_only_printed_its_help_is_a_success(run: Run) -> None:
    server = run(stub={"dies_with": 0})
    assert server.exit_code() == 0
    assert last_line(server) == "drydock: ended with exit code 0: vLLM exited with 0 before it loaded a model"


def test_every_exit_code_of_an_end_is_in_the_table() -> None:
    codes = {errors.DIED, errors.LIMITED, errors.STALLED, errors.WRONG_ANSWER, errors.NOT_READY, errors.OK}
    assert codes <= errors.EXIT_CODES.keys()
    assert json.dumps(sorted(errors.EXIT_CODES)) == json.dumps(list(range(len(errors.EXIT_CODES))))
