"""`check` and `plan` as whole processes, and gpustack's detector on the same recorded cards. IO."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench import cleanup_guard, startup
from bench.bench_records import Measurement, ratio_at_most
from bench.turns import in_turns, timed_command
from drydock.core.errors import HostError
from drydock.inputs.indexes import read_indexes, uv_environment
from drydock.inputs.uv import uv_binary

HOST = "cuda-h100-8x"
PEER = "gpustack 0.7.1, its detector of NVIDIA cards"
PACKAGE = "gpustack==0.7.1"
DETECTOR = (
    "from gpustack.detectors.nvidia_smi.nvidia_smi import NvidiaSMI; assert len(NvidiaSMI().gather_gpu_info()) == 8"
)
FIELDS = ("index", "name", "memory.total [MiB]", "memory.used [MiB]")
"""What the detector asks nvidia-smi for, and the host records. It also asks for load and temperature: 0 % and 30."""
BECAUSE = "A check of a host must not be what a start waits for."
NOTE = (
    "Both read what nvidia-smi said on that machine: the detector from a program that prints it. It lists cards, and "
    "most of its time are imports; drydock also reads processors, memory, links and limits."
)


def measure_detection(rounds: int) -> list[Measurement]:
    """Compare each verb with the detector, alternately. Raises HostError if one of them fails."""
    with tempfile.TemporaryDirectory(dir=cleanup_guard.make_bench_folder()) as name:
        folder = Path(name)
        paths = startup.stage_entrypoint(folder, HOST)
        verbs = {
            "check": ["--root", str(paths["host"])],
            "plan": ["--root", str(paths["host"]), "--model", str(paths["model"])],
        }
        measures = {
            verb: timed_command(
                [*startup.make_entrypoint_command(folder), verb, *words], startup.make_entrypoint_environment(folder)
            )
            for verb, words in verbs.items()
        }
        detector = [str(_install_detector(folder / "peer")), "-c", DETECTOR]
        with_tool = _with_nvidia_smi(folder / "bin", paths["host"])
        figures = in_turns({**measures, PEER: timed_command(detector, with_tool)}, rounds, "s")
    return [
        Measurement(
            what=f"{verb}: whole process, {HOST}",
            against=PEER,
            goal=ratio_at_most(0.05, BECAUSE),
            ours=figures[verb],
            theirs=figures[PEER],
            command="./inv bench tool",
            note=NOTE,
        )
        for verb in verbs
    ]


def _install_detector(folder: Path) -> Path:
    """Install gpustack into an environment of its own; return its interpreter. Raises HostError."""
    python = folder / "bin" / "python"
    environment = uv_environment(read_indexes(), os.environ)
    for words in (
        ["venv", "--python", sys.executable, str(folder)],
        ["pip", "install", "--python", str(python), PACKAGE],
    ):
        ran = subprocess.run([uv_binary(), *words], env=environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise HostError(f"uv {words[0]} {words[-1]}: {ran.stderr.strip()}", hint="it requires a package index")
    return python


def _with_nvidia_smi(folder: Path, host: Path) -> Mapping[str, str]:
    """Write an nvidia-smi that prints the recorded cards; return an environment that has it."""
    commands = json.loads(host.read_text())["commands"]
    output = next(answer["stdout"] for name, answer in commands.items() if "--query-gpu=" in name)
    head, *cards = (line.split(", ") for line in output.splitlines())
    text = "".join(", ".join([*(card[head.index(field)] for field in FIELDS), "0 %, 30\n"]) for card in cards)
    folder.mkdir()
    (folder / "cards.csv").write_text(text)
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nexec cat {folder}/cards.csv\n")
    tool.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
