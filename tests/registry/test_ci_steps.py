"""The committed workflow's own steps, run as a script: what changed, build, verify, publish, sign."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from drydock.build import build
from drydock.build.job import prepare
from drydock.config.project import DRYDOCK
from drydock.repo.ci import workflow
from drydock.repo.ci.release import PASSWORD, USER
from tests.support.git import git
from tests.support.servers import PASSWORD as RIGHT
from tests.support.servers import Registry
from tests.support.small_image import VARIANT, Small


class Runner:
    """Runs the steps of a job as GitHub's runner does: each in a shell of its own, its environment made of strings."""

    def __init__(self, root: Path, env: dict[str, str]) -> None:
        self.root, self.env, self.log = root, env, ""
        self.jobs: dict[str, Any] = yaml.safe_load((root / workflow.PATHS["github"]).read_text())["jobs"]

    def run(self, job: str) -> None:
        """Run what a job's steps run."""
        for step in self.jobs[job]["steps"]:
            if "run" in step:
                done = subprocess.run(
                    ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
                    cwd=self.root,
                    env=self.env,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=900,
                )
                self.log += done.stdout + done.stderr
                assert done.returncode == 0, f"{step['run']}\n{done.stderr[-3000:]}"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    """The small repository, committed twice: its entrypoint changed in between."""
    job = prepare(DRYDOCK, "cpu")
    build.fetch_contexts(job)  # its base is the real one
    found = Small(tmp_path, job.lock)
    (found.root / "inv").write_text(f'#!/bin/sh\nexec {sys.executable} -m invoke "$@"\n')
    (found.root / "inv").chmod(0o755)
    (found.root / ".gitignore").write_text("__pycache__/\n")
    found.invoke("ci").check_returncode()
    git(found.root, "init", "--quiet", "--initial-branch=main")
    for text in ("", "# more\n"):
        with (found.root / "entrypoints" / "core" / "errors.py").open("a") as file:
            file.write(text)
        git(found.root, "add", "--all")
        git(found.root, "commit", "--quiet", "--message=x")
    yield found
    names = subprocess.run(
        ["docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", f"drydock/{VARIANT}"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    subprocess.run(["docker", "image", "rm", *names], capture_output=True, check=False)


@pytest.mark.slow
def test_the_steps_build_verify_publish_and_sign_what_changed(
    small: Small, guarded: Registry, key: Path, tmp_path: Path
) -> None:
    runner = Runner(small.root, {
        **small.environment,
        "SINCE": git(small.root, "rev-parse", "HEAD~1"),
        "ONLY": "changed",
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_REF": "refs/tags/v1.0.0",
        "REGISTRY": f"{guarded.host}/Acme",
        "DOCKER_CONFIG": str(tmp_path / "docker"),
        "DRYDOCK_COSIGN_KEY": str(key),
        USER: "someone",
        PASSWORD: RIGHT,
    })  # fmt: skip

    runner.run("release-changes")
    name, _, value = (tmp_path / "output").read_text().strip().partition("=")
    (row,) = json.loads(value)
    assert (name, row["variant"]) == ("variants", VARIANT)

    runner.env["VARIANT"] = row["variant"]
    runner.run("release")
    assert RIGHT not in runner.log
    where = f"{guarded.host}/acme/cpu:{VARIANT}-1.0.0"
    options = ("--key", str(key.with_suffix(".pub")), "--registry-only")
    done = small.invoke("verify", "--reference", where, *options, DOCKER_CONFIG=str(tmp_path / "docker"))
    assert done.returncode == 0, done.stderr

    runner.env["SINCE"] = "HEAD"
    runner.run("release-changes")
    assert (tmp_path / "output").read_text().splitlines()[-1] == "variants=[]"
