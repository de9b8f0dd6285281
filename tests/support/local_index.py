"""A folder of wheels as the only index of a machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def use_local_index(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Let commands find wheels in one folder alone, and no other mirror; return the folder.

    Next to it are `mirrors.yaml`, which a test may write, and the cache.
    """
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("CI", raising=False)
    wheels, mirrors = folder / "wheels", folder / "mirrors.yaml"
    wheels.mkdir(parents=True, exist_ok=True)
    mirrors.write_text("schema: 1\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("DRYDOCK_MIRRORS", str(mirrors))
    monkeypatch.setenv("DRYDOCK_CACHE", str(folder / "cache"))
    monkeypatch.setenv("UV_CACHE_DIR", str(folder / "uv"))
    return wheels
