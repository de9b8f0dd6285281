"""Milliseconds from the entrypoint's start to vLLM's start: `python -m bench.startup [--runs 30]` prints JSON.

The bare interpreter's start is measured in each run too, because machines differ and may be busy. `vLLM` is a stub that
prints the time. The entrypoint is compiled as in the image.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import NamedTuple

from drydock.build import render
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT

MACHINES = {
    "cpu-xeon8380-2s": "cpu-vllm0.32",
    "cuda-h100-8x": "cuda13.0-vllm0.33",
    "habana-gaudi2-8x": "habana1.22-fork0.9",
    "ascend-a3-8x2": "ascend9.1-a3-vllm0.23",
}
"""Recorded host → variant. Large machines (160 threads on two nodes, eight or sixteen devices), with much to read."""

STUB = "#!/bin/sh\nexec date +%s%N\n"
CONFIG = {
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "head_dim": 64,
}


def stage_entrypoint(folder: Path, machine: str) -> Mapping[str, Path]:
    """Write entrypoint, profile, recorded host, model and stub into a folder."""
    shutil.copytree(ROOT / "entrypoints", folder / "entrypoints", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(folder / "entrypoints", quiet=1, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    stub = folder / "python3"
    stub.write_text(STUB)
    stub.chmod(0o755)
    profile = json.loads(render.profile_text(find_variant(read_matrix(DRYDOCK), MACHINES[machine])))
    (folder / "profile.json").write_text(json.dumps({**profile, "python": str(stub)}))
    return {"host": copy_host(folder, machine), "model": write_model(folder)}


def copy_host(folder: Path, machine: str) -> Path:
    """Copy a recorded host into a folder, with a cache that can be written to; return the copy's path."""
    host = json.loads((ROOT / "tests" / "hosts" / machine / "host.json").read_text())
    host["mounts"]["cache"]["path"] = str(folder / "cache")
    (folder / "cache").mkdir()
    copied = folder / "host.json"
    copied.write_text(json.dumps(host))
    return copied


def write_model(folder: Path) -> Path:
    """Write a small model, whose weights are empty."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({**CONFIG, "max_position_embeddings": 8192}))
    header = b'{"w":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}}'
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    return model


def time_interpreter(env: Mapping[str, str]) -> float:
    """Run an interpreter that does nothing; return milliseconds."""
    begin = time.time_ns()
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True, env=env)
    return (time.time_ns() - begin) / 1e6


def time_serve(folder: Path, paths: Mapping[str, Path], env: Mapping[str, str]) -> float:
    """Start `serve`; return the milliseconds until the stub runs."""
    return _until_stub(_make_serve_command(folder, paths), env)


def time_floor(folder: Path, modules: Sequence[str], env: Mapping[str, str]) -> float:
    """Start an entrypoint that only imports modules and becomes the stub; return milliseconds."""
    stub = str(folder / "python3")
    code = f"import os, {', '.join(modules)}\nos.execv({stub!r}, [{stub!r}])"
    return _until_stub([sys.executable, "-I", "-S", "-c", code], env)


def list_needed_modules(folder: Path, paths: Mapping[str, Path], env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the modules of the standard library that `serve` imports, as reported by the interpreter."""
    python, *words = _make_serve_command(folder, paths)
    ran = subprocess.run([python, "-X", "importtime", *words], capture_output=True, text=True, check=False, env=env)
    names = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")}
    stdlib_names = {name for name in names if name.partition(".")[0] in sys.stdlib_module_names}
    return tuple(sorted(name for name in stdlib_names if not name.startswith("_frozen")))


def make_entrypoint_command(folder: Path) -> list[str]:
    """Return the command of the entrypoint in a folder."""
    return [sys.executable, "-I", "-S", str(folder / "entrypoints")]


def make_entrypoint_environment(folder: Path) -> dict[str, str]:
    """Return the environment of the entrypoint in a folder."""
    return {"PATH": os.environ["PATH"], "DRYDOCK_PROFILE": str(folder / "profile.json")}


def _make_serve_command(folder: Path, paths: Mapping[str, Path]) -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    served = ["serve", "--model", str(paths["model"]), "--exec", "--host", "127.0.0.1", "--port", port]
    return [*make_entrypoint_command(folder), *served, "--root", str(paths["host"])]


def _until_stub(command: Sequence[str], env: Mapping[str, str]) -> float:
    begin = time.time_ns()
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if ran.returncode:
        raise RuntimeError(ran.stderr)
    return (int(ran.stdout) - begin) / 1e6


class Start(NamedTuple):
    """One run of each, in milliseconds."""

    interpreter: float
    """The bare interpreter, from start to end."""
    floor: float
    """The imports that the entrypoint needs, and the stub."""
    serve: float
    interpreter_cpu: float
    """CPU time of the bare interpreter."""
    serve_cpu: float
    """CPU time of `serve` and the stub."""


def measure_each_start(runs: int, machine: str) -> Iterator[Start]:
    """Measure each of them `runs` times, alternately."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = stage_entrypoint(folder, machine)
        env = make_entrypoint_environment(folder)
        modules = list_needed_modules(folder, paths, env)
        for _ in range(runs):
            before = _read_child_cpu()
            interpreter = time_interpreter(env)
            interpreter_cpu = _read_child_cpu() - before
            floor = time_floor(folder, modules, env)
            before = _read_child_cpu()
            serve = time_serve(folder, paths, env)
            yield Start(interpreter, floor, serve, interpreter_cpu, _read_child_cpu() - before)


def _read_child_cpu() -> float:
    """Return the CPU time of all processes that this one has waited for, in milliseconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1000


def summarize_starts(runs: int, machine: str) -> dict[str, float]:
    """Return the medians and minima, in milliseconds."""
    starts = [*measure_each_start(runs, machine)]
    interpreter, least, whole = ([start[place] for start in starts] for place in range(3))
    return {
        "runs": runs,
        "interpreter_median_ms": round(statistics.median(interpreter), 1),
        "interpreter_min_ms": round(min(interpreter), 1),
        "floor_min_ms": round(min(least), 1),
        "serve_median_ms": round(statistics.median(whole), 1),
        "serve_min_ms": round(min(whole), 1),
        "interpreter_cpu_ms": round(min(start.interpreter_cpu for start in starts), 1),
        "serve_cpu_ms": round(min(start.serve_cpu for start in starts), 1),
    }


def main() -> None:
    """Print the measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30)
    runs = parser.parse_args().runs
    measured = {machine: summarize_starts(runs, machine) for machine in MACHINES}
    print(json.dumps(measured, indent=2))  # noqa: T201 - data on standard output


if __name__ == "__main__":
    main()
