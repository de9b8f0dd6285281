"""GitHub's workflow: the steps of a release, run as a script: what changed, build, verify, publish, sign."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from bench.small_project import VARIANT
from drydock.ci import publishing, workflow
from tests.support.git import git
from tests.support.servers import PASSWORD, Registry
from tests.support.small_image import Small


class Runner:
    """Runs the steps of a job as GitHub's runner does: each in a shell of its own, its environment made of strings."""

    def __init__(self, root: Path, env: dict[str, str]) -> None:
        self.root, self.env, self.log = root, env, ""
        self.jobs: dict[str, Any] = yaml.safe_load((root / workflow.PATHS["github"]).read_text())["jobs"]

    def run(self, job: str) -> None:
        """Run what a job's steps run."""
        for step in self.jobs[job]["steps"]:
            if "run" in step:
                result = subprocess.run(
                    ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
                    cwd=self.root,
                    env=self.env,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=900,
                )
                self.log += result.stdout + result.stderr
                assert result.returncode == 0, f"{step['run']}\n{result.stderr[-3000:]}"


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
        publishing.USER: "someone",
        publishing.PASSWORD: PASSWORD,
    })  # fmt: skip

    runner.run("release-changes")
    name, _, value = (tmp_path / "output").read_text().strip().partition("=")
    (row,) = json.loads(value)
    assert (name, row["variant"]) == ("variants", VARIANT)

    runner.env["VARIANT"] = row["variant"]
    runner.run("release")
    assert PASSWORD not in runner.log
    where = f"{guarded.host}/acme/cpu:{VARIANT}-1.0.0"
    options = ("--verify-key", str(key.with_suffix(".pub")), "--registry-only")
    result = small.invoke("image.verify", where, *options, DOCKER_CONFIG=str(tmp_path / "docker"))
    assert result.returncode == 0, result.stderr

    runner.env["SINCE"] = "HEAD"
    runner.run("release-changes")
    assert (tmp_path / "output").read_text().splitlines()[-1] == "variants=[]"
