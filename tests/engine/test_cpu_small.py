"""A small model in a small container: the cache shrinks before the start is refused, and what is planned serves."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from drydock.build import build
from drydock.prove import demo

pytestmark = pytest.mark.proves("cpu-vllm0.32", "hardware")


def test_a_small_model_serves_in_a_container_of_two_and_a_half_gib(built: build.Built, model: Path) -> None:
    with demo.run_model_server(built.image, model, mem_limit="2560m", memswap_limit="2560m") as container:
        demo.wait_until_ready(container)
        body = {"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 5, "temperature": 0}
        url = demo.find_port_url(container, demo.API_PORT, "/v1/completions")
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            text = json.load(response)["choices"][0]["text"]
        log = container.logs()

    assert "Paris" in text
    assert b"--kv-cache-memory-bytes = " in log
