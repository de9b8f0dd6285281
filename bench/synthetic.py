"""A matrix of many synthetic variants: `python -m bench.synthetic 10000` loads, renders and plans it.

It prints the CPU seconds of each stage and the bytes of memory used, as JSON. Each variant has its own stack, which
inherits from a real one, so that inheritance, settings, checks, template and profile are as in the real matrix. All
share one real lock under different names, because reading locks measures the disk.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.plans import OUTPUT, staged
from drydock.build import plan
from drydock.config.matrix import find, read_matrix, stack_files
from drydock.core.paths import ROOT
from drydock.core.process import short_lived
from drydock.lock import lockfile as locks
from drydock.model.locked import Lock
from drydock.model.variant import Variant

REAL = "cpu"
"""The target whose stack they inherit from."""


def main() -> None:
    """Print CPU seconds and bytes for N variants. The argument is N, or a folder with variants already written."""
    if sys.argv[1].isdigit():
        with tempfile.TemporaryDirectory() as name:
            write_root(Path(name), int(sys.argv[1]))
            subprocess.run([sys.executable, "-m", "bench.synthetic", name], check=True, cwd=ROOT)
    else:
        sys.stdout.write(json.dumps(measured(Path(sys.argv[1]))))


def measured(root: Path) -> dict[str, float]:
    """Return the CPU seconds of each stage for the matrix in a folder, and the bytes of memory used."""
    short_lived()
    lock = locks.read_lock(locks.path_of(ROOT, (root / "REAL").read_text()))
    before = memory("VmRSS")
    seconds = _seconds(root, lock)
    return {**seconds, "bytes": memory("VmHWM") - before}


def write_root(root: Path, count: int) -> None:
    """Write a matrix of `count` variants and their stacks, with links to one accelerator's real files."""
    real = find(read_matrix(ROOT), REAL)
    (root / "REAL").write_text(real.id)
    stacks = root / "templates" / real.accelerator / "stacks"
    stacks.mkdir(parents=True)
    shared = ("templates/base.Dockerfile.j2", "templates/host.yaml", "templates/tools")
    own = (f"templates/{real.accelerator}/{name}" for name in ("accelerator.yaml", "Dockerfile.j2"))
    for name in (*shared, *own, *stack_files(ROOT, real)):
        (root / name).symlink_to(ROOT / name)
    for number in range(count):
        (stacks / f"s{number}.yaml").write_text(f"inherits: {real.stack}\nsummary: Number {number}\n")
    head = f"schema: 1\nepoch: {real.epoch}\nvariants:\n"
    (root / "matrix.yaml").write_text(head + "".join(_row(number, real) for number in range(count)))


def _row(number: int, real: Variant) -> str:
    default = ", default: true" if number == 0 else ""
    return f"  v{number}: {{stack: s{number}, platforms: [{real.platforms[0]}]{default}}}\n"


def _seconds(root: Path, lock: Lock) -> dict[str, float]:
    def planned(variants: Iterable[Variant]) -> None:
        for variant in variants:
            _plan(root, variant, lock)

    return staged(root, planned)[1]


def _plan(root: Path, variant: Variant, lock: Lock) -> dict[str, Any]:
    own = lock.model_copy(update={"variant": variant.id})
    locks.check(variant, own)
    folder = root / "images" / variant.id
    return plan.plan(variant, own, variant.platforms[0], {"base": str(folder)}, folder, OUTPUT / variant.id)


def memory(field: str) -> int:
    """Return a field of /proc/self/status in bytes: VmRSS, the current memory, or VmHWM, its peak.

    getrusage is unsuitable: its peak includes the parent's.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    main()
