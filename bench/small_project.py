"""A repository like this one, a variant of it with tiny wheels: real builds in seconds, in a cache of its own. IO."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drydock.build import standins
from drydock.config import matrix
from drydock.core.files import compute_checksum
from drydock.core.paths import ROOT, cache_home
from drydock.core.project import Project
from drydock.inputs.store import default_store
from drydock.lock import lockfile
from drydock.lock.lockfile import assign_wheels_to_layers
from drydock.model.locked import Lock, LockedWheel
from drydock.model.variant import Variant

VARIANT = "small-stand-in"
ROW = "cpu-vllm0.32"
FOLDERS = ("bench", "drydock", "entrypoints", "policy", "templates")
FILES = ("matrix.yaml", "tasks.py", "pyproject.toml")


def locked(name: str, version: str, modules: Mapping[str, str]) -> LockedWheel:
    """Put a tiny wheel into the store and return its pin."""
    filename, data = standins.make_stub_wheel(name, version, modules)
    sha256 = hashlib.sha256(data).hexdigest()
    default_store().add([data], sha256, filename)
    return LockedWheel(name=name, version=version, filename=filename, size=len(data), sha256=sha256)


class SmallProject:
    """The repository, its cache folder, and its build as a process of its own.

    `row` is the row of matrix.yaml that the variant is made of; its base is that of `real`, the CPU variant's lock.
    """

    def __init__(self, folder: Path, real: Lock, row: str = ROW) -> None:
        """Copy the repository, lock the tiny wheels and render. Shares the store and the bases of this machine."""
        self.root = folder / "repository"
        self.cache = folder / "cache"
        self._copy(row)
        self._lock(real)
        self.cache.mkdir()
        for shared in ("store", "bases"):
            (self.cache / shared).symlink_to(cache_home() / shared)
        self.invoke("render", "--target", VARIANT).check_returncode()

    def _copy(self, row: str) -> None:
        for name in FOLDERS:
            shutil.copytree(ROOT / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in FILES:
            shutil.copy(ROOT / name, self.root / name)
        text = (self.root / "matrix.yaml").read_text()
        (self.root / "matrix.yaml").write_text(text.replace(f"  {row}:", f"  {VARIANT}:"))

    def add_row(self, name: str, modules: Mapping[str, str]) -> None:
        """Add a row like the variant whose vLLM has other modules; what the rows install below vLLM is the same."""
        rows = self.root / "matrix.yaml"
        new = f"variants:\n  {name}: {{stack: cpu-0.32, platforms: [linux/amd64]}}\n"
        rows.write_text(rows.read_text().replace("variants:\n", new, 1))
        self._lock(lockfile.read_lock(lockfile.path_of_lock(Project(self.root), VARIANT)), name, modules)
        self.invoke("render", "--target", name).check_returncode()

    def make_vllm(self, variant: Variant) -> dict[str, str]:
        """Return the modules of the wheel that stands for vLLM."""
        return standins.stub_vllm(variant.module)

    def _lock(self, real: Lock, name: str = VARIANT, modules: Mapping[str, str] | None = None) -> None:
        variant = matrix.find_variant(matrix.read_matrix(Project(self.root)), name)
        vllm = variant.vllm.distribution
        modules = modules or self.make_vllm(variant)
        layers = assign_wheels_to_layers(variant, [locked(vllm, variant.vllm.version, modules)])
        for layer in [layer.name for layer in variant.layers if not layers[layer.name]]:
            layers[layer] = (locked(f"tiny-{layer}", "1.0", {f"tiny_{layer.replace('-', '_')}.py": "A = 1\n"}),)
        platforms = {
            platform: pins.model_copy(update={"layers": layers, "image": None})
            for platform, pins in real.platforms.items()
        }
        update: dict[str, Any] = {
            "variant": name,
            "inputs_sha256": compute_checksum(lockfile.collect_lock_inputs(variant)),
            "platforms": platforms,
        }
        lockfile.write_lock(lockfile.path_of_lock(Project(self.root), name), real.model_copy(update=update))

    @property
    def environment(self) -> dict[str, str]:
        """What its processes run with."""
        return {**os.environ, "DRYDOCK_CACHE": str(self.cache), "PYTHONPATH": str(self.root)}

    def start(self, *command: str, **changes: str) -> subprocess.Popen[str]:
        """Start a module of the repository in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=self.root,
            env={**self.environment, **changes},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def invoke(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run an invoke verb to its end."""
        process = self.start("invoke", *arguments, **changes)
        stdout, stderr = process.communicate(timeout=300)
        return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)
