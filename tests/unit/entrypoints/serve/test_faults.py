"""The supervisor when vLLM's processes are killed, hang, or are asked to drain; the stub as real processes."""

from __future__ import annotations

import errno
import http.client
import json
import os
import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from drydock.core.paths import ROOT
from entrypoints.core import errors
from entrypoints.host.processes import is_running
from entrypoints.plan.guard_settings import NAME
from entrypoints.serve.hang import group_threads, shorten_lines
from entrypoints.serve.plugin_files import DrainFile
from tests.support.ports import free_port
from tests.support.running_server import Run, Running, get

PLUGIN = {"PYTHONPATH": str(ROOT / "entrypoints" / "plugin")}

STALL = 1.5
"""Seconds; a step of the stub takes none."""


def last_line(server: Running) -> str:
    return server.said().rstrip().splitlines()[-1]


# --- a crash --------------------------------------------------------------------------------------------------------


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


def test_a_crash_while_draining_is_no_success(run: Run) -> None:
    server = run(stub={"engine": True, "token_delay": 0.05, "looks_every": 0.0}, options={"drain_timeout": 60})
    server.until_ready()
    server.stream(tokens=10_000)
    server.signal()
    server.until(lambda: "draining" in server.said(), "draining")
    os.kill(server.engine(), signal.SIGKILL)
    assert server.exit_code() == errors.DIED


# --- no progress ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reports", [True, False], ids=["requests are reported", "the engine hung while it was idle"])
def test_a_hung_engine_core_is_not_ready_then_not_alive_and_recovers(run: Run, reports: bool) -> None:
    server = run(stub={"engine": True, "token_delay": 0.01, "reports": reports}, stall=STALL)
    server.until_ready()
    os.kill(server.engine(), signal.SIGSTOP)
    if reports:
        server.stream(tokens=10)
    server.until(lambda: server.status("/readyz")[0] == 503, "not ready")
    assert "for" in server.status("/readyz")[1]["reason"]
    status, body = server.until(lambda: (answer := server.status("/livez"))[0] != 200 and answer, "not alive")
    assert (status, body["alive"]) == (503, False)
    os.kill(server.engine(), signal.SIGCONT)
    server.until_ready()
    assert server.status("/livez")[0] == 200
    server.until(lambda: "ready again: vLLM makes progress" in server.said(), "that it says so")


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
    until_one_with_a_stall_time_is_asked(run)
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


def until_one_with_a_stall_time_is_asked(run: Run) -> None:
    """Wait until another server, which starts now, was asked for a token because it is idle."""
    idle = run(stub={"engine": True}, stall=3.0)
    idle.until_ready()
    before = _tokens(idle)
    idle.until(lambda: _tokens(idle) > before, "a token that nobody else asked for")


def until_one_that_hangs_is_not_alive(run: Run) -> None:
    """Wait until another server, which starts now and hangs, is not alive: it made no progress for twice STALL."""
    hanging = run(stub={"engine": True}, stall=STALL)
    hanging.until_ready()
    os.kill(hanging.engine(), signal.SIGSTOP)
    hanging.until(lambda: hanging.status("/livez")[0] == 503, "not alive")


def _tokens(server: Running) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", server.start.port, timeout=10)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith("vllm:generation_tokens_total")))


# --- what is known of a server that hangs ---------------------------------------------------------------------------


def test_the_stacks_of_a_hung_engine_are_in_the_log_when_it_stalls_and_when_it_is_ended(
    run: Run, tmp_path: Path
) -> None:
    hung, tool = tmp_path / "hung", tmp_path / "bin" / "efsmi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'GPU 0: Xid 119'\n")
    tool.chmod(0o755)
    env = {"TMPDIR": str(tmp_path), "PATH": f"{tool.parent}:{os.environ['PATH']}"}
    server = run(stub={"hangs": str(hung)}, stall=STALL, plan_env=PLUGIN, env=env, profile={"accelerator": "enflame"})
    server.until_ready()
    engine = server.engine()
    before = _tokens(server)
    server.until(lambda: _tokens(server) > before, "a token that nobody else asked for")
    hung.touch()
    server.stream(tokens=10)
    server.until(lambda: "Xid 119" in server.said(), "the device's tool")
    log = server.said()

    assert re.search(r"drydock: \| requests wait at engine 0 without progress for \d+ s", log)
    counted = r"\| engine 0: running requests 1, waiting requests 0, KV cache 25 % used, no token for [1-9] s; as"
    assert re.search(counted, log)
    assert re.search(rf"\| VLLM::EngineCore -c .* \(process {engine}\) waits.*:\n", log)
    stack = log.partition(f"(process {engine})")[2]
    assert stack.index("in wait_for_all_reduce\n") < stack.index("in run_busy_loop\n") < stack.index("3 threads:\n")
    assert re.search(r"main process \(process \d+\)(?:.*\n)+?.*in serve_forever\n", log)
    assert "drydock: | efsmi says:\ndrydock: |   GPU 0: Xid 119\n" in log

    server.signal()
    assert server.exit_code() == errors.STALLED
    ended = server.said().removeprefix(log)
    assert "| SIGTERM received while requests wait at engine 0" in ended
    assert "in wait_for_all_reduce\n" in ended
    assert not list(tmp_path.glob("drydock-stacks*"))


def test_a_process_that_writes_no_stacks_is_named_and_not_ended(run: Run) -> None:
    server = run(stub={"engine": True}, stall=STALL, plan_env=PLUGIN)
    server.until_ready()
    os.kill(server.engine(), signal.SIGSTOP)
    server.until(lambda: f"(process {server.engine()}) is stopped; no stacks" in server.said(), "the engine")
    os.kill(server.engine(), signal.SIGCONT)
    server.until(lambda: "ready again" in server.said(), "ready again")


def test_a_lost_engine_leaves_the_stacks_of_the_others(run: Run) -> None:
    server = run(stub={"engine": True, "looks_every": 60.0}, plan_env=PLUGIN)
    server.until_ready()
    os.kill(server.engine(), signal.SIGKILL)
    assert server.exit_code() == errors.DIED
    assert re.search(r"\| VLLM::EngineCore 600 \(process \d+\) ended without", server.said())
    assert "in serve_forever\n" in server.said()


def test_stacks_are_short_and_equal_threads_are_one() -> None:
    thread = 'Thread 0x00007f{} (most recent call first):\n  File "a.py", line {} in f\n  File "b.py", line 2 in g\n'
    dump = "\n".join([*(thread.format(f"0{number}", 1) for number in range(9)), thread.format("10", 7)])
    expected = ("1 thread:", '  File "a.py", line 7 in f', '  File "b.py", line 2 in g')
    assert group_threads(dump)[:3] == expected
    assert group_threads(dump)[3] == "9 threads:"
    assert group_threads("") == ()
    assert shorten_lines(["aaaa", "bbbb", "cccc"], 9) == ("aaaa", "bbbb", "… and 1 more lines")


def test_each_start_has_a_line_of_json_with_the_hash_of_its_plan(run: Run) -> None:
    servers = [run(), run(plan_env={"VLLM_X": "1"})]
    lines = []
    for server in servers:
        server.until_ready()
        (line,) = [line for line in server.said().splitlines() if line.startswith('{"drydock"')]
        lines.append(json.loads(line)["drydock"])
        assert f'plan="{lines[-1]["plan"]}"' in server.status("/metrics")[1]
    assert {(line["event"], line["model"]) for line in lines} == {("start", "/no/such/model")}
    assert lines[0]["plan"] != lines[1]["plan"]
    assert all(re.fullmatch("[0-9a-f]{16}", line["plan"]) for line in lines)


# --- a drain --------------------------------------------------------------------------------------------------------


def test_new_requests_are_refused_well_while_the_running_one_ends(run: Run) -> None:
    flags = ("--shutdown-timeout", "30", "--middleware", NAME)
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
    flags = ("--middleware", NAME)
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


def test_a_server_on_a_full_disk_refuses_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", no_space)
    file = DrainFile({"TMPDIR": str(tmp_path)})
    file.leave()
    assert Path(file.path).stat().st_size == 0
    file.refuse()
    assert Path(file.path).stat().st_size > 0


# --- the last line --------------------------------------------------------------------------------------------------


def test_the_last_line_names_the_end(run: Run) -> None:
    server = run(stub={"dies_with": 3})
    assert server.exit_code() == 3
    assert "stub: RuntimeError: the model is broken" in server.said()
    assert "what it means: docker logs CONTAINER 2>&1 | docker run -i IMG explain\n" in server.said()
    assert last_line(server) == (
        "drydock: ended with exit code 3: vLLM exited with 3 in phase import, without being asked to stop"
    )


@pytest.mark.parametrize(
    ("stub", "flags", "words"),
    [
        ({"refuses": "tp_size=3 is too much, api_key=abc"}, (), "tp_size=3 is too much, api_key=<redacted>"),
        ({}, ("--dtype", "banana"), "argument --dtype: invalid choice: 'banana' (choose from "),
    ],
    ids=["configuration", "command line"],
)
def test_what_vllm_refuses_is_said_once_in_its_own_words(
    run: Run, stub: dict[str, str], flags: tuple[str, ...], words: str
) -> None:
    server = run(stub=stub, flags=flags, plan_env=PLUGIN)
    assert server.exit_code() == errors.REFUSED
    after = server.said().partition("vLLM is process ")[2].partition("\n")[2]
    assert after.startswith(f"vLLM 0.0 refuses this command: {words}"), after
    assert after.endswith("\n\nhint: change what vLLM names; the reasons above say who set it\n")


def test_a_refusal_is_no_reason_to_repeat_a_start_without_its_caches(run: Run, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    assert run(verb="warm", stub={"compiles": True}, cache=cache).exit_code() == errors.OK
    server = run(stub={"compiles": True, "refuses": "a dtype"}, cache=cache, plan_env=PLUGIN)
    assert server.exit_code() == errors.REFUSED
    assert server.said().count("cache hit") == 1


def test_a_vllm_that_only_printed_its_help_is_a_success(run: Run) -> None:
    server = run(stub={"dies_with": 0}, flags=("--help=all",))
    assert server.exit_code() == 0
    assert last_line(server) == "drydock: ended with exit code 0: vLLM printed its help"


def test_every_exit_code_of_an_end_is_in_the_table() -> None:
    codes = {errors.DIED, errors.LIMITED, errors.STALLED, errors.WRONG_ANSWER, errors.NOT_READY, errors.OK}
    assert codes <= errors.EXIT_CODES.keys()
    assert 1 not in errors.EXIT_CODES  # vLLM's own, after most errors
    assert sorted(errors.EXIT_CODES) == [0, *range(2, 15), errors.INTERNAL]


# --- answers that are odd -------------------------------------------------------------------------------------------


def test_counters_that_drip_are_no_answer(run: Run) -> None:
    server = run(stub={"metrics": "drip"}, stall=STALL)
    server.until(lambda: "ready after" in server.said(), "ready")
    server.until(lambda: "vLLM's server has not answered" in server.said(), "a stall")
    assert server.status("/readyz")[0] == 503


@pytest.mark.parametrize("metrics", ["huge", "moved"])
def test_counters_that_are_endless_or_elsewhere_do_no_harm(run: Run, metrics: str) -> None:
    server = run(stub={"metrics": metrics}, stall=STALL, flags=("--shutdown-timeout", "3"))
    server.until_ready()
    until_one_that_hangs_is_not_alive(run)
    assert server.status("/livez")[0] == 200
    server.signal()
    assert server.exit_code() == 0


@pytest.mark.parametrize("refuses", [{"generates": False}, {"fails_with": 501}])
def test_a_server_that_never_generated_is_not_asked_for_tokens(run: Run, refuses: dict[str, object]) -> None:
    server = run(stub={"engine": True, **refuses}, stall=STALL)
    server.until_ready()
    question_count = _asked(server)
    until_one_with_a_stall_time_is_asked(run)
    assert _asked(server) == question_count
    assert server.status("/readyz")[0] == 200


# --- the supervisor itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stub", [{}, {"ignores_sigterm": True}, {"killed": True}], ids=" ".join)
def test_vllm_ends_with_a_supervisor_that_is_killed(run: Run, stub: dict[str, bool]) -> None:
    killed = stub.pop("killed", False)
    server = run(stub={"engine": True, "looks_every": 60.0, **stub})
    server.until_ready()
    processes, port = (server.leader(), server.engine()), server.status_port()
    for pid in (server.process.pid, *processes[:killed]):
        os.kill(pid, signal.SIGKILL)
    server.until(lambda: not any(map(is_running, processes)), "the end of vLLM")

    assert server.process.wait() == -signal.SIGKILL
    with pytest.raises(ConnectionRefusedError):
        get(port, "/livez")


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "a pipe without a reader"])
def test_a_server_without_a_reader_of_its_log_goes_on(run: Run, closed: bool) -> None:
    server = run(stub={"engine": True}, blind="closed" if closed else "pipe", options={"status_port": free_port()})
    port = server.start.options["status_port"]
    server.until(lambda: _is_ready(port), "ready")
    server.signal()
    assert server.exit_code() == 0


@pytest.mark.parametrize("read", [False, True], ids=["never read", "read later"])
def test_a_log_that_is_not_read_stops_no_server(run: Run, read: bool) -> None:
    server = run(stub={"engine": True}, blind="full", options={"status_port": free_port()})
    port = server.start.options["status_port"]
    server.until(lambda: _is_ready(port), "ready")
    while read and b"drydock: cache" not in server.reading.read1():
        pass  # what the pipe was full of
    server.signal()
    assert server.exit_code() == 0
    if read:
        log = server.reading.read()
        assert re.search(rb" messages? dropped here", log)
        assert b"ended with exit code 0" in log.splitlines()[-1]


def test_a_file_of_weights_may_have_any_name(run: Run, tmp_path: Path) -> None:
    weights = tmp_path / "a\u2028 \u2028b.safetensors"
    weights.write_bytes(bytes(4096))
    server = run(stub={"engine": True, "maps": str(weights), "delay": 1.0})
    server.until_ready()


def test_a_server_that_nothing_watches_drains_and_ends(run: Run) -> None:
    server = run(broken="watch_processes", options={"drain_timeout": 3.0})
    assert server.exit_code() == errors.INTERNAL
    assert "ZeroDivisionError" in last_line(server)
    assert "Traceback" in server.said()


def test_a_process_that_is_lost_while_draining_is_named(run: Run) -> None:
    server = run(stub={"engine": True, "token_delay": 0.05, "looks_every": 60.0}, options={"drain_timeout": 30})
    server.until_ready()
    running = server.stream(tokens=10_000)
    server.signal()
    server.until(lambda: "draining" in server.said(), "draining")
    os.kill(server.engine(), signal.SIGKILL)
    assert server.exit_code() == errors.DIED
    assert "VLLM::EngineCore" in last_line(server)
    running.close()


def _is_ready(port: int) -> bool:
    try:
        return get(port, "/readyz")[0] == 200
    except OSError:
        return False


def _asked(server: Running) -> int:
    return int(get(server.start.port, "/asked")[1])
