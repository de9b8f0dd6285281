"""Cache folders for real containers: filled by `warm`, copied for tests that spoil or fill them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from drydock.build import build
from tests.support.started_containers import run_container

UID = 10001
"""The image's own user."""


def copied(warm: Path, to: Path) -> Path:
    """Copy a cache folder, without downloads, for the image's own user; skips the test where that is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files to the image's user")
    shutil.copytree(warm, to, ignore=shutil.ignore_patterns("hub"))
    for path in (to, *to.rglob("*")):
        shutil.chown(path, UID, 0)
    return to


def run(built: build.Built, cache: Path, *command: str, model: Path | None = None, **mounts: str) -> str:
    """Run the image to its end and return its standard output."""
    read_only = [(source, target) for target, source in {**mounts, "/models/smollm2": model}.items() if source]
    ended = run_container(built.image, *command, volumes=[(cache, "/cache", "rw"), *read_only])
    assert ended.code == 0, ended.stderr[-2000:]
    return ended.stdout
