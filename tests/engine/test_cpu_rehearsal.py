"""What vLLM takes and refuses in the CPU image: `plan --rehearse`, also of a topology, and `serve`; and a gpt-oss."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from docker.models.containers import Container

from drydock.build import build
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.topology import rehearsal
from drydock.topology.planned_file import plan_topology_file
from entrypoints.core.errors import REFUSED
from tests.support.started_containers import count_imports, run_container, start_container

pytestmark = [pytest.mark.proves("cpu-vllm0.32", "packages"), pytest.mark.timeout(600)]

TOPOLOGY = f"""\
model: /models/smollm2
target: cpu
api_key: none
nodes: [{{name: one, address: 10.0.0.1, host: {ROOT}/tests/hosts/cpu-emeraldrapids-vm-2c/host.json}}]
groups: [{{name: all, role: serve, replicas: 1}}]
"""
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 256,
    "layer_types": ["sliding_attention", "full_attention"],
    "max_position_embeddings": 131072,
    "num_attention_heads": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
ASK = """
import json, sys, urllib.error, urllib.request
body = {"model": "gpt-oss", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
url = "http://127.0.0.1:8000/v1/chat/completions"
request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
try:
    print(urllib.request.urlopen(request, timeout=120).status)
except urllib.error.HTTPError as error:
    print(error.code)
except OSError:
    print(0)
"""
"""Asks the server in its own container, which has no network, and prints the status; 0 if it does not listen yet."""
SECONDS = 240
"""Until a small model answers, on a loaded machine."""


def test_vllm_takes_the_plan_of_a_small_model(built: build.Built, model: Path) -> None:
    words = ("plan", "--rehearse", "--json", "--model", "/models/smollm2")
    ran = run_container(built.image, *words, volumes=[(str(model), "/models/smollm2", "ro")], network_mode="none")

    assert ran.code == 0, ran.stderr
    answer = json.loads(ran.stdout)["rehearsal"]
    assert (answer["outcome"], answer["vllm"]) == ("constructed", "0.32.0")
    assert answer["checked"] == ["command line", "configuration", "classes of rank 0"]


def test_vllm_takes_the_plan_of_a_topologys_node(built: build.Built, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(TOPOLOGY)
    plan = plan_topology_file(DRYDOCK, file, str(model)).model_copy(update={"image": built.image})

    answers = list(rehearsal.rehearse_topology(DRYDOCK, plan, file, str(model)))

    assert [(answer.node, answer.rank, answer.outcome) for answer in answers] == [("one", 0, "constructed")]


@pytest.fixture(scope="module")
def gptq(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model whose configuration says that its weights are quantised by GPTQ."""
    folder = tmp_path_factory.mktemp("models") / "gptq"
    shutil.copytree(model, folder)
    file = folder / "config.json"
    quantised = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": quantised}))
    return folder


OVERRULED = ("compilation-config", "optimization-level", "decode-context-parallel-size", "dtype", "quantization")
TAKEN = tuple(word for option in OVERRULED for word in ("--vllm-accepts", f"--{option}"))
"""Lets `serve` start what the plan's own rules would refuse."""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--compilation-config", '{"mode":7}', *TAKEN), "CompilationConfig mode Input should be 0, 1, 2 or 3"),
        (("-O4", *TAKEN), "optimization_level Input should be 0, 1, 2 or 3"),
        (("--decode-context-parallel-size", "3", *TAKEN), "tp_size=1 must be divisible by dcp_size=3."),
        (("--dtype", "banana", *TAKEN), "argument --dtype: invalid choice: 'banana'"),
        (("--quantization", "awq", *TAKEN), "Quantization method specified in the model config (gptq) does not match"),
        (("--quantization", "gptq", "--hf-overrides", '{"hidden_act":"relu"}'), "Unsupported activation: relu."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_the_plan_takes_and_vllm_refuses_ends_in_vllms_words_before_weights_are_read(
    built: build.Built, gptq: Path, words: tuple[str, ...], sentence: str
) -> None:
    options: dict[str, Any] = {"volumes": [(str(gptq), "/models/gptq", "ro")], "network_mode": "none"}
    plan = run_container(built.image, "plan", "--model", "/models/gptq", *words, **options)
    assert plan.code == 0, plan.stderr
    ran = run_container(
        built.image, "serve", "--model", "/models/gptq", *words, env={"PYTHONPROFILEIMPORTTIME": "1"}, **options
    )

    error = ran.stderr[ran.stderr.rindex("drydock: ") :]
    assert ran.code == REFUSED, ran.stderr[-2000:]
    assert error.startswith("drydock: vLLM 0.32.0 refuses this command: ")
    assert sentence in error
    assert count_imports("vllm", ran.stderr) == 1
    assert "Loading safetensors" not in ran.stderr


@pytest.fixture
def gpt_oss(model: Path, tmp_path: Path) -> Path:
    """A folder with a small gpt-oss, and the tokenizer of another model, which chats do not use."""
    folder = tmp_path / "gpt-oss"
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors*", "config.json"))
    (folder / "config.json").write_text(json.dumps(GPT_OSS))
    return folder


def test_a_gpt_oss_without_a_network_serves_or_its_plan_says_what_is_missing(built: build.Built, gpt_oss: Path) -> None:
    options: dict[str, Any] = {"volumes": [(str(gpt_oss), "/models/gpt-oss", "ro")], "network_mode": "none"}
    words = ("--model", "/models/gpt-oss", "--load-format", "dummy", "--served-model-name", "gpt-oss")
    words = (*words, "--max-model-len", "2048")
    plan = run_container(built.image, "plan", "--json", *words, **options)
    assert plan.code == 0, plan.stderr
    findings = {finding["id"] for finding in json.loads(plan.stdout)["findings"]}

    with start_container(built.image, "serve", *words, **options, shm_size="1g") as container:
        status = wait_for_answer(container)
        log = container.logs().decode()

    assert status == 200 or "PLAN-180" in findings, (status, log[-2000:])


def wait_for_answer(container: Container) -> int:
    """Return the status of the first answer; 0 if the container ends before."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        container.reload()
        if container.status != "running":
            return 0
        status = int(container.exec_run(("/opt/venv/bin/python3", "-c", ASK)).output.split()[-1])
        if status:
            return status
        time.sleep(2)
    raise TimeoutError(f"no answer within {SECONDS} s: {container.logs().decode()[-2000:]}")
