"""`vllm bench` without a distribution named vllm, with stand-ins for vLLM's benchmarks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from drydock.core.paths import ROOT

BENCHMARK = """
import os

def add_cli_args(parser):
    for name in {names!r}:
        parser.add_argument(f"--{{name}}")

def main(args):
    print(sorted((name, value) for name, value in vars(args).items() if value))
    print(os.environ["VLLM_WORKER_MULTIPROC_METHOD"])
"""
LENGTHS = ["input-len", "output-len"]


@pytest.mark.parametrize("module", ["vllm/utils/argparse_utils.py", "vllm/utils/__init__.py"])
@pytest.mark.parametrize(
    ("kind", "names", "read"),
    [
        ("latency", LENGTHS, "[('input_len', '7'), ('output_len', '9')]"),
        ("throughput", LENGTHS, "[('input_len', '7'), ('output_len', '9')]"),
        (
            "throughput",
            [*LENGTHS, "random-input-len", "random-output-len"],
            "[('random_input_len', '7'), ('random_output_len', '9')]",
        ),
    ],
)
def test_it_runs_the_benchmark_with_the_lengths_that_it_uses(
    tmp_path: Path, module: str, kind: str, names: list[str], read: str
) -> None:
    for name in ("vllm/__init__.py", "vllm/utils/__init__.py", "vllm/benchmarks/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / module).write_text("from argparse import ArgumentParser as FlexibleArgumentParser\n")
    (tmp_path / "vllm" / "benchmarks" / f"{kind}.py").write_text(BENCHMARK.format(names=names))
    argv = (sys.executable, "-m", "drydock_plugin.bench", kind, "--input-len", "7", "--output-len", "9")
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT / 'entrypoints' / 'plugin'}"}
    ran = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)

    assert ran.stdout.splitlines() == [read, "spawn"]
