"""`bench` as a process, with a stand-in for vLLM's benchmark and its server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from entrypoints.core import errors
from entrypoints.facts.image_files import PACKAGE
from tests.support.loopback import ThreadedServer
from tests.support.sample import PROFILE, write_model
from tests.support.waiting import wait_until

BENCHMARK = """
import json, os, time
from pathlib import Path

def add_cli_args(parser):
    for name in ("base-url", "model", "served-model-name", "dataset-name", "result-dir", "result-filename",
                 "random-range-ratio", "request-rate", "output-json", "dtype"):
        parser.add_argument(f"--{name}")
    for name in ("random-input-len", "random-output-len", "num-prompts", "max-concurrency", "input-len", "output-len",
                 "batch-size", "num-iters"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("ignore-eos", "save-result"):
        parser.add_argument(f"--{name}", action="store_true")

def main(args):
    print("of vLLM")
    if "PID" in os.environ:
        Path(os.environ["PID"] + ".new").write_text(str(os.getpid()))
        os.rename(os.environ["PID"] + ".new", os.environ["PID"])
        time.sleep(60)
    fails = int(os.environ.get("FAILS", "0"))
    if fails < 0:
        raise SystemExit(5)
    figures = {"model_id": args.model, "words": vars(args), "key": os.environ.get("OPENAI_API_KEY")}
    if args.num_prompts:
        figures |= {"completed": args.num_prompts - fails, "max_concurrency": args.max_concurrency,
                    "num_prompts": args.num_prompts, "output_throughput": 10.0 * args.max_concurrency}
    else:
        figures["avg_latency"] = 0.5
    path = args.output_json or os.path.join(args.result_dir, args.result_filename)
    Path(path).write_text(json.dumps(figures))
"""


COMMANDS = """
import argparse, importlib, sys

command, kind, *words = sys.argv[1:]
assert command == "bench"
program = importlib.import_module(f"vllm.benchmarks.{kind}")
parser = argparse.ArgumentParser()
program.add_cli_args(parser)
args, args.rest = parser.parse_known_args(words)
program.main(args)
"""


class Models(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_authorized = self.path == "/v1/models" and self.headers.get("Authorization") == "Bearer sk-1"
        body = json.dumps({"data": [{"id": "name", "root": "/models/m"}]}).encode()
        self.send_response(200 if is_authorized else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if is_authorized else b"{" * len(body))

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadedServer(Models) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A profile whose Python has a stand-in for vLLM's benchmarks."""
    for name in ("serve", "latency"):
        path = tmp_path / "site" / "vllm" / "benchmarks" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(BENCHMARK)
    commands = tmp_path / "site" / "vllm" / "entrypoints" / "cli"
    commands.mkdir(parents=True)
    (commands / "main.py").write_text(COMMANDS)
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({**PROFILE, "python": sys.executable}))
    return profile


def argv(*words: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(PACKAGE), "bench", *words]


def environment(profile: Path, **env: str) -> dict[str, str]:
    path = str(profile.parent / "site")
    whole = {"PATH": os.environ["PATH"], "DRYDOCK_PROFILE": str(profile), "PYTHONPATH": path, "VLLM_API_KEY": "sk-1"}
    return {**whole, "TMPDIR": str(profile.parent), **env}


def bench(profile: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    whole, folder = environment(profile, **env), profile.parent
    return subprocess.run(argv(*words), capture_output=True, text=True, check=False, timeout=60, env=whole, cwd=folder)


def result(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_server_is_measured_with_the_lengths_of_the_plan(image: Path, url: str, tmp_path: Path) -> None:
    lengths = ("--input-range", "100,300", "--output-range", "10,90", "--concurrency", "4")
    ran = bench(image, "--url", url, *lengths, "--request-rate", "2", "--output", str(tmp_path / "a.json"))

    assert ran.returncode == errors.OK, ran.stderr
    assert ran.stdout == "of vLLM\n"
    words = result(tmp_path / "a.json")["words"]
    expected_words = {"base_url": url, "model": "/models/m", "served_model_name": "name", "dataset_name": "random"}
    expected_words |= {"random_input_len": 200, "random_output_len": 50, "random_range_ratio": "0.5", "num_prompts": 40}
    assert {name: words[name] for name in (*expected_words, "request_rate")} == {**expected_words, "request_rate": "2"}
    assert result(tmp_path / "a.json")["key"] == "sk-1"


@pytest.mark.parametrize("words", [("--json",), ("--output", "-"), ("--json", "--output", "-")])
def test_json_has_standard_output_alone(image: Path, url: str, words: tuple[str, ...]) -> None:
    ran = bench(image, "--url", url, *words)

    assert ran.returncode == errors.OK, ran.stderr
    assert json.loads(ran.stdout)["max_concurrency"] == 8
    assert "of vLLM" in ran.stderr


def test_a_closed_standard_output_loses_no_file(image: Path, url: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = argv("--url", url, "--json", "--output", str(tmp_path / "a.json"))
    ran = subprocess.run(command, env=environment(image), stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)

    assert b"cannot write to standard output" in ran.stderr
    assert ran.returncode == errors.HOST
    assert result(tmp_path / "a.json")["max_concurrency"] == 8


def test_the_users_words_for_the_benchmark_win(image: Path, url: str) -> None:
    ran = bench(image, "--url", url, "--json", "--", "--num-prompts", "3", "--max-concurrency", "2")

    assert ran.returncode == errors.OK, ran.stderr
    assert json.loads(ran.stdout)["max_concurrency"] == 2


@pytest.mark.parametrize("words", [(), ("--", "--num-prompts", "7")])
def test_requests_that_failed_fail_the_verb(image: Path, url: str, words: tuple[str, ...]) -> None:
    ran = bench(image, "--url", url, *words, FAILS="2")

    assert ran.returncode == errors.CHECK_FAILED
    assert "2 requests failed" in ran.stderr


def test_a_stop_of_the_container_ends_the_benchmark(image: Path, url: str, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    process = subprocess.Popen(argv("--url", url), env=environment(image, PID=str(pid)), stderr=subprocess.DEVNULL)
    wait_until(pid.exists, "the benchmark runs")
    process.send_signal(signal.SIGTERM)

    assert process.wait(timeout=30) == 128 + signal.SIGTERM
    wait_until(lambda: not Path(f"/proc/{pid.read_text()}").exists(), "the benchmark has ended")


def test_the_exit_code_of_the_benchmark_is_passed_on(image: Path, url: str) -> None:
    ran = bench(image, "--url", url, FAILS="-1")

    assert ran.returncode == 5
    assert "vllm.benchmarks.serve ended with exit code 5" in ran.stderr


def test_without_a_server_the_benchmark_gets_the_engines_flags(image: Path, tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "model"))
    words = ("--model", model, "--kind", "latency", "--concurrency", "4", "--input-range", "32", "--dtype", "float32")
    env = {"DRYDOCK_CACHE_DIR": str(tmp_path / "cache")}
    ran = bench(image, *words, "--port", "8123", "--output", str(tmp_path / "a.json"), "--", "--seed", "2", **env)

    assert ran.returncode == errors.OK, ran.stderr
    words_of = result(tmp_path / "a.json")["words"]
    expected_words = {
        "model": model,
        "input_len": 32,
        "output_len": 128,
        "batch_size": 4,
        "num_iters": 30,
        "dtype": "float32",
    }
    assert {name: words_of[name] for name in expected_words} == expected_words
    assert words_of["rest"][-2:] == ["--seed", "2"]
    assert "--max-num-seqs" in words_of["rest"]
    assert "--port" not in words_of["rest"]
    assert "8123" not in words_of["rest"]


def test_a_vllm_without_a_benchmark_is_told_before_a_server_is_started(image: Path, tmp_path: Path) -> None:
    ran = bench(image, "--model", str(write_model(tmp_path / "model")), "--kind", "throughput")

    assert ran.returncode == errors.HOST
    assert "has no vllm.benchmarks.throughput" in ran.stderr
    assert "--url" in ran.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--url", "ftp://x"), "expected a scheme, a host and a port"),
        (("--url", "http://h/v1"), "expected a scheme, a host and a port"),
        (("--url", "http://h:1", "--kind", "latency"), "--url cannot be used with --kind latency"),
        (("--url", "http://h:1", "--kind", "load"), "this image has: serve, latency, throughput"),
        (("--url", "http://h:1", "--output", "/no/such/folder/x.json"), "cannot be written"),
        (("--model", "m", "--config", "vllm.yaml"), "leave no port to measure at"),
    ],
)
def test_what_cannot_be_measured_is_refused_first(image: Path, words: tuple[str, ...], says: str) -> None:
    (image.parent / "vllm.yaml").write_text("uds: /tmp/vllm.sock\n")
    ran = bench(image, *words)

    assert ran.returncode == errors.USAGE
    assert says in ran.stderr


def test_a_server_that_does_not_answer_is_not_ready(image: Path, url: str) -> None:
    assert bench(image, "--url", "http://127.0.0.1:9").returncode == errors.NOT_READY
    refused = bench(image, "--url", url, VLLM_API_KEY="sk-2")
    assert refused.returncode == errors.NOT_READY
    assert "answered 401" in refused.stderr


@pytest.mark.parametrize("option", ["--status-port", "--port"])
def test_a_server_that_has_the_port_is_not_measured_instead(image: Path, url: str, option: str) -> None:
    ran = bench(image, "--model", "m", option, url.rpartition(":")[2])

    assert ran.returncode == errors.HOST
    assert "Address already in use" in ran.stderr
    assert "the server ended before it was ready" not in ran.stderr
