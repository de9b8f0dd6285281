"""The CPU image when its engine core is killed or hangs, when it stops under load, and within its limits."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from docker.models.containers import Container

from bench import soak
from drydock.build import build
from drydock.core.paths import ROOT
from drydock.prove import demo
from entrypoints.core import errors
from tests.support.waiting import wait_until

pytestmark = pytest.mark.proves("cpu-vllm0.32", "hardware")


Serve = Callable[..., Container]

SIGNAL = """
import os, sys
for name in os.listdir('/proc'):
    if name.isdigit() and open(f'/proc/{name}/cmdline').read().startswith('VLLM::EngineCore'):
        os.kill(int(name), int(sys.argv[1]))
"""


@pytest.fixture
def serving(built: build.Built, model: Path) -> Iterator[Serve]:
    """Start a server with flags and wait until it is ready."""
    started = []

    def serve(*flags: str, **options: Any) -> Container:
        context = demo.run_model_server(built.image, model, *flags, **options)
        container = context.__enter__()
        started.append(context)
        demo.wait_until_ready(container)
        return container

    yield serve
    for context in started:
        context.__exit__(None, None, None)


HOG = """
import os
for name in os.listdir('/proc'):
    if name.isdigit() and open(f'/proc/{name}/cmdline').read().startswith('VLLM::EngineCore'):
        open(f'/proc/{name}/oom_score_adj', 'w').write('1000')
held = []
while True:
    held.append(bytearray(b'x') * (64 << 20))
"""
"""Makes the engine core the first choice of the OOM killer, then takes all memory."""


def last_line(container: Container) -> str:
    return said(container).rstrip().splitlines()[-1]


def signal_engine(container: Container, number: int) -> None:
    """Send a signal to the engine core."""
    code, output = container.exec_run(["/usr/bin/python3", "-I", "-S", "-c", SIGNAL, str(number)])
    assert code == 0, output


def said(container: Container) -> str:
    return str(container.logs().decode(errors="replace"))


def status(container: Container, path: str) -> int:
    return int(demo.fetch_status(demo.find_port_url(container, demo.STATUS_PORT, path))[0])


def test_a_killed_engine_core_is_a_failure_with_a_name(serving: Serve) -> None:
    container = serving()
    signal_engine(container, 9)
    killed = time.monotonic()
    wait_until(lambda: status(container, "/readyz") != 200, "not ready")
    unready = time.monotonic() - killed
    code = container.wait(timeout=60)["StatusCode"]

    assert code == errors.DIED, said(container)
    assert last_line(container).startswith("drydock: ended with exit code 9: VLLM::EngineCore (process ")
    assert unready < 15  # a quarter of a second here; a busy machine needs longer


@pytest.fixture(scope="module")
def small(built: build.Built, model: Path) -> Iterator[Container]:
    """A server in a container of two and a half GiB, ready. The last of its tests ends it."""
    limits = {"mem_limit": "2560m", "memswap_limit": "2560m"}
    with demo.run_model_server(built.image, model, "--stall-seconds", "6", **limits) as container:
        demo.wait_until_ready(container)
        yield container


def test_a_small_model_serves_in_a_container_of_two_and_a_half_gib(small: Container) -> None:
    """The cache shrinks before the start is refused."""
    body = {"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 5, "temperature": 0}
    url = demo.find_port_url(small, demo.API_PORT, "/v1/completions")
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        text = json.load(response)["choices"][0]["text"]

    assert "Paris" in text
    assert "--kv-cache-memory-bytes = " in said(small)


def test_a_hung_engine_core_is_not_ready_then_not_alive_and_recovers(small: Container) -> None:
    signal_engine(small, 19)
    wait_until(lambda: status(small, "/readyz") != 200, "not ready")
    assert status(small, "/livez") == 200
    wait_until(lambda: status(small, "/livez") != 200, "not alive")
    signal_engine(small, 18)
    wait_until(lambda: status(small, "/readyz") == 200, "ready again")

    assert status(small, "/livez") == 200
    # Which of the two depends on what the engine did when it was stopped: it was idle, or it had the watch's request.
    reasons = ("vLLM has not generated a token that it was asked for", "requests wait at engine 0 without progress")
    assert any(f"not ready: {reason}" in said(small) for reason in reasons), said(small)
    # The line follows the status: the status port answers from the state that the supervisor reads afterwards.
    wait_until(lambda: "ready again: vLLM makes progress" in said(small), "the line of progress in the log")


def test_the_oom_killer_is_named(small: Container) -> None:
    small.exec_run(["/usr/bin/python3", "-I", "-S", "-c", HOG], detach=True)
    code = small.wait(timeout=180)["StatusCode"]

    assert code == errors.LIMITED, said(small)
    assert "OOM killer" in last_line(small)


def test_a_drain_under_load_answers_503_and_never_500(serving: Serve) -> None:
    container = serving("--drain-timeout", "20", "--drain-pause", "2")
    port = urlsplit(demo.find_port_url(container, demo.API_PORT, "/")).port
    answers: Counter[str] = Counter()
    refused: list[http.client.HTTPResponse] = []
    over = threading.Event()

    def ask() -> None:
        body = {"model": "smollm2", "prompt": "one, two,", "max_tokens": 40, "ignore_eos": True}
        while not over.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
                response = connection.getresponse()
                response.read()
            except (OSError, http.client.HTTPException) as error:
                answers[type(error).__name__] += 1
                time.sleep(0.02)
                continue
            answers[str(response.status)] += 1
            if response.status == 503:
                refused.append(response)

    clients = [threading.Thread(target=ask) for _ in range(6)]
    for client in clients:
        client.start()
    wait_until(lambda: answers["200"] >= 6, "the first answers")
    container.kill(signal="SIGTERM")
    code = container.wait(timeout=60)["StatusCode"]
    over.set()
    for client in clients:
        client.join()

    assert code == 0, said(container)
    assert answers["500"] == 0, answers
    assert answers["503"] > 0, answers
    assert {(response.getheader("Retry-After"), response.getheader("Connection")) for response in refused} == {
        ("1", "close")
    }


def test_a_pids_limit_that_ends_vllm_is_named(built: build.Built, model: Path) -> None:
    with demo.run_model_server(built.image, model, pids_limit=12) as container:
        code = container.wait(timeout=120)["StatusCode"]
        logs = said(container)

    assert code in (errors.LIMITED, errors.HOST), logs
    assert "--pids-limit" in logs.rstrip().splitlines()[-1]


@pytest.mark.slow
def test_a_minute_of_rude_clients_loses_nothing_and_leaks_nothing(serving: Serve) -> None:
    container = serving()
    soak_result = soak.soak_server(container, 60)

    assert soak.find_soak_problems(soak_result) == [], soak_result.stopping


def test_the_soak_names_its_options() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "bench.soak", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert "--seconds" in result.stdout
