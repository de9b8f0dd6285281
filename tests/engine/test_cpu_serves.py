"""The CPU image serves a real model rightly, under the conditions that clusters impose."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.models.containers import Container

from drydock.build import build
from drydock.prove import demo
from drydock.run.monitoring import render_monitoring_files
from tests.support.waiting import wait_until

pytestmark = pytest.mark.proves("cpu-vllm0.32", "hardware")


def post(container: Container, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        demo.find_port_url(container, demo.API_PORT, path),
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    return urllib.request.urlopen(request, timeout=120)


def test_a_request_for_log_probabilities_does_not_kill_the_engine(server: Container) -> None:
    body = {"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}

    with post(server, "/v1/completions", {**body, "logprobs": 2, "prompt_logprobs": 1}) as response:
        choice = json.load(response)["choices"][0]

    assert "Paris" in choice["text"]
    assert choice["logprobs"]["top_logprobs"]


def test_readiness_was_reached_in_phases_that_are_reported(server: Container) -> None:
    with urllib.request.urlopen(demo.find_port_url(server, demo.STATUS_PORT, "/startupz"), timeout=60) as response:
        report = json.load(response)
    with urllib.request.urlopen(demo.find_port_url(server, demo.STATUS_PORT, "/metrics"), timeout=60) as response:
        metrics = response.read().decode()

    assert report["phase"] == "ready"
    assert "drydock_startup_phase_seconds" in metrics
    assert "drydock_ready 1" in metrics


def test_the_rules_and_the_dashboard_name_metrics_that_this_vllm_has(server: Container) -> None:
    with urllib.request.urlopen(demo.find_port_url(server, demo.API_PORT, "/metrics"), timeout=60) as response:
        exported = set(re.findall(r"^(vllm:\w+)", response.read().decode(), re.MULTILINE))
    named = set(re.findall(r"vllm:\w+", "".join(render_monitoring_files(()).values())))

    assert len(named) > 10
    assert named <= exported


@pytest.fixture(scope="module")
def hardened(built: build.Built, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """As a strict cluster runs it: read-only, any UID, no capabilities, one writable volume."""
    cache = tmp_path_factory.mktemp("cache")
    cache.chmod(0o770)
    options = {
        "read_only": True,
        "user": "12345:0",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "tmpfs": {"/tmp": ""},
    }
    volumes = {str(model): {"bind": "/models/smollm2", "mode": "ro"}, str(cache): {"bind": "/cache", "mode": "rw"}}
    with demo.run_model_server(built.image, model, "--drain-timeout", "60", volumes=volumes, **options) as container:
        demo.wait_until_ready(container)
        yield container


def test_it_serves_read_only_under_any_uid_and_drains_on_sigterm(hardened: Container) -> None:
    body = {
        "model": "smollm2",
        "prompt": "Count: one, two, three,",
        "max_tokens": 200,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    chunks: list[str] = []

    def stream() -> None:
        with post(hardened, "/v1/completions", body) as response:
            chunks.extend(line.decode().strip() for line in response if line.strip())

    reader = threading.Thread(target=stream)
    reader.start()
    wait_until(lambda: len(chunks) >= 5 or not reader.is_alive(), "the first tokens")
    hardened.kill(signal="SIGTERM")
    stop_time = time.monotonic()
    code = hardened.wait(timeout=70)["StatusCode"]
    reader.join(timeout=60)

    assert code == 0, hardened.logs(tail=30).decode(errors="replace")
    assert chunks[-1] == "data: [DONE]"
    usage = json.loads(chunks[-2].removeprefix("data: "))["usage"]
    assert usage["completion_tokens"] == 200  # a busy server sends several tokens in one chunk
    assert time.monotonic() - stop_time < 60
