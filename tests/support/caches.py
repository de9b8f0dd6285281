"""Cache folders for real containers: filled by `warm`, copied for tests that spoil or fill them."""

from __future__ import annotations

import shutil
from pathlib import Path

import docker

from drydock.build import build

UID = 10001
"""The image's own user."""


def copied(warm: Path, to: Path) -> Path:
    """Copy a cache folder, without downloads, for the image's own user."""
    shutil.copytree(warm, to, ignore=shutil.ignore_patterns("hub"))
    for path in (to, *to.rglob("*")):
        shutil.chown(path, UID, 0)
    return to


def run(built: build.Built, cache: Path, *command: str, model: Path | None = None, **mounts: str) -> bytes:
    """Run the image to its end and return its standard output."""
    volumes = {str(cache): {"bind": "/cache", "mode": "rw"}}
    volumes |= {str(model): {"bind": "/models/smollm2", "mode": "ro"}} if model else {}
    volumes |= {source: {"bind": target, "mode": "ro"} for target, source in mounts.items()}
    container = docker.from_env().containers.run(built.image, list(command), detach=True, volumes=volumes)
    try:
        assert container.wait(timeout=300)["StatusCode"] == 0, container.logs(tail=20).decode(errors="replace")
        output: bytes = container.logs(stdout=True, stderr=False)
        return output
    finally:
        container.remove(force=True, v=True)
