"""A server whose engine core is a fork of its API server: imported once, in part later, the same answers."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from docker.models.containers import Container

from drydock.build import build
from drydock.prove import demo
from tests.support.started_containers import count_imports

pytestmark = [pytest.mark.proves("cpu-vllm0.32", "hardware"), pytest.mark.slow]

PROMPTS = (
    "The capital of France is",
    "Water is made of hydrogen and",
    "def fibonacci(n):",
    "Once upon a time there was a small harbour town, and in it",
)


def post(container: Container, path: str, body: dict[str, Any]) -> Any:
    """Return the first choice of an answer to a greedy request."""
    url = demo.find_port_url(container, demo.API_PORT, f"/v1/{path}")
    whole = {"model": "smollm2", "temperature": 0, "max_tokens": 80, **body}
    request = urllib.request.Request(url, json.dumps(whole).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)["choices"][0]


def tokens(container: Container) -> list[str]:
    """Return the greedy continuation of each prompt, one after the other."""
    bodies = ({"prompt": prompt, "max_tokens": 48, "ignore_eos": True} for prompt in PROMPTS)
    return [post(container, "completions", body)["text"] for body in bodies]


TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": CITY}}


def features(container: Container) -> dict[str, Any]:
    """Return what a server answers where more of vLLM and its libraries is used than for plain text."""
    question = {"messages": [{"role": "user", "content": "What is the weather in Rome?"}]}
    tool_choice = {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}}
    schema = {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}}
    likely = post(container, "completions", {"prompt": PROMPTS[0], "logprobs": 2, "prompt_logprobs": 1})
    with urllib.request.urlopen(demo.find_port_url(container, demo.API_PORT, "/metrics"), timeout=120) as response:
        metrics = sorted(set(re.findall(r"^# TYPE (\S+)", response.read().decode(), re.MULTILINE)))
    return {
        "log probabilities": (likely["logprobs"]["tokens"], len(likely["prompt_logprobs"])),
        "schema": json.loads(post(container, "chat/completions", question | schema)["message"]["content"]),
        "tool": post(container, "chat/completions", question | tool_choice)["message"]["tool_calls"][0]["function"],
        "metrics": metrics,
    }


ALLOWED = """
import glob
print(*{line.split()[1] for path in glob.glob('/proc/[0-9]*/task/*/status') for line in open(path)
        if line.startswith('Cpus_allowed_list')})
"""


def allowed(container: Container) -> list[str]:
    """Return the lists of CPUs that threads of the container may use, each once."""
    code, output = container.exec_run(["/usr/bin/python3", "-I", "-S", "-c", ALLOWED])
    assert code == 0, output
    return str(output.decode()).split()


def processes(container: Container) -> list[str]:
    """Return the command line of each process."""
    top = container.top(ps_args="-eo pid,args")
    return [row[top["Titles"].index("COMMAND")] for row in top["Processes"]]


class Seen(NamedTuple):
    """A server that was started one way."""

    tokens: list[str]
    features: dict[str, Any]
    logs: str
    processes: list[str]
    allowed: list[str]


@pytest.fixture(scope="module")
def by_method(built: build.Built, model: Path) -> dict[str, Seen]:
    """What a server says, logs, and consists of, by how its processes are started."""
    observations = {}
    for method, env in {"fork": {}, "spawn": {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}}.items():
        environment = {"PYTHONPROFILEIMPORTTIME": "1", **env}
        with demo.run_model_server(built.image, model, *TOOLS, environment=environment) as container:
            demo.wait_until_ready(container)
            token_ids, answers = tokens(container), features(container)
            logs = container.logs().decode(errors="replace")
            observations[method] = Seen(token_ids, answers, logs, processes(container), allowed(container))
    return observations


def test_pytorch_and_vllm_are_imported_once(by_method: dict[str, Seen]) -> None:
    counts = {
        method: [count_imports(name, observation.logs) for name in ("torch", "vllm")]
        for method, observation in by_method.items()
    }

    assert counts["fork"] == [1, 1]
    assert counts["spawn"] == [2, 2]  # a third one, model inspection, keeps what it says to itself


def test_inductors_lowerings_are_not_imported_and_what_clients_use_works_without_them(
    by_method: dict[str, Seen],
) -> None:
    fork, spawn = by_method["fork"], by_method["spawn"]

    kernels = "torch._inductor.kernel"  # which the lowerings import; an import that is refused is said too
    assert count_imports(kernels, fork.logs) == 0
    assert count_imports(kernels, spawn.logs) >= 1
    assert fork.features == spawn.features
    assert fork.features["tool"]["name"] == "weather"


def test_the_engine_core_is_a_process_of_its_own(by_method: dict[str, Seen]) -> None:
    assert "EngineCore pid=" in by_method["fork"].logs
    assert not [line for line in by_method["fork"].processes if "multiprocessing.spawn" in line]


def test_no_thread_is_bound_to_fewer_cores_than_the_container_has(by_method: dict[str, Seen]) -> None:
    assert len(by_method["fork"].allowed) == 1


def test_the_tokens_are_those_of_separate_processes(by_method: dict[str, Seen]) -> None:
    assert by_method["fork"].tokens == by_method["spawn"].tokens
    assert "Paris" in by_method["fork"].tokens[0]
