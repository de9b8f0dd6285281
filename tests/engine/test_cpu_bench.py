"""`bench` of the CPU image, with vLLM's own benchmarks: a sweep with its plot, a comparison, and each other kind."""

from __future__ import annotations

import json
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container

from drydock.build import build
from entrypoints.core import errors

pytestmark = pytest.mark.proves("cpu-vllm0.32", "packages")

SHORT = ("--input-range", "12,20", "--output-range", "4", "--prompts", "3")
MODEL = ("--model", "/models/smollm2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that the container's user can write to."""
    tmp_path.chmod(0o777)
    return tmp_path


def bench(built: build.Built, model: Path, folder: Path, *words: str, network: str = "none") -> tuple[int, str, str]:
    """Run `bench`; return its exit code, its output, and what it said."""
    volumes = {str(model): {"bind": "/models/smollm2", "mode": "ro"}, str(folder): {"bind": "/out", "mode": "rw"}}
    container = docker.from_env().containers.run(
        built.image, ["bench", *words], volumes=volumes, network_mode=network, detach=True
    )
    try:
        code = container.wait(timeout=580)["StatusCode"]
        output, said = (container.logs(stdout=out, stderr=not out).decode() for out in (True, False))
    finally:
        container.remove(force=True, v=True)
    return code, output, said


def test_a_server_is_measured_in_a_sweep_with_a_plot_and_a_comparison(
    built: build.Built, model: Path, server: Container, folder: Path
) -> None:
    network = f"container:{server.id}"
    words = ("--url", "http://127.0.0.1:8000", *SHORT, "--sweep", "concurrency=1,3", "--output", "/out/sweep.json")
    code, output, said = bench(built, model, folder, *words, network=network)

    assert code == errors.OK, said[-2000:]
    assert output.splitlines()[0].split() == ["concurrency", "1", "concurrency", "3"]
    for label in ("output tokens/s", "TTFT, median, ms", "ITL, median, ms"):
        assert label in output
    runs = json.loads((folder / "sweep.json").read_text())
    assert [(run["max_concurrency"], run["completed"]) for run in runs] == [(1, 3), (3, 3)]
    assert all(run["output_throughput"] > 0 and run["total_output_tokens"] == 12 for run in runs)
    assert (folder / "sweep.html").read_text().count("<svg") == 3
    code, output, said = bench(built, model, folder, "--compare", "/out/sweep.json", "/out/sweep.json")
    assert code == errors.OK, said[-2000:]
    assert "concurrency 3" in output
    assert {line.split()[-1] for line in output.splitlines() if " 1.00 " in line} == {"same"}


def test_a_model_is_served_measured_and_stopped(built: build.Built, model: Path, folder: Path) -> None:
    code, output, said = bench(built, model, folder, *MODEL, *SHORT, "--concurrency", "2", "--output", "/out/one.json")

    assert code == errors.OK, said[-2000:]
    assert "output tokens/s" in output
    assert json.loads((folder / "one.json").read_text())["completed"] == 3
    assert "ended with exit code 0" in said


@pytest.mark.parametrize(
    ("kind", "more", "label"),
    [("latency", ("--", "--num-iters-warmup", "1"), "latency, mean, ms"), ("throughput", (), "all tokens/s")],
)
def test_a_model_is_measured_without_a_server(
    built: build.Built, model: Path, folder: Path, kind: str, more: tuple[str, ...], label: str
) -> None:
    words = (*MODEL, "--kind", kind, *SHORT, "--concurrency", "2", "--output", "/out/a.json", *more)
    code, output, said = bench(built, model, folder, *words)

    assert code == errors.OK, said[-2000:]
    assert label in output
    tokens = json.loads((folder / "a.json").read_text()).get("total_num_tokens", 3 * 16)
    assert 3 * 16 <= tokens <= 3 * 24
