"""`bench` of the CPU image, with vLLM's own benchmarks of each kind; and vLLM's own command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from docker.models.containers import Container

from drydock.build import build
from entrypoints.core import errors
from tests.support.started_containers import Ended, run_container

pytestmark = pytest.mark.proves("cpu-vllm0.32", "packages")

SHORT = ("--input-range", "12,20", "--output-range", "4", "--prompts", "3")
MODEL = ("--model", "/models/smollm2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that the container's user can write to."""
    tmp_path.chmod(0o777)
    return tmp_path


def bench(built: build.Built, model: Path, folder: Path, *words: str, network: str = "none") -> Ended:
    volumes = [(model, "/models/smollm2"), (folder, "/out", "rw")]
    return run_container(built.image, "bench", *words, seconds=580, volumes=volumes, network_mode=network)


def test_a_server_is_measured(built: build.Built, model: Path, server: Container, folder: Path) -> None:
    network = f"container:{server.id}"
    words = ("--url", "http://127.0.0.1:8000", *SHORT, "--concurrency", "3", "--output", "/out/one.json")
    code, output, stderr = bench(built, model, folder, *words, network=network)

    assert code == errors.OK, stderr[-2000:]
    assert "Serving Benchmark Result" in output
    result = json.loads((folder / "one.json").read_text())
    assert (result["max_concurrency"], result["completed"], result["total_output_tokens"]) == (3, 3, 12)
    assert result["output_throughput"] > 0


def test_vllms_own_command_runs(built: build.Built) -> None:
    assert run_container(built.image, "vllm", "--version", network_mode="none").stdout.strip() == "0.32.0+cpu"


def test_a_model_is_served_measured_and_stopped(built: build.Built, model: Path, folder: Path) -> None:
    code, output, stderr = bench(
        built, model, folder, *MODEL, *SHORT, "--concurrency", "2", "--output", "/out/one.json"
    )

    assert code == errors.OK, stderr[-2000:]
    assert "Serving Benchmark Result" in output
    assert json.loads((folder / "one.json").read_text())["completed"] == 3
    assert "ended with exit code 0" in stderr


@pytest.mark.parametrize(
    ("kind", "more", "label"),
    [("latency", ("--", "--num-iters-warmup", "1"), "Avg latency:"), ("throughput", (), "Throughput:")],
)
def test_a_model_is_measured_without_a_server(
    built: build.Built, model: Path, folder: Path, kind: str, more: tuple[str, ...], label: str
) -> None:
    words = (*MODEL, "--kind", kind, *SHORT, "--concurrency", "2", "--output", "/out/a.json", *more)
    code, output, stderr = bench(built, model, folder, *words)

    assert code == errors.OK, stderr[-2000:]
    assert label in output
    tokens = json.loads((folder / "a.json").read_text()).get("total_num_tokens", 3 * 16)
    assert 3 * 16 <= tokens <= 3 * 24
