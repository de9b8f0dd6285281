"""The supervisor and the stub as real processes: readiness, drain, exit codes, orphans, and checks before the start."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from entrypoints.core import errors
from entrypoints.core.records import Group, ServePlan
from entrypoints.request.arguments import Options
from entrypoints.serve.known_answer import PROMPT
from entrypoints.serve.launch import as_member, bind_cpus, enter_work_folder, make_vllm_environment
from tests.support.ports import free_port
from tests.support.running_server import Run, is_running


def test_it_is_alive_before_ready_and_ready_only_after_the_known_answer(run: Run) -> None:
    server = run(stub={"delay": 0.3})
    assert server.status("/livez")[0] == 200
    status, body = server.status("/readyz")
    assert (status, body["reason"]) == (503, "starting: import")
    assert server.status("/startupz")[0] == 503
    server.until_ready()
    assert server.status("/readyz")[1]["known_answer"] == [
        f"prefill and decode agree on 16 tokens: '4 5' after {PROMPT!r}",
        "not compared: no answer is recorded for this model",
    ]
    status, body = server.status("/startupz")
    assert status == 200
    assert list(body["seconds"]) == ["plan", "spawn", "import", "known_answer"]
    assert body["seconds"]["import"] >= 0.3
    assert "drydock_ready 1\n" in server.status("/metrics")[1]


def test_sigterm_lets_a_streamed_answer_finish_and_exits_0(run: Run) -> None:
    server = run(stub={"token_delay": 0.05})
    server.until_ready()
    answer = server.stream(tokens=15)
    server.signal()
    server.until(lambda: server.status("/readyz")[1]["reason"] == "stopping: SIGTERM received", "not ready")
    assert answer.read().endswith(b"data: 14\n\ndata: [DONE]\n\n")
    assert server.exit_code() == 0


def test_while_draining_a_request_still_on_its_way_is_answered(run: Run) -> None:
    server = run(stub={"token_delay": 0.05})
    server.until_ready()
    first = server.stream(tokens=40)  # two seconds: time for the second one to come
    server.signal()
    server.until(lambda: server.status("/readyz")[0] == 503, "not ready")
    second = server.stream(tokens=12)
    assert first.read().endswith(b"[DONE]\n\n")
    assert second.read().endswith(b"[DONE]\n\n")
    assert server.exit_code() == 0


def test_a_vllm_that_drains_itself_gets_sigterm_after_half_of_the_time(run: Run) -> None:
    server = run(stub={"token_delay": 0.05}, flags=("--shutdown-timeout", "30"), options={"drain_timeout": 4})
    server.until_ready()
    answer = server.stream(tokens=45)  # longer than half of the time
    server.signal()
    server.until(lambda: server.stream(tokens=1).status == 500, "vLLM refusing new requests")
    assert answer.read().endswith(b"[DONE]\n\n")
    assert server.exit_code() == 0


def test_a_vllm_that_counts_nothing_is_left_to_drain_itself(run: Run) -> None:
    server = run(stub={"token_delay": 0.03, "counts": False}, flags=("--shutdown-timeout=30",))
    server.until_ready()
    answer = server.stream(tokens=10)
    server.signal()
    assert answer.read().endswith(b"[DONE]\n\n")
    assert server.exit_code() == 0


def test_requests_longer_than_the_drain_timeout_are_cut_with_their_own_exit_code(run: Run) -> None:
    server = run(stub={"token_delay": 0.05}, options={"drain_timeout": 3, "drain_pause": 0})
    server.until_ready()
    answers = [server.stream(tokens=10_000) for _ in range(3)]
    server.signal()
    assert server.exit_code() == 137
    assert server.said().endswith("ended with exit code 137: SIGTERM received: requests were cut off: 3\n")
    for answer in answers:
        assert not answer.read().endswith(b"[DONE]\n\n")


def test_a_vllm_that_ignores_sigterm_is_killed_and_no_request_was_lost(run: Run) -> None:
    server = run(stub={"ignores_sigterm": True}, options={"drain_timeout": 0.2})
    server.until_ready()
    server.signal()
    assert server.exit_code() == 0
    assert "vLLM did not exit in time: killing it" in server.said()
    assert not is_running(server.leader())


def test_a_second_sigterm_kills_at_once(run: Run) -> None:
    server = run(stub={"token_delay": 0.05}, options={"drain_timeout": 60})
    server.until_ready()
    server.stream(tokens=10_000)
    server.signal()
    server.until(lambda: "draining" in server.said(), "draining")
    began = time.monotonic()
    server.signal()
    assert server.exit_code() == 137
    assert time.monotonic() - began < 30  # half of the drain timeout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_before_ready_ends_at_once_with_0(run: Run, number: int) -> None:
    server = run(stub={"delay": 30})
    server.leader()
    server.signal(number)
    assert server.exit_code() == 0


def test_a_vllm_killed_by_a_signal_gives_128_and_its_number(run: Run) -> None:
    server = run()
    server.until_ready()
    os.kill(server.leader(), signal.SIGSEGV)
    assert server.exit_code() == 128 + signal.SIGSEGV


def test_orphans_are_adopted_and_ended(run: Run, tmp_path: Path) -> None:
    note = tmp_path / "orphan"
    server = run(stub={"orphan": str(note)})
    server.until_ready()
    orphan = int(server.until(lambda: note.exists() and note.read_text(), "the orphan"))
    parent = Path(f"/proc/{orphan}/stat").read_text().rpartition(")")[2].split()[1]
    assert int(parent) == server.process.pid
    server.signal()
    assert server.exit_code() == 0
    assert not is_running(orphan)


def test_an_orphan_that_ends_leaves_no_zombie(run: Run, tmp_path: Path) -> None:
    note = tmp_path / "orphan"
    server = run(stub={"orphan": str(note)})
    server.until_ready()
    orphan = int(server.until(lambda: note.exists() and note.read_text(), "the orphan"))
    os.kill(orphan, signal.SIGKILL)
    server.until(lambda: not Path(f"/proc/{orphan}").exists(), "the orphan to be waited for")


def test_tokens_that_differ_between_prefill_and_decode_are_never_served(run: Run) -> None:
    server = run(stub={"disagree_by": 2.0})
    assert server.exit_code() == errors.WRONG_ANSWER
    assert "wrong answer: token 0: decode chose 4, prefill 99; 2.00 apart, 0.5 allowed" in server.said()


def test_a_wrong_server_can_be_kept_for_debugging_but_is_never_ready(run: Run) -> None:
    server = run(stub={"disagree_by": 2.0}, env={"DRYDOCK_KEEP_WRONG": "1"})
    server.until(lambda: server.status("/readyz")[1]["wrong"], "the wrong answer")
    status, body = server.status("/readyz")
    assert status == 503
    assert "wrong answer: token 0:" in body["reason"]
    assert server.process.poll() is None


def test_a_profile_sets_the_margin(run: Run) -> None:
    server = run(stub={"disagree_by": 0.2}, profile={"thresholds": {"known_answer_margin": {"value": 0.1}}})
    assert server.exit_code() == errors.WRONG_ANSWER


def test_a_server_that_fails_at_first_is_asked_again(run: Run) -> None:
    server = run(stub={"fails_first": 1})
    server.until(lambda: "answers 500" in server.status("/readyz")[1]["reason"], "the reason")
    server.until_ready()


def test_a_model_that_does_not_generate_becomes_ready_with_the_reason(run: Run) -> None:
    server = run(stub={"generates": False})
    server.until_ready()
    assert "not a generating model" in server.status("/readyz")[1]["known_answer"][0]


@pytest.mark.parametrize(
    ("flags", "env"), [(("--api-key", "s3cret"), {}), (("--api-key=s3cret",), {}), ((), {"VLLM_API_KEY": "s3cret"})]
)
def test_a_server_with_an_api_key_is_asked_with_it(run: Run, flags: tuple[str, ...], env: Mapping[str, str]) -> None:
    server = run(flags=flags, env=env)
    server.until_ready()
    assert "s3cret" not in server.said()


def test_a_server_on_a_unix_socket_is_asked_there(run: Run, tmp_path: Path) -> None:
    server = run(flags=("--uds", str(tmp_path / "socket")))
    server.until_ready()


def test_a_server_with_a_certificate_is_asked_over_tls(run: Run, tmp_path: Path) -> None:
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate")
    pem_file = tmp_path / "both.pem"
    files = ("-keyout", str(pem_file), "-out", str(tmp_path / "cert.pem"))
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=example.org")
    subprocess.run(("openssl", "req", "-x509", "-nodes", *curve, *files), check=True, capture_output=True)
    pem_file.write_bytes(pem_file.read_bytes() + (tmp_path / "cert.pem").read_bytes())
    server = run(flags=("--ssl-certfile", str(pem_file)))
    server.until_ready()


def test_warm_that_is_interrupted_says_it_was_not_ready(run: Run) -> None:
    server = run(stub={"delay": 30}, verb="warm")
    server.leader()
    server.signal()
    assert server.exit_code() == errors.NOT_READY


def test_exec_becomes_vllm(run: Run) -> None:
    server = run(stub={"dies_with": 5}, options={"exec_": True})
    assert server.exit_code() == 5
    assert "status on port" not in server.said()


def test_a_port_in_use_is_named_before_anything_starts(run: Run) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        server = run(port=port)
        assert server.exit_code() == errors.HOST
    assert f"--port {port}: Address already in use" in server.said()
    assert "another process of this network namespace listens there" in server.said()
    assert "hint: choose another port with --port N" in server.said()


def test_the_status_port_cannot_be_vllms(run: Run) -> None:
    port = free_port()
    server = run(port=port, options={"status_port": port})
    assert server.exit_code() == errors.USAGE


def test_an_interpreter_that_is_not_there_is_named(run: Run) -> None:
    server = run(program="/no/such/python")
    assert server.exit_code() == errors.HOST
    assert "/no/such/python: cannot be run: No such file or directory" in server.said()


def test_a_read_only_tmp_is_refused(run: Run) -> None:
    server = run(tmp_writable=False)
    assert server.exit_code() == errors.HOST
    assert "hint: add --tmpfs /tmp" in server.said()


def test_vllm_inherits_the_environment_with_the_plans_on_top() -> None:
    plan = ServePlan((sys.executable,), {"A": "plan"}, (), (), "", "", 0)
    env = {"A": "inherited", "B": "kept", "DRYDOCK_GROUP_SECRET": "of the supervisor"}
    assert make_vllm_environment(plan, env) == {"A": "plan", "B": "kept"}


def test_a_group_secret_comes_from_a_file_or_the_environment_and_is_long_enough(tmp_path: Path) -> None:
    plan = ServePlan((sys.executable,), {}, (), (), "", "", 0, group=Group(0, 2, "10.0.0.1"))
    long, short = tmp_path / "long", tmp_path / "short"
    long.write_text(f"{'f' * 16}\n")
    short.write_text("fifteen bytes.\n")
    variable = {"DRYDOCK_GROUP_SECRET": "e" * 16}

    for path, env, secret in ((long, variable, b"f" * 16), ("", variable, b"e" * 16), ("", {}, b"")):
        member = as_member(plan, Options(group_secret_file=str(path)), env)
        assert member
        assert member.secret == secret
    for path, env, message in (
        (short, variable, f"--group-secret-file {short}: found 14 bytes, expected at least 16"),
        ("", {"DRYDOCK_GROUP_SECRET": "short"}, "DRYDOCK_GROUP_SECRET: found 5 bytes, expected at least 16"),
        ("", {"DRYDOCK_GROUP_SECRET": ""}, "DRYDOCK_GROUP_SECRET: found 0 bytes, expected at least 16"),
        ("", {"DRYDOCK_GROUP_SECRET": " \n"}, "DRYDOCK_GROUP_SECRET: found 0 bytes, expected at least 16"),
        (tmp_path / "none", {}, f"--group-secret-file {tmp_path / 'none'}: No such file or directory"),
    ):
        with pytest.raises(errors.EntrypointError) as raised:
            as_member(plan, Options(group_secret_file=str(path)), env)
        assert (raised.value.code, raised.value.message) == (errors.USAGE, message)


def test_a_kubernetes_service_link_is_not_taken_for_a_port() -> None:
    plan = ServePlan((sys.executable,), {}, (), (), "", "", 0)
    assert make_vllm_environment(plan, {"VLLM_PORT": "tcp://10.0.0.7:8000"}) == {}
    assert make_vllm_environment(plan, {"VLLM_PORT": "5000"}) == {"VLLM_PORT": "5000"}


def test_vllm_starts_in_the_folder_that_is_named(tmp_path: Path) -> None:
    before = Path.cwd()
    try:
        enter_work_folder("")
        assert Path.cwd() == before
        enter_work_folder(str(tmp_path))
        assert Path.cwd() == tmp_path
    finally:
        os.chdir(before)
    with pytest.raises(errors.EntrypointError, match=r"DRYDOCK_WORK_FOLDER=.*No such file"):
        enter_work_folder(str(tmp_path / "none"))


def test_only_cpus_that_are_there_are_bound_to() -> None:
    before = os.sched_getaffinity(0)
    try:
        bind_cpus(str(min(before)))
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)
    bind_cpus("")
    assert os.sched_getaffinity(0) == before
    for wrong in ("first", "65000"):
        with pytest.raises(errors.EntrypointError, match="DRYDOCK_CPUS"):
            bind_cpus(wrong)
