"""The collective's program, with a stand-in for PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from drydock.core.paths import ROOT
from entrypoints.serve import collective

TORCH = """
import os, sys, types

float32 = "float32"


class Tensor:
    def __init__(self, values):
        self.values = list(values)

    def numel(self):
        return len(self.values)

    def __ne__(self, other):
        return Tensor(value != other for value in self.values)

    def any(self):
        return any(self.values)

    def zero_(self):
        self.values = [0.0] * len(self.values)

    def __getitem__(self, place):
        return self.values[place]


def device(name, index=None):
    return types.SimpleNamespace(type=name, index=index)


def ones(count, dtype, device):
    return Tensor([1.0] * count)


def tensor(values, dtype, device):
    return Tensor(values)


def all_reduce(data, op="sum"):
    if op == "sum":
        data.values = [value * float(os.environ["SUM"]) for value in data.values]


gone = []
distributed = types.ModuleType("torch.distributed")
distributed.__dict__.update(
    init_process_group=lambda backend: print("backend", backend), destroy_process_group=lambda: print("destroyed"),
    get_world_size=lambda: 2, all_reduce=all_reduce, ReduceOp=types.SimpleNamespace(MAX="max"),
)
sys.modules["torch.distributed"] = distributed
"""


@pytest.mark.parametrize(("factor", "code"), [("2", 0), ("3", 1)])
def test_each_size_is_timed_and_its_sum_checked(tmp_path: Path, factor: str, code: int) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "registers.py").write_text("print('registered')\n")
    path = f"{tmp_path}:{ROOT / 'entrypoints' / 'plugin'}"
    argv = (sys.executable, "-m", "drydock_plugin.collective", "--backend", "gloo", "--device", "cpu")
    env = {"PYTHONPATH": path, "LOCAL_RANK": "0", "SUM": factor}
    ran = subprocess.run(
        (*argv, "--imports", "registers", "--sizes", "4,64"), env=env, capture_output=True, text=True, check=False
    )

    assert ran.returncode == code, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[:3] == ["registered", "backend gloo", "destroyed"]
    measurement = json.loads(lines[3].removeprefix(collective.MARK))
    assert measurement["ranks"] == 2
    assert [(figure["bytes"], figure["right"]) for figure in measurement["figures"]] == [(4, not code), (64, not code)]
    assert all(figure["seconds"] > 0 for figure in measurement["figures"])
