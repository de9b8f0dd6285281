"""The page of the second day, tried in its order: two servers of the CPU image, one router, clients that ask on."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import docker
import pytest

from drydock.core.paths import ROOT
from drydock.prove import smollm2
from drydock.prove.demo import fetch_status
from entrypoints.core.errors import HOST
from tests.support.needed_programs import require_program
from tests.support.ports import free_port
from tests.support.running_topology import small_disk
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.checkout, pytest.mark.timeout(900)]

PAGE = ROOT / "docs" / "second-day.md"
PAGE_NAME = "cuda13-0-vllm0-33"
"""The container in the page's examples."""
REGISTRY = "registry.example/vllm"
SMALL = "--max-model-len 1024 --max-num-seqs 8 --kv-cache-memory-bytes 268435456"
PROJECT = f"drydock-second-day-{os.getpid()}"
CACHE = f"{PROJECT}_cache"
READY_WITHIN = 300.0
"""Seconds of a start while another server starts, on two cores."""
RANK = 8
PROMPT = {"model": "assistant", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
FILL = """
import os
disk = os.statvfs("/cache")
file = os.open("/cache/full", os.O_CREAT | os.O_WRONLY)
os.posix_fallocate(file, 0, disk.f_bavail * disk.f_frsize - (100 << 20))
"""
"""Leaves 100 MiB, of which a start takes nothing."""


class Server(NamedTuple):
    """A server that the page's commands start."""

    name: str
    port: int
    """Of the API; the status port is the next one."""

    def place(self, command: str) -> str:
        """Return a command of the page for this server: its name, its port, the CPU image, and the tests' cache."""
        text = command.replace(PAGE_NAME, self.name).replace("--target cuda", "--target cpu")
        text = re.sub(r":8000\b", f":{self.port}", text)
        published = "" if "--port" in text else f" --port 0.0.0.0:{self.port}"
        return text.replace("--detach", f"--detach --name {self.name} --cache {CACHE}{published}")

    def ready(self) -> bool:
        return fetch_status(f"http://127.0.0.1:{self.port + 1}/readyz")[0] == 200

    def log(self) -> str:
        text: bytes = docker.from_env().containers.get(self.name).logs()
        return text.decode(errors="replace")

    def wait_until_ready(self) -> None:
        def is_ready_or_gone() -> bool:
            status = docker.from_env().containers.get(self.name).status
            assert status == "running", f"{self.name} is {status}:\n{self.log()[-3000:]}"
            return self.ready()

        wait_until(is_ready_or_gone, f"{self.name} is ready", within=READY_WITHIN)


class Day(NamedTuple):
    """The folder and shell in which the page's commands run, and the servers."""

    folder: Path
    env: Mapping[str, str]
    old: Server
    new: Server
    images: tuple[str, str]
    """Of the servers and of the router."""

    def run(self, command: str, *, codes: Sequence[int] = (0,)) -> subprocess.CompletedProcess[str]:
        """Run a command of the page as a shell does, and check how it ends."""
        shell = ["bash", "-euo", "pipefail", "-c", command]
        ended = subprocess.run(shell, cwd=self.folder, env=self.env, check=False, capture_output=True, text=True)
        output = f"{ended.stdout[-3000:]}{ended.stderr[-3000:]}"
        assert ended.returncode in codes, f"{command}\nexit code {ended.returncode}\n{output}"
        return ended

    def curl(self, command: str, server: Server, *, key: str = "") -> int:
        """Run a command with curl; return the status of the answer. A variable's name in `key` replaces the page's."""
        text = server.place(command).replace("curl ", "curl -sS -o answer -w '%{http_code}' ")
        return int(self.run(re.sub(r"\$DRYDOCK_ADMIN_KEY", f"${key}", text) if key else text).stdout)

    def asks(self, server: Server, key: str, **more: Any) -> tuple[int, str]:
        """Return status and text of a completion; the name of the error if there is no answer."""
        return ask(server.port, self.env[key], {**PROMPT, **more})


def ask(port: int, key: str, body: Mapping[str, Any]) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read().decode()
    except (OSError, http.client.HTTPException) as error:
        return 0, repr(error)
    finally:
        connection.close()
    return response.status, json.loads(text)["choices"][0]["text"] if response.status == 200 else text


def read_section(title: str) -> list[str]:
    """Return the commands of a section of the page, in their order; a continued one is one line."""
    text = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = "\n".join(re.findall(r"^ {4}(\S.*|  .*)$", text, re.MULTILINE))
    commands = re.sub(r"\\\n\s*", "", lines).splitlines()
    assert commands, f"{PAGE}: expected commands in the section {title!r}"
    return [command.partition("  # ")[0].rstrip() for command in commands]


def write_adapter(folder: Path, model: Path) -> None:
    """Write a LoRA adapter of random weights, as PEFT does, for the projections of queries and values."""
    config = json.loads((model / "config.json").read_text())
    width = config["hidden_size"]
    values = width // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {
        f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{part}.weight": shape
        for layer in range(config["num_hidden_layers"])
        for name, outputs in (("q_proj", width), ("v_proj", values))
        for part, shape in (("A", (RANK, width)), ("B", (outputs, RANK)))
    }
    noise, header, weights = random.Random(1), dict[str, Any](), bytearray()  # noqa: S311 - no secret
    for name, shape in shapes.items():
        count, begin = shape[0] * shape[1], len(weights)
        weights += struct.pack(f"<{count}f", *(noise.gauss(0, 0.5) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(weights)]}
    text = json.dumps(header).encode()
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + weights)
    adapter = {
        "peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj", "v_proj"], "bias": "none",
        "task_type": "CAUSAL_LM", "base_model_name_or_path": "smollm2",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(adapter))


@contextmanager
def ask_on(port: int, list_keys: Callable[[], str], **more: Any) -> Iterator[list[int]]:
    """Let four clients ask without a pause; give the statuses that they get."""
    statuses, over = list[int](), threading.Event()

    def run_client() -> None:
        while not over.is_set():
            statuses.append(ask(port, list_keys(), {**PROMPT, **more})[0])

    clients = [threading.Thread(target=run_client) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        yield statuses
    finally:
        over.set()
        for client in clients:
            client.join()


def wait_for_more(statuses: Sequence[int], number: int = 12) -> None:
    before = len(statuses)
    wait_until(lambda: len(statuses) >= before + number, f"{number} more answers", within=120)


def report_lost(what: str, statuses: Sequence[int]) -> None:
    lost = len(statuses) - statuses.count(200)
    sys.stdout.write(f"{what}: {len(statuses)} requests, {lost} lost\n")
    assert lost == 0, statuses


@pytest.fixture(scope="module")
def yesterday(images: tuple[str, str]) -> Iterator[str]:
    """Another image of the same content, under a registry's name; return its digest."""
    client = docker.from_env()
    container = client.containers.create(images[0])
    tag = f"{PROJECT}-yesterday"
    try:
        image = container.commit(REGISTRY, tag, changes="LABEL example.day=yesterday")
    finally:
        container.remove()
    yield str(image.id)
    client.images.remove(f"{REGISTRY}:{tag}", force=True)


@pytest.fixture(scope="module")
def day(images: tuple[str, str], yesterday: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    """Two servers that start: yesterday's with two keys, and a new one that takes adapters and sleeps."""
    require_program("curl")
    folder, model = tmp_path_factory.mktemp("second-day"), smollm2.make_small_model(images[0])
    folder.chmod(0o755)
    (folder / "inv").symlink_to(ROOT / "inv")
    (folder / "model").symlink_to(model)
    shutil.copytree(model, folder / "new-model", copy_function=os.link)
    write_adapter(folder / "adapters" / "sql", model)
    small_disk(PROJECT, "cache", "1500m")
    keys = {"KEY_OLD": "sk-of-before", "KEY_NEW": "sk-of-now", "DRYDOCK_ADMIN_KEY": "sk-of-the-administrator"}
    env = {**{name: value for name, value in os.environ.items() if name != "VLLM_API_KEY"}, **keys, "OLD": yesterday}
    old_port, _, new_port, _ = (free_port() for _ in range(4))  # the next one is the status port
    old, new = Server(f"{PROJECT}-old", old_port), Server(f"{PROJECT}-new", new_port)
    here = Day(folder, env, old, new, images)
    try:
        start_both(here)
        yield here
    finally:
        client = docker.from_env()
        for name in (old.name, new.name, f"{PROJECT}-router"):
            with suppress(docker.errors.NotFound):
                client.containers.get(name).remove(force=True)
        client.volumes.get(CACHE).remove(force=True)


def start_both(day: Day) -> None:
    """Start the page's servers; each with what several sections say of it, so that two are enough."""
    write_keys, start_old = read_section("Change the key")
    image = re.findall(r"--image \S+", read_section("Go back")[0])[0]
    day.run(write_keys)
    words = f"-- --served-model-name assistant --drain-timeout 325 --drain-pause 1 {SMALL}"
    day.run(f"{day.old.place(start_old).replace('--model', f'{image} --model')} {words}")

    start_new, start_asleep = read_section("Load an adapter")[0], read_section("Sleep and wake")[0]
    for_developers = re.findall(r"--env VLLM_SERVER_DEV_MODE=1", start_asleep)[0]
    assert "-- --enable-sleep-mode" in start_asleep  # which the CPU's vLLM refuses: it has no memory to give back
    text = day.new.place(start_new).replace("--model", f"--api-key-file keys {for_developers} --model")
    day.run(f"{text} --served-model-name assistant {SMALL}")


def test_another_machine_type(day: Day) -> None:
    for name, host in (("h100", "cuda-h100-8x"), ("h200", "cuda-h200-1x"), ("mi300x", "rocm-mi300x-8x")):
        shutil.copy(ROOT / "tests" / "hosts" / host / "host.json", day.folder / f"{name}.json")
    record, compare, compare_json = read_section("Another machine type")
    day.run(record)
    assert json.loads((day.folder / "host.json").read_text())["files"]
    compared = day.run(compare)
    rows = ["h100.json: cuda13.0-vllm0.33", "h200.json: cuda13.0-vllm0.33"]
    assert [row for row in rows if row not in compared.stderr.splitlines()] == []
    assert re.search(r"^--data-parallel-size\n  - 8  \[decision\]  8 engines", compared.stdout, re.MULTILINE)
    assert re.search(r"^folders of the cache, .*: .*\bVLLM_CACHE_ROOT\b", compared.stdout, re.MULTILINE)
    settings = json.loads(day.run(compare_json).stdout)
    assert "VLLM_ROCM_USE_AITER" in {setting["setting"] for setting in settings}


def test_a_second_node(day: Day) -> None:
    record, begin, plan, compare, check, start = read_section("A second node")
    (day.folder / "hosts").mkdir()
    day.run(record)
    first = (day.folder / "hosts" / "b.json").read_text()
    (day.folder / "hosts" / "a.json").write_text(first)
    day.run(begin.replace("/models/m", str(day.folder / "model")))
    topology = day.folder / "topology.yaml"
    day.run(plan)
    assert "replicas: 2" in topology.read_text()
    topology.write_text(topology.read_text().replace("replicas: 2", "replicas: 1"))
    assert "group serve, replica 1, rank 0\n  rank\n    - on node b\n" in day.run(compare).stdout
    for command in (check, start):  # what they do on machines: ssh/test_check.py, ssh/test_ansible.py
        assert "topology.yaml" in command
        day.run(f"{command} --help")


def test_a_change_of_the_key_loses_no_request(day: Day) -> None:
    day.old.wait_until_ready()
    key = ["KEY_OLD"]
    with ask_on(day.old.port, lambda: day.env[key[-1]]) as statuses:
        wait_for_more(statuses)
        key.append("KEY_NEW")
        wait_for_more(statuses)
    report_lost("key rotation", statuses)
    assert day.asks(day.old, "DRYDOCK_ADMIN_KEY")[0] == 401  # this server has no administrator


def test_an_adapter_is_loaded_and_removed_by_the_administrator_only(day: Day) -> None:
    day.new.wait_until_ready()
    _, load, unload = read_section("Load an adapter")
    assert [day.curl(command, day.new, key="KEY_NEW") for command in (load, unload)] == [404, 404]
    assert day.asks(day.new, "KEY_NEW", model="sql")[0] == 404

    assert day.curl(load, day.new) == 200
    status, text = day.asks(day.new, "KEY_NEW", model="sql")
    assert status == 200
    assert text != day.asks(day.new, "KEY_NEW")[1]  # weights of noise change the answer
    assert day.curl(unload, day.new) == 200
    assert day.asks(day.new, "KEY_NEW", model="sql")[0] == 404


def test_a_server_sleeps_and_wakes(day: Day) -> None:
    day.new.wait_until_ready()
    _, sleep, wake = read_section("Sleep and wake")
    assert [day.curl(command, day.new, key="KEY_NEW") for command in (sleep, wake)] == [404, 404]

    assert day.curl(sleep, day.new) == 200
    answers: list[tuple[int, str]] = []
    client = threading.Thread(target=lambda: answers.append(day.asks(day.new, "KEY_NEW")))
    client.start()
    client.join(5)
    assert (answers, day.new.ready()) == ([], True)
    assert day.curl(wake, day.new) == 200
    client.join(60)
    assert [status for status, _ in answers] == [200]


def test_a_new_server_takes_over_behind_the_router_while_requests_run(day: Day) -> None:
    start, add, remove, count = read_section("Switch with a router")
    gateway = docker.from_env().networks.get("bridge").attrs["IPAM"]["Config"][0]["Gateway"]
    port = free_port()
    places = {
        "ROUTER": day.images[1],
        "docker run --rm": f"docker run --rm --detach --name {PROJECT}-router",
        "127.0.0.1:30000": f"127.0.0.1:{port}",
        "10.0.0.1:8000": f"{gateway}:{day.old.port}",
        "10.0.0.2:8000": f"{gateway}:{day.new.port}",
    }

    def run(command: str) -> str:
        for text, other in places.items():
            command = command.replace(text, other)
        return day.run(
            f'VLLM_API_KEY="$KEY_NEW"; export VLLM_API_KEY; {command.replace("curl ", "curl -sS -f ")}'
        ).stdout

    def count_running() -> float:
        return sum(float(line.split()[-1]) for line in run(count).splitlines() if not line.startswith("#"))

    day.old.wait_until_ready()
    day.new.wait_until_ready()
    run(start)
    key = day.env["KEY_NEW"]
    wait_until(lambda: ask(port, key, PROMPT)[0] == 200, "the router answers")
    with ask_on(port, lambda: key, max_tokens=16) as statuses:
        wait_for_more(statuses)
        run(add)
        wait_for_more(statuses)
        run(remove)
        wait_until(lambda: count_running() == 0, "the old server is idle")
        wait_for_more(statuses)
        assert count_running() == 0
    report_lost("switch with a router", statuses)


def test_a_server_is_drained_and_ends(day: Day) -> None:
    stop, count, wait = map(day.old.place, read_section("Drain a server"))
    answers: list[tuple[int, str]] = []
    long = {"max_tokens": 400, "ignore_eos": True, "n": 4, "temperature": 1}
    client = threading.Thread(target=lambda: answers.append(day.asks(day.old, "KEY_NEW", **long)))
    client.start()
    wait_until(lambda: answers or "} 4.0" in day.run(count).stdout, "it runs")
    assert answers == []
    day.run(f"({stop}) > stopped 2>&1")
    wait_until(lambda: not day.old.ready(), "it is not ready", within=10)
    post = day.old.place('curl -s -i -X POST -H "Authorization: Bearer $KEY_NEW" http://127.0.0.1:8000/v1/completions')
    wait_until(lambda: is_refused(day.run(post).stdout), "new requests are refused", within=10)
    assert answers == []
    code = day.run(wait).stdout
    client.join(60)
    assert ([status for status, _ in answers], code) == ([200], "0\n"), day.old.log()[-2000:]


def is_refused(answer: str) -> bool:
    return "503" in answer.splitlines()[0] and "retry-after: 1" in answer.lower()


def test_the_server_goes_back_to_the_image_of_yesterday_and_its_cache(day: Day) -> None:
    commands = [command.replace("/etc/containers/systemd/", "") for command in read_section("Go back")]
    start, compose, _, quadlet, *_ = map(day.old.place, commands)
    day.run(f"docker rm {day.old.name}")
    day.run(f"{start} --api-key-file keys -- --served-model-name assistant --drain-timeout 325 --drain-pause 1 {SMALL}")
    day.run(f"{compose} && docker compose -f compose.yaml config --quiet")
    day.run(quadlet)
    image = f"{REGISTRY}@{day.env['OLD']}"
    assert f"image: {image}" in (day.folder / "compose.yaml").read_text().replace("'", "").replace('"', "")
    assert f"Image={image}\n" in (day.folder / f"{day.old.name}.container").read_text()
    wait_until(lambda: "drydock: cache hit: compiled for this plan" in day.old.log(), "a hit")


def test_another_model_on_a_full_disk_keeps_the_address(day: Day) -> None:
    show, remove = (
        command.replace("drydock-cuda-cache", CACHE).replace("IMG", day.images[0])
        for command in read_section("A full disk")
    )
    code, output = docker.from_env().containers.get(day.new.name).exec_run(["/usr/bin/python3", "-c", FILL])
    assert code == 0, output
    plan, stop, start = map(day.old.place, read_section("Another model, the same address"))
    day.run(plan)
    day.run(stop)
    day.run(f"{start} --drain-timeout 20 {SMALL}")
    entries = json.loads(day.run(f"{show} --json").stdout)
    by_old = [entry["name"] for entry in entries if entry["factors"]["image"] == day.env["OLD"].partition(":")[2]]
    by_new = [entry["name"] for entry in entries if entry["in_use"]]
    assert (len(by_old), len(by_new), len(entries)) == (2, 2, 4), entries
    day.old.wait_until_ready()
    assert re.search(r"/cache is full: \d+ MiB free", day.old.log()), day.old.log()[:4000]
    assert day.asks(day.old, "KEY_NEW")[0] == 200

    day.run(remove.replace("NAME", by_old[0]))
    day.run(remove.replace("NAME", by_new[0]), codes=[HOST])
    left = day.run(show).stdout
    assert [name for name in (*by_old, *by_new) if name not in {line.split()[0] for line in left.splitlines()}] == [
        by_old[0]
    ]
