"""The whole matrix as one docker-bake.json: `python -m bench.plans` prints it.

On standard error it prints the CPU seconds of each stage as JSON, which `./inv bench tool` compares with
`docker buildx bake --print` of the same file. For each variant and platform, it renders the Dockerfile and the profile,
and reads and checks the lock.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from drydock.build import plan, render
from drydock.config.matrix import read_matrix
from drydock.core.files import dumps
from drydock.core.paths import ROOT
from drydock.core.process import short_lived
from drydock.lock import lockfile as locks
from drydock.model.locked import LockedPlatform
from drydock.model.variant import Variant

OUTPUT = Path("build")
T = TypeVar("T")


def main() -> None:
    """Print the plan, and the CPU seconds of each stage."""
    short_lived()
    text, seconds = staged(ROOT, lambda variants: dumps(whole(ROOT, variants)))
    sys.stdout.write(text)
    sys.stderr.write(json.dumps(seconds))


def staged(root: Path, make: Callable[[tuple[Variant, ...]], T]) -> tuple[T, dict[str, float]]:
    """Load, render and plan a matrix; return the plan and the CPU seconds of each stage."""
    begin = time.process_time()
    variants = read_matrix(root)
    loaded = time.process_time()
    for variant in variants:
        render.render(root, variant)
    rendered = time.process_time()
    made = make(variants)
    planned = time.process_time()
    return made, {"load": loaded - begin, "render": rendered - loaded, "plan": planned - rendered}


def whole(root: Path, variants: tuple[Variant, ...]) -> dict[str, Any]:
    """Return the plan of every variant for every platform. Raises StaleError."""
    targets = dict(target for variant in variants for target in _targets(root, variant))
    return {"group": {"default": {"targets": list(targets)}}, "target": targets}


def _targets(root: Path, variant: Variant) -> Iterator[tuple[str, dict[str, Any]]]:
    lock = locks.read_lock(locks.path_of(root, variant.id))
    locks.check(variant, lock)
    for platform, pins in lock.platforms.items():
        folder = root / "images" / variant.id
        made = plan.plan(variant, lock, platform, _contexts(folder, pins), folder, OUTPUT / variant.id)
        ((name, target),) = made["target"].items()
        yield f"{name}_{platform.replace('/', '_')}", target


def _contexts(folder: Path, pins: LockedPlatform) -> dict[str, str]:
    """Return the named contexts of a variant as folders, which need not exist yet."""
    names = ("base", "wheels", "tools", "entrypoints", *(source.name for source in pins.sources), *pins.supplied)
    return {name: str(folder / name) for name in names}


if __name__ == "__main__":
    main()
