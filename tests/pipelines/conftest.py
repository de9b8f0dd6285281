"""A small repository whose CI runs from what changed to what is published."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.small_project import VARIANT
from drydock.build import build
from drydock.build.build_job import prepare_job
from drydock.ci import workflow
from drydock.config.project_choice import DRYDOCK
from tests.support.git import git
from tests.support.servers import Registry
from tests.support.sigstore import key_pair
from tests.support.small_image import Small

INV = f"""#!/bin/sh
case "$1" in lint|test) exit 0;; docs) mkdir -p public; exit 0;; esac # other kinds of tests run these
exec {sys.executable} tasks.py "$@"
"""


class Runner:
    """Runs the steps of a job as a server's runner does, its environment made of strings: on GitHub each in a shell."""

    def __init__(self, form: str, root: Path, env: dict[str, str]) -> None:
        self.root, self.env, self.log = root, env, ""
        workflow_file = yaml.safe_load((root / workflow.PATHS[form]).read_text())
        self._jobs: dict[str, Any] = workflow_file["jobs"] if form == "github" else workflow_file

    def run(self, name: str) -> str:
        """Run what a job's steps run, and return what they printed."""
        job = self._jobs[name]
        steps = ["\n".join(job["script"])] if "script" in job else [step.get("run", "") for step in job["steps"]]
        before = len(self.log)
        for step in steps:
            result = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", step],
                cwd=self.root,
                env=self.env,
                capture_output=True,
                text=True,
                check=False,
                timeout=900,
            )
            self.log += result.stdout + result.stderr
            assert result.returncode == 0, f"{step}\n{result.stderr[-3000:]}"
        return self.log[before:]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Registry]:
    """A registry that requires credentials."""
    with Registry(tmp_path / "registry", users=True) as server:
        yield server


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return key_pair(tmp_path)


def edit(root: Path) -> str:
    """Change the entrypoint in a commit, and return the commit before it."""
    before = git(root, "rev-parse", "HEAD")
    with (root / "entrypoints" / "core" / "errors.py").open("a") as file:
        file.write("# more\n")
    git(root, "commit", "--quiet", "--all", "--message=x")
    return before


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    """The small repository, committed twice: its entrypoint changed in between."""
    job = prepare_job(DRYDOCK, "cpu")
    build.fetch_contexts(job)  # its base is the real one
    small_project = Small(tmp_path, job.lock)
    (small_project.root / "inv").write_text(INV)
    (small_project.root / "inv").chmod(0o755)
    (small_project.root / ".gitignore").write_text("__pycache__/\n.gitlab-ci-local/\n")
    small_project.invoke("ci").check_returncode()
    git(small_project.root, "init", "--quiet", "--initial-branch=main")
    git(small_project.root, "remote", "add", "origin", "https://gitlab.example/acme/images.git")
    git(small_project.root, "add", "--all")
    git(small_project.root, "commit", "--quiet", "--message=x")
    edit(small_project.root)
    yield small_project
    listed = ["docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", f"drydock/{VARIANT}"]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    subprocess.run(["docker", "image", "rm", *names], capture_output=True, check=False)
