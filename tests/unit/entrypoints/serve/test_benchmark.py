"""The programs and options of a benchmark."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from entrypoints.core.errors import HOST, NOT_READY, USAGE, EntrypointError
from entrypoints.request.benchmark import Load
from entrypoints.request.vllm_flags import parse_user_flags
from entrypoints.serve import benchmark
from entrypoints.serve.benchmark import (
    Kit,
    ask_model,
    endpoint_of,
    find_program,
    make_bench_command,
    offline_words,
    require_program,
    serve_for_benchmark,
    serve_words,
    without_server,
)
from entrypoints.serve.client import Endpoint, Reply
from tests.support.hosts import expect
from tests.support.ports import free_port

KIT = Kit("python3", {}, "/tmp/x")
LOAD = Load(200, 50, 4, 40, 0.5)
TOLD = {"id": "name", "root": "/models/m"}
RANDOM = "from vllm.benchmarks.datasets import add_random_dataset_base_args"
GCU = expect.profile_in("gcu3.5-vllm0.9.2")["thresholds"]


def test_vllms_own_command_is_called_and_the_vendors_program_directly() -> None:
    assert make_bench_command(find_program("serve", {}, "0.32.0"), KIT, ("-x",)) == (
        "python3", "-m", "vllm.entrypoints.cli.main", "bench", "serve", "-x",
    )  # fmt: skip
    assert make_bench_command(find_program("serve", GCU, "0.9.2"), KIT, ("-x",))[1:3] == (
        "-m",
        "vllm_utils.benchmark_serving",
    )


def test_enflames_own_programs_get_the_lengths_in_their_options() -> None:
    program = find_program("test", GCU, "0.9.2")

    assert not program.own
    assert offline_words("test", LOAD, program, KIT) == (
        "--perf", "--input-len", "200", "--output-len", "50", "--num-prompts", "40",
    )  # fmt: skip
    with pytest.raises(EntrypointError) as caught:
        find_program("load", GCU, "0.9.2")
    assert caught.value.hint == "this image has: serve, latency, throughput, test, vision"


def test_lengths_are_spread_only_where_the_option_means_this() -> None:
    def ratio(program_of: str) -> bool:
        program = find_program("serve", {}, program_of)
        return "--random-range-ratio" in serve_words(program, LOAD, "http://h:1", (), KIT, TOLD)

    assert [ratio(version) for version in ("0.8.5", "0.9.0.1", "0.32.0")] == [False, True, True]


@pytest.mark.parametrize(("source", "option"), [("", "--input-len"), (RANDOM, "--random-input-len")])
def test_lengths_are_given_by_the_options_that_the_benchmark_uses(source: str, option: str, tmp_path: Path) -> None:
    module = tmp_path / "vllm" / "benchmarks" / "throughput.py"
    module.parent.mkdir(parents=True)
    module.write_text(source)
    kit = KIT._replace(python=sys.executable, env={"PYTHONPATH": str(tmp_path)})
    program = require_program(find_program("throughput", {}, "0.32.0"), kit, "0.32.0")

    assert offline_words("throughput", LOAD, program, kit)[:2] == (option, "200")


def test_a_model_that_the_user_names_is_the_only_one() -> None:
    words = serve_words(find_program("serve", {}, "0.32.0"), LOAD, "http://h:1", ("--model", "mine"), KIT, TOLD)

    assert words.count("--model") == 1
    assert "--served-model-name" not in words


def test_an_engine_has_no_flags_of_a_server() -> None:
    argv = ("--model", "m", "--host", "0.0.0.0", "--port=8", "--disable-log-requests", "--dtype", "float16")

    assert without_server(argv) == ("--model", "m", "--dtype", "float16")


CONFIG = "host: 0.0.0.0\nport: 8123\nssl-certfile: /c.pem\napi-key: sk-file\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), Endpoint("127.0.0.1", 8000, key="sk-env")),
        (("--api-key", "a", "b"), Endpoint("127.0.0.1", 8000, key="a")),
        (("--config", "c.yaml"), Endpoint("127.0.0.1", 8123, tls=True, key="sk-file")),
        (
            ("--config", "c.yaml", "--port=9", "--host", "h"),
            Endpoint("h", 9, tls=True, key="sk-file"),
        ),
    ],
)
def test_a_started_server_is_where_its_flags_and_its_config_file_say(
    words: tuple[str, ...], expected: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CONFIG)

    assert endpoint_of(parse_user_flags(words, {}), {"VLLM_API_KEY": "sk-env"}) == expected


@pytest.mark.parametrize("port", ["0", "65536", "x"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(EntrypointError, match="--port: invalid value") as caught:
        endpoint_of(parse_user_flags(("--port", port), {}), {})
    assert caught.value.code == USAGE


def answer(monkeypatch: pytest.MonkeyPatch, status: int, model: Any) -> None:
    body = json.dumps({"data": [model]}).encode()
    monkeypatch.setattr(benchmark, "send_request", lambda *_, **__: Reply(status, body))


@pytest.mark.parametrize(
    "name", [{"id": ""}, {"id": "--x"}, {"id": 3}, {"root": "-x"}, {"root": "\n"}, {"root": "m" * 513}]
)
def test_a_servers_answer_is_no_option(name: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, 200, {"id": "name", "root": "m" * 512})
    assert ask_model(Endpoint("h", 1)) == {"id": "name", "root": "m" * 512}
    answer(monkeypatch, 200, {"id": "name", "root": "/models/m", **name})

    with pytest.raises(EntrypointError, match="expected the list of models") as caught:
        ask_model(Endpoint("h", 1))
    assert (caught.value.code, caught.value.hint) == (NOT_READY, "is this vLLM's server? see its log")


@pytest.mark.parametrize(("status", "hint"), [(401, "--api-key-file"), (403, "--api-key-file"), (500, "see its log")])
def test_only_a_server_that_refuses_lacks_the_key(status: int, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, status, {"id": "name"})

    with pytest.raises(EntrypointError, match=f"answered {status}") as caught:
        ask_model(Endpoint("h", 1))
    assert hint in caught.value.hint


ONCE = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[-1])))
connection, _ = listener.accept()
connection.recv(4096)
connection.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n")
connection.close()
sys.exit(3)
"""
"""Stands in for the entrypoint: a server that is ready once, and ends."""


def test_a_server_that_ends_while_it_is_measured_is_an_error(tmp_path: Path) -> None:
    package, port = tmp_path / "once.py", free_port()
    package.write_text(ONCE)
    endpoint, messages = Endpoint("127.0.0.1", free_port()), list[str]()

    with (
        pytest.raises(EntrypointError, match="ended with exit code 3 while it was measured") as caught,
        serve_for_benchmark(str(package), (str(port),), endpoint, port, os.environ, messages.append),
    ):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    assert caught.value.code == NOT_READY
    assert messages == ["the server is ready: measuring"]


def test_an_interpreter_that_cannot_be_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    program, endpoint = find_program("serve", {}, "0.32.0"), Endpoint("127.0.0.1", free_port())

    with pytest.raises(EntrypointError, match="no/python: cannot be run: No such file") as caught:
        require_program(program, KIT._replace(python="/no/python"), "0.32.0")
    assert caught.value.code == HOST
    with (
        pytest.raises(EntrypointError, match="such/python: cannot be run: No such file") as caught,
        serve_for_benchmark("p", (), endpoint, free_port(), {}, print),
    ):
        pass
    assert caught.value.code == HOST
