"""The CPU image with keys: each route of its real vLLM, four bodies at once in a small container; and without keys."""

from __future__ import annotations

import http.client
import json
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from docker.models.containers import Container

from drydock.build import build
from drydock.core.paths import ROOT
from drydock.prove import demo
from entrypoints.core.errors import USAGE
from tests.support.waiting import wait_until

KEY = "sk-first"
LIMIT = 4 << 30
"""Bytes of the container's memory."""
MIB = 1 << 20
LISTED: dict[str, list[str]] = json.loads((ROOT / "entrypoints/plugin/drydock_plugin/routes.json").read_text())
LIST = """
import json, sys
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
args = make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", "m", "--enable-scale-out"])
tasks = ("generate", "embed", "classify", "score", "transcription", "realtime", "render", "token_embed")
app = build_app(args, tasks)
print("ROUTES" + json.dumps([[route.path, sorted(getattr(route, "methods", None) or ["GET"])] for route in app.routes]))
"""
"""Prints the routes of the image's vLLM, with all that it has for development and for other kinds of models."""
DEVELOPMENT = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}


@pytest.fixture(scope="module")
def locked(built: build.Built, model: Path) -> Iterator[Container]:
    """A server with keys, in a small container."""
    environment = {"VLLM_API_KEY": f"{KEY}\nsk-second", **DEVELOPMENT}
    with demo.run_model_server(built.image, model, environment=environment, mem_limit=LIMIT) as container:
        demo.wait_until_ready(container)
        yield container


def ask(container: Container, method: str, path: str, key: str = "", body: Mapping[str, str] = {}) -> int:
    place = urlsplit(demo.find_port_url(container, demo.API_PORT, "/"))
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    connection.request(method, path, json.dumps(body) if method == "POST" else None, headers)
    return connection.getresponse().status


def test_every_route_of_the_real_vllm(locked: Container) -> None:
    code, output = locked.exec_run(["/opt/venv/bin/python3", "-c", LIST], environment=DEVELOPMENT)
    assert code == 0, output
    routes = json.loads(output.decode().rpartition("ROUTES")[2])
    table = ["method route | without the key | with a wrong one | with it"]
    for route, methods in routes:
        path = route.replace("{response_id}", "x").replace("{adapter_name}", "x")
        for method in methods:
            without, wrong, right = (ask(locked, method, path, key) for key in ("", "sk-firs", "sk-second"))
            public = route in LISTED["public"] and method in ("GET", "HEAD")
            assert (without == 401, wrong == 401) == (not public, not public), (method, route, without, wrong)
            assert right != 401, (method, route)
            assert right == 404 or route not in LISTED["admin"], (method, route, right)
            table.append(f"{method} {route} | {without} | {wrong} | {right}")
    assert len(table) > 50
    sys.stdout.write("\n".join((*table, "")))


def test_a_change_of_the_key_loses_no_request(locked: Container) -> None:
    """Clients move from the first key to the second one while they ask."""
    keys, statuses, over = [KEY], list[int](), threading.Event()

    def ask_on() -> None:
        while not over.is_set():
            statuses.append(ask(locked, "POST", "/tokenize", keys[-1], {"model": "smollm2", "prompt": "one, two"}))

    clients = [threading.Thread(target=ask_on) for _ in range(4)]
    for client in clients:
        client.start()
    wait_until(lambda: len(statuses) > 20, "requests with the old key")
    keys.append("sk-second")
    before = len(statuses)
    wait_until(lambda: len(statuses) > before + 20, "requests with the new key")
    over.set()
    for client in clients:
        client.join()

    lost = len(statuses) - statuses.count(200)
    sys.stdout.write(f"key rotation: {len(statuses)} requests, {lost} lost\n")
    assert lost == 0, statuses


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("key", ["", KEY])
def test_four_bodies_of_200_mb_leave_the_server_ready(locked: Container, key: str, *, chunked: bool) -> None:
    before, answers = used(locked), list[str]()
    sending = partial(send, locked, key, answers, chunked=chunked)
    senders = [threading.Thread(target=sending) for _ in range(4)]
    for sender in senders:
        sender.start()
    assert ask(locked, "GET", "/health") == 200
    for sender in senders:
        sender.join()
    assert answers == ["413" if key else "401"] * 4
    assert used(locked) - before < 4 * 2 * 32 * MIB
    code, output = locked.exec_run(["/usr/bin/python3", "-I", "-S", "/opt/drydock/entrypoints", "health"])
    assert code == 0, output


def used(container: Container) -> int:
    """Return the bytes of anonymous memory of its processes: engines without a memory controller report none."""
    code, output = container.exec_run(["sh", "-c", "cat /proc/[0-9]*/status"])  # one that has just ended is left out
    sizes = re.findall(r"^RssAnon:\s+(\d+) kB$", output.decode(), re.MULTILINE)
    assert sizes, (code, output)
    return 1024 * sum(map(int, sizes))


def send(container: Container, key: str, answers: list[str], *, chunked: bool) -> None:
    place = urlsplit(demo.find_port_url(container, demo.API_PORT, "/"))
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {200 * MIB}"
    lines = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json", length]
    lines += [f"Authorization: Bearer {key}"] if key else []
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        piece = (b"100000\r\n" if chunked else b"") + b"x" * MIB + (b"\r\n" if chunked else b"")
        try:
            for _ in range(200):
                connection.sendall(piece)
        except OSError:  # the server closed it, after its answer
            pass
        answers.append(connection.recv(100).decode(errors="replace").split()[1])


def speak(container: Container, *lines: str) -> int:
    """Send a request's head as it is; return the status."""
    place = urlsplit(demo.find_port_url(container, demo.API_PORT, "/"))
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        connection.sendall("\r\n".join((*lines, "Connection: close", "", "")).encode())
        return int(connection.recv(100).split()[1])


MODELS = "GET /v1/models HTTP/1.1"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ((MODELS, "Host: localhost:8000"), 200),
        ((MODELS, "Host: 127.0.0.1"), 200),
        ((MODELS, "Host: [::1]:8000"), 200),
        ((MODELS, "Host: llm.EXAMPLE.:443"), 200),
        ((MODELS, "Host: evil.example:8000"), 421),
        ((MODELS, "Host: evil.example", "X-Forwarded-Host: localhost", "Forwarded: host=localhost"), 421),
        ((MODELS, "Host: localhost.evil.example"), 421),
        ((MODELS, "Host:"), 421),
        (("GET http://localhost/v1/models HTTP/1.1", "Host: evil.example"), 421),
        (("GET /health HTTP/1.1", "Host: evil.example"), 200),
        (("GET /metrics HTTP/1.1", "Host: evil.example"), 200),
        (("POST /health HTTP/1.1", "Host: evil.example", "Content-Length: 0"), 421),
    ],
)
def test_a_server_without_a_key_answers_to_its_names(server: Container, lines: tuple[str, ...], status: int) -> None:
    assert speak(server, *lines) == status


@pytest.mark.parametrize("hosts", [(), ("Host: localhost", "Host: evil.example"), ("Host: a", "Host: localhost")])
def test_no_name_and_two_names_are_no_name(server: Container, hosts: tuple[str, ...]) -> None:
    assert speak(server, MODELS, *hosts) in (400, 421)  # h11 refuses them before the guard does


def test_a_server_without_a_key_warns_in_one_line(server: Container) -> None:
    lines = server.logs().decode().splitlines()
    assert [line.split()[:2] for line in lines if "PLAN-092" in line] == [["WARN", "PLAN-092"]]


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "DRYDOCK_ALLOWED_HOSTS"])
def test_a_variable_that_is_set_without_a_value_starts_no_open_server(
    built: build.Built, model: Path, name: str
) -> None:
    with demo.run_model_server(built.image, model, environment={name: ""}) as container:
        assert container.wait(timeout=60)["StatusCode"] == USAGE
        assert f"drydock: {name}: found" in container.logs().decode()
