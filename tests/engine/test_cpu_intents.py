"""Each wish, on the real image: it reaches vLLM as planned, and greedy answers stay those of transformers."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from docker.models.containers import Container

from drydock.build import build
from drydock.build.render import PYTHON
from drydock.core.paths import ROOT
from drydock.engine.run_container import run_to_end
from drydock.prove import demo
from entrypoints.core.parse import format_id_list, parse_id_list
from tests.support.caches import copied

pytestmark = pytest.mark.proves("cpu-vllm0.32", "hardware")

MODEL = "/models/smollm2"
PROMPTS = {
    "1, 2, 3, 4, 5, 6, 7,": 24,
    "10, 20, 30, 40, 50,": 24,
    "red red red red red red red": 10,
    "A, B, C, D, E, F,": 6,
    "The capital of France is": 5,
    "def add(a, b):\n    return": 4,
    "The first president of the United States was": 4,
    "2 + 2 = 4\n3 + 3 = 6\n4 + 4 =": 3,
}
"""Prompt → tokens of the answer: as long as each one leads by half a nat, so that rounding to bfloat16 flips none."""
LEAD = 0.5

INTENTS: dict[str, tuple[Sequence[str], dict[str, str | None]]] = {
    "nothing": ((), {"--max-num-seqs": None, "--performance-mode": None, "--max-model-len": None}),
    "latency": (("--optimize", "latency"), {"--performance-mode": None, "--data-parallel-size": None}),
    "throughput": (("--optimize", "throughput"), {"--performance-mode": "throughput"}),
    "clients": (
        ("--concurrency", "3", "--input-range", "1,300", "--output-range", "1,84"),
        {"--max-num-seqs": "3", "--max-model-len": "384"},
    ),
}
"""Name → flags of ours, and what of vLLM's they mean (None: nothing is said)."""


class Answer(NamedTuple):
    prompt: list[int]
    answer: list[int]


class Served(NamedTuple):
    name: str
    argv: list[str]
    """As planned."""
    container: Container


def run(image: str, command: Sequence[str], **options: Any) -> str:
    """Run the image to its end and return its standard output."""
    return run_to_end(image, command, **options).decode()


@pytest.fixture(scope="module")
def expected(built: build.Built, model: Path) -> list[Answer]:
    """What transformers answers, in the same image."""
    script = ROOT / "tests" / "support" / "greedy.py"
    volumes = {str(model): {"bind": MODEL, "mode": "ro"}, str(script): {"bind": "/greedy.py", "mode": "ro"}}
    questions = json.dumps(list(PROMPTS.items()))
    env = {"HF_HUB_OFFLINE": "1", "HOME": "/tmp"}
    output = run(
        built.image, [PYTHON, "/greedy.py", MODEL, questions], volumes=volumes, environment=env, network_mode="none"
    )
    greedy_answers = json.loads(output)
    assert min(answer["lead"] for answer in greedy_answers) > LEAD, "rounding may flip a token: shorten that answer"
    return [Answer(answer["prompt"], answer["answer"]) for answer in greedy_answers]


@pytest.fixture(scope="module")
def volumes(warm: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The model, and a copy of the filled cache that all servers here share."""
    cache = copied(warm, tmp_path_factory.mktemp("intents") / "cache")
    return {str(model): {"bind": MODEL, "mode": "ro"}, str(cache): {"bind": "/cache", "mode": "rw"}}


def planned(built: build.Built, volumes: dict[str, Any], *flags: str, **options: Any) -> list[str]:
    command = ["plan", "--json", "--model", MODEL, "--served-model-name", "smollm2", *flags]
    argv: list[str] = json.loads(run(built.image, command, volumes=volumes, **options))["argv"]
    return argv


USUAL = ("clients",)
"""What else is asked for takes --all: each starts a server. Throughput is asked for on two NUMA nodes too."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in USUAL else pytest.mark.slow) for name in INTENTS],
)
def served(
    built: build.Built, model: Path, volumes: dict[str, Any], request: pytest.FixtureRequest
) -> Iterator[Served]:
    """A server for each wish, ready."""
    flags, _ = INTENTS[request.param]
    with demo.run_model_server(built.image, model, *flags, volumes=volumes) as container:
        demo.wait_until_ready(container)
        yield Served(request.param, planned(built, volumes, *flags), container)


def flag(argv: Sequence[str], name: str) -> str | None:
    return argv[argv.index(name) + 1] if name in argv else None


def answers(container: Container) -> list[Answer]:
    """Ask everything at once, so that prompts share batches."""
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(lambda item: complete(container, *item), PROMPTS.items()))


def complete(container: Container, prompt: str, length: int) -> Answer:
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": length, "temperature": 0, "return_token_ids": True}
    url = demo.find_port_url(container, demo.API_PORT, "/v1/completions")
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        choice = json.load(response)["choices"][0]
    return Answer(choice["prompt_token_ids"], choice["token_ids"])


def test_throughput_on_two_numa_nodes_is_two_engines_that_answer_the_same(
    built: build.Built, model: Path, volumes: dict[str, Any], expected: list[Answer], tmp_path: Path
) -> None:
    """It comes first: a server of the tests below stays until its last one."""
    tmp_path.chmod(0o777)
    mounts = {**volumes, str(tmp_path): {"bind": "/host", "mode": "rw"}}
    options = {"volumes": mounts, "shm_size": "4g"}
    run(built.image, ["facts", "--record", "/host/host.json"], **options)
    halve(tmp_path / "host.json")
    flags = ("--root", "/host/host.json", "--optimize", "throughput")

    argv = planned(built, mounts, *flags, shm_size="4g")
    assert (flag(argv, "--data-parallel-size"), flag(argv, "--tensor-parallel-size")) == ("2", "1")
    assert flag(argv, "--performance-mode") == "throughput"
    with demo.run_model_server(built.image, model, *flags, "--exec", **options) as container:
        wait_for_health(container)
        assert read_command(container, "1") == argv
        assert answers(container) == expected


def test_what_is_wished_for_is_what_vllm_runs_with(served: Served) -> None:
    _, meant = INTENTS[served.name]

    assert {name: flag(served.argv, name) for name in meant} == meant
    assert read_command(served.container, vllm(served.container)) == served.argv


def read_command(container: Container, process: str) -> list[str]:
    """Return the command line of a process of the container."""
    text: str = container.exec_run(["cat", f"/proc/{process}/cmdline"]).output.decode()
    return text.rstrip("\0").split("\0")


def vllm(container: Container) -> str:
    """Return the process id of the supervisor's child, inside the container."""
    children: str = container.exec_run(["cat", "/proc/1/task/1/children"]).output.decode()
    return children.split(maxsplit=1)[0]


def test_its_greedy_answers_are_those_of_transformers(served: Served, expected: list[Answer]) -> None:
    assert answers(served.container) == expected


def test_the_wished_length_is_the_servers(served: Served) -> None:
    with urllib.request.urlopen(
        demo.find_port_url(served.container, demo.API_PORT, "/v1/models"), timeout=30
    ) as response:
        length = json.load(response)["data"][0]["max_model_len"]

    assert length == int(flag(served.argv, "--max-model-len") or 8192)


def halve(file: Path) -> None:
    """Make two NUMA nodes of a recorded host's one, each with half of its CPUs and memory."""
    host = json.loads(file.read_text())
    files, nodes, status = host["files"], "/sys/devices/system/node", "/proc/self/status"
    cpus, memory = parse_id_list(files[f"{nodes}/node0/cpulist"].strip()), files[f"{nodes}/node0/meminfo"]
    parts = cpus[: len(cpus) // 2], cpus[len(cpus) // 2 :]
    for number, part in enumerate(parts):
        files[f"{nodes}/node{number}/cpulist"] = f"{format_id_list(part)}\n"
        files[f"{nodes}/node{number}/meminfo"] = "".join(half(line, number) for line in memory.splitlines(True))
    files[f"{nodes}/online"] = "0-1\n"
    status_lines = (line for line in files[status].splitlines() if not line.startswith("Mems_allowed_list"))
    files[status] = "\n".join([*status_lines, "Mems_allowed_list:\t0-1", ""])
    file.write_text(json.dumps(host))


def half(line: str, node: int) -> str:
    """Return a line of a node's meminfo for a node of half the size."""
    words = line.split()
    amount = [str(int(words[3]) // 2), *words[4:]] if len(words) > 3 else []
    return " ".join([words[0], str(node), *words[2:3], *amount]) + "\n"


def wait_for_health(container: Container) -> None:
    """Wait for vLLM's own word: with --exec nobody else is there."""
    end = time.monotonic() + demo.READY_WITHIN
    while time.monotonic() < end:
        container.reload()
        assert container.status != "exited", container.logs(tail=20).decode(errors="replace")
        if demo.fetch_status(demo.find_port_url(container, demo.API_PORT, "/health"))[0] == 200:
            return
        time.sleep(1)
    raise AssertionError(container.logs(tail=20).decode(errors="replace"))
