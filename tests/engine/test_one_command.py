"""From a checkout to a stand-in image of gaudi2 with one command, where the vendor's registry is on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from drydock.build import build, buildx, standins
from drydock.build.build_job import prepare_job
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.lock import lockfile
from drydock.model.bases import ImageBase
from tests.support.local_registry import FILES, FOLDERS
from tests.support.servers import Registry
from tests.support.standins import PLATFORM

VARIANT = find_variant(read_matrix(DRYDOCK), "gaudi2")


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    server = Registry(tmp_path / "registry")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the repository, as a new user has it."""
    for name in (*FOLDERS, "images"):
        shutil.copytree(ROOT / name, tmp_path / "checkout" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path / "checkout" / name)
    return tmp_path / "checkout"


def standin_contexts(folder: Path, registry: Registry) -> list[str]:
    """Push a stand-in for the vendor's base, and return --context options with stand-ins for the rest."""
    assert isinstance(VARIANT.base, ImageBase)
    folder.mkdir()
    pushed = VARIANT.base.reference.replace("vault.habana.ai", registry.host)
    target = {
        "context": str(folder),
        "dockerfile-inline": "FROM base\n",
        "contexts": {"base": standins.make_stand_in_base(VARIANT, prepare_job(DRYDOCK, "cpu"))},
        "output": [f"type=image,name={pushed},push=true,store=false"],
    }
    buildx.run_bake({"group": {"default": {"targets": ["base"]}}, "target": {"base": target}})
    tools = build.fetch_contexts(prepare_job(DRYDOCK, "cpu"), without={"base", "wheels"})["tools"]
    replaced = {**standins.make_stubs(VARIANT), "tools": tools}
    return [word for key, value in replaced.items() for word in ("--context", f"{key}={value}")]


def test_build_pins_the_base_of_a_stand_in_gaudi2_and_builds_it(
    tmp_path: Path, registry: Registry, checkout: Path
) -> None:
    contexts = standin_contexts(tmp_path / "stand-ins", registry)
    mirrors = tmp_path / "mirrors.yaml"
    mirrors.write_text(json.dumps({"registries": {"vault.habana.ai": registry.host}}))
    path = lockfile.path_of_lock(Project(checkout), VARIANT.id)
    before = json.loads(path.read_text())
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    environment |= {"DRYDOCK_MIRRORS": str(mirrors), "PYTHONPATH": str(checkout)}
    environment |= {"DRYDOCK_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "tasks.py", "build", "--target", "gaudi2", "--json", *contexts]
    result = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    built = json.loads(result.stdout)
    client = docker.from_env()
    try:
        assert client.images.get(built["image"]).labels["io.drydock.variant"] == VARIANT.id
    finally:
        client.images.remove(client.images.get(built["image"]).id, force=True)  # by id: `latest` names it too

    after = json.loads(path.read_text())
    base = after["platforms"][PLATFORM]["base"]
    assert f"pinned base {base['reference']}@{base['digest']}\n" in result.stderr
    assert base["source"] == "a mirror of the registry"
    for document in (before, after):
        del document["content_sha256"], document["platforms"][PLATFORM]["base"]
        del document["platforms"][PLATFORM]["unresolved"]
    assert before == after
