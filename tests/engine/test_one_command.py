"""From a checkout to an image with one command: the demo, and gaudi2 where the vendor's registry is on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import docker
import pytest

from drydock.build import build, buildx, standins
from drydock.build.build_job import Job, prepare_job
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.files import link_or_copy
from drydock.core.paths import ROOT, cache_home
from drydock.core.project import Project
from drydock.inputs import debs
from drydock.inputs.store import Store
from drydock.lock import lockfile
from drydock.model.bases import ImageBase
from drydock.model.locked import LockedDebianBase
from tests.support.local_registry import FILES, FOLDERS
from tests.support.servers import Registry
from tests.support.standins import PLATFORM

VARIANT = find_variant(read_matrix(DRYDOCK), "gaudi2")


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


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("apt-get"), reason="needs apt-get")
def test_the_demo_gives_the_same_image_where_apt_is_as_debootstrap_writes_it(
    tmp_path: Path, checkout: Path, job: Job
) -> None:
    """Only the Debian packages are fetched: what else is locked, the tests' store has."""
    assert isinstance(job.pins.base, LockedDebianBase)
    packages = [*job.pins.base.packages, *job.pins.base.bootstrap]
    build.fetch_contexts(job)
    store = Store(tmp_path / "cache")
    for name in ("store", "models"):
        if (cache_home() / name).is_dir():
            shutil.copytree(cache_home() / name, tmp_path / "cache" / name, symlinks=True, copy_function=link_or_copy)
    for path in (store.path(package.sha256) for package in packages):
        path.unlink(missing_ok=True)
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / "sources.list").write_text(f"deb {debs.read_debian_mirrors().main[0]} bookworm main\n")
    (tmp_path / "apt.conf").write_text(f'Dir::Etc::sourcelist "{etc}/sources.list";\nDir::Etc::sourceparts "{etc}";\n')
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@a.example"]
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "all"]):
        subprocess.run([*git, *command], cwd=checkout, check=True, capture_output=True)
    environment = {**os.environ, "APT_CONFIG": str(tmp_path / "apt.conf"), "DRYDOCK_CACHE": str(tmp_path / "cache")}
    environment |= {"PYTHONPATH": str(checkout)}
    result = subprocess.run(
        [sys.executable, "tasks.py", "demo"], cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    digest = next(line for line in result.stdout.splitlines() if line.startswith("digest"))
    assert build.build_image(job).digest in digest  # this checkout's own build, whose packages came another way
    status = subprocess.run(["git", "status", "--short"], cwd=checkout, check=True, capture_output=True, text=True)
    assert status.stdout == ""
    assert {package.sha256 for package in packages if not store.has(package.sha256, package.size)} == set()
