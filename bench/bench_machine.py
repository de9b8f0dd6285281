"""The machine, engine and commit of a benchmark. IO."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from bench.bench_records import BenchmarkMachine
from drydock.core.commit import is_in_repository, read_head, run_git
from drydock.core.paths import ROOT


def read_machine() -> BenchmarkMachine:
    """Read this machine's properties."""
    return BenchmarkMachine(
        processor=_read_field("/proc/cpuinfo", "model name", ":") or platform.machine(),
        cpus=len(os.sched_getaffinity(0)),
        memory=int(_read_field("/proc/meminfo", "MemTotal", ":").partition(" ")[0] or 0) * 1024,
        kernel=platform.release(),
        system=_read_field("/etc/os-release", "PRETTY_NAME", "=").strip('"'),
        python=platform.python_version(),
        engine=_read_engine_version(),
        load=round(os.getloadavg()[0], 2),
    )


def read_marked_commit() -> str:
    """Return the current commit, with a + if files have uncommitted changes; empty outside a clone.

    Raises GitFailedError.
    """
    if not is_in_repository(ROOT):
        return ""
    name = read_head(ROOT)[:12]
    return f"{name}+" if name and run_git(ROOT, "status", "--porcelain", "--untracked-files=no") else name


def _read_field(path: str, name: str, separator: str) -> str:
    for line in Path(path).read_text(errors="replace").splitlines() if Path(path).is_file() else ():
        key, mark, value = line.partition(separator)
        if mark and key.strip() == name:
            return value.strip()
    return ""


def _read_engine_version() -> str:
    if not shutil.which("docker"):
        return ""
    server = _read_output("docker", "version", "--format", "{{.Server.Version}}")
    buildx = _read_output("docker", "buildx", "version").split()
    return " ".join([f"Docker {server}", *([f"buildx {buildx[1]}"] if len(buildx) > 1 else [])]) if server else ""


def _read_output(*command: str) -> str:
    ran = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    return ran.stdout.strip() if ran.returncode == 0 else ""
