"""The router's image, built from its real package: it sends requests on, and its health check follows its servers."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import NamedTuple

import docker
import pytest
from docker.models.containers import Container

from drydock.build import build
from drydock.build.build_job import prepare_job
from drydock.config.project_choice import DRYDOCK
from entrypoints.core import errors
from tests.support.ports import free_port
from tests.support.started_containers import run_container, start_container
from tests.support.waiting import wait_until

pytestmark = pytest.mark.proves("router0.1", "packages")
ANSWER = {"id": "1", "object": "text_completion", "choices": [{"index": 0, "text": "Paris", "finish_reason": "stop"}]}


KEY = "sk-of-the-test"


class Servers(BaseHTTPRequestHandler):
    """Answers as a vLLM server with a key: healthy, with one model."""

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "m"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(ANSWER, 200 if self.headers["Authorization"] == f"Bearer {KEY}" else 401)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, value: object, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class SlowServers(Servers):
    """Answers after a while, so that requests are running when the router's list changes."""

    def do_POST(self) -> None:
        time.sleep(0.3)
        super().do_POST()


class Routed(NamedTuple):
    router: Container
    url: str
    server: ThreadingHTTPServer


@pytest.fixture(scope="module")
def image() -> build.Built:
    return build.build_image(prepare_job(DRYDOCK, "router"))


@pytest.fixture
def routed(image: build.Built) -> Iterator[Routed]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Servers)
    Thread(target=server.serve_forever, daemon=True).start()
    port, metrics = free_port(), free_port()
    words = [
        *("vllm-router", "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)),
        *("--worker-urls", f"http://127.0.0.1:{server.server_port}", "--worker-startup-check-interval", "1"),
        *("--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--policy", "round_robin"),
    ]
    options = {"network_mode": "host", "read_only": True, "env": {"VLLM_API_KEY": KEY}}
    with server, start_container(image.image, *words, **options) as router:
        yield Routed(router, f"http://127.0.0.1:{port}", server)


def health(routed: Routed) -> int:
    words = ["/usr/bin/python3", "-I", "-S", "/opt/drydock/entrypoints", "health", "--url", f"{routed.url}/readiness"]
    return int(routed.router.exec_run(words).exit_code)


def post(url: str, key: str) -> tuple[int, bytes]:
    body = json.dumps({"model": "m", "prompt": "The capital of France is"}).encode()
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, b""


def test_a_request_with_the_key_is_sent_on_and_the_health_check_follows_the_servers(
    routed: Routed, image: build.Built
) -> None:
    wait_until(lambda: health(routed) == errors.OK, "the router is ready", within=60)
    for path in ("/v1/completions", "/add_worker?url=http://127.0.0.1:9", "/flush_cache", "/tokenize"):
        assert {post(f"{routed.url}{path}", key)[0] for key in ("", "wrong")} == {401}, path
    status, answer = post(f"{routed.url}/v1/completions", KEY)
    assert (status, json.loads(answer)["choices"][0]["text"]) == (200, "Paris")
    assert KEY not in str(routed.router.top(ps_args="-eo pid,args"))
    assert KEY not in routed.router.logs().decode()

    routed.server.shutdown()
    routed.server.server_close()
    wait_until(lambda: health(routed) == errors.NOT_READY, "the router is not ready", within=60)
    assert docker.from_env().images.get(image.image).attrs["Config"]["User"] == "10001:0"


def test_a_second_server_takes_over_while_requests_run_and_none_is_lost(routed: Routed) -> None:
    """As docs/second-day.md says: add the new server, remove the old one, stop it when nothing runs there."""
    wait_until(lambda: health(routed) == errors.OK, "the router is ready", within=60)
    old, new = f"http://127.0.0.1:{routed.server.server_port}", ThreadingHTTPServer(("127.0.0.1", 0), SlowServers)
    routed.server.RequestHandlerClass = SlowServers
    Thread(target=new.serve_forever, daemon=True).start()
    with new, ThreadPoolExecutor(8) as clients:
        running = [clients.submit(post, f"{routed.url}/v1/completions", KEY) for _ in range(24)]
        added = post(f"{routed.url}/add_worker?url=http://127.0.0.1:{new.server_port}", KEY)[0]
        running += [clients.submit(post, f"{routed.url}/v1/completions", KEY) for _ in range(24)]
        removed = post(f"{routed.url}/remove_worker?url={old}", KEY)[0]
        assert (added, removed, [answer.result()[0] for answer in running]) == (200, 200, [200] * 48)
        routed.server.shutdown()
        routed.server.server_close()
        assert [post(f"{routed.url}/v1/completions", KEY)[0] for _ in range(4)] == [200] * 4
        new.shutdown()


@pytest.mark.of_foundation
def test_the_program_of_the_router_starts(image: build.Built) -> None:
    output = docker.from_env().containers.run(image.image, ["vllm-router", "--help"], remove=True)
    assert b"--worker-urls" in output


def test_it_serves_no_model_and_says_so(image: build.Built) -> None:
    ended = run_container(image.image, "serve", "--model", "org/model")

    assert ended.code == errors.HOST
    assert "it is the router's image" in ended.stderr
