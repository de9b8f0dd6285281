"""GitLab's pipelines, run by gitlab-ci-local: a release on main, then a merge request that edits the entrypoint."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.small_project import VARIANT
from drydock.ci import publishing
from drydock.core.paths import cache_home
from tests.pipelines.conftest import edit
from tests.support.git import git
from tests.support.needed_programs import require_program
from tests.support.servers import PASSWORD, Registry
from tests.support.small_image import Small

PACKAGES = ("node@22.23.3", "gitlab-ci-local@4.75.1")
IGNORED = (
    "CI_PIPELINE_SOURCE", "CI_COMMIT_REF_PROTECTED", "CI_COMMIT_BEFORE_SHA", "CI_MERGE_REQUEST_DIFF_BASE_SHA",
    "CI_REGISTRY_IMAGE",
)  # fmt: skip
"""Variables that a GitLab server sets, and this test instead."""


@pytest.fixture(scope="module")
def programs() -> Path:
    """Return the folder of programs with gitlab-ci-local, and the Node that it needs."""
    if not shutil.which("npm"):
        pytest.skip("no npm here, which installs gitlab-ci-local")
    require_program("rsync")
    folder = cache_home() / "tests" / "-".join(PACKAGES).replace("@", "-")
    if not (folder / "node_modules" / ".bin" / "gitlab-ci-local").exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "install", "--no-fund", "--no-audit", "--prefix", str(folder), *PACKAGES], check=True)
    return folder / "node_modules" / ".bin"


class Pipelines:
    """Runs pipelines of the small repository."""

    def __init__(self, small: Small, programs: Path, variables: dict[str, str]) -> None:
        self.small, self.variables = small, variables
        self.path = f"{programs}:{os.environ['PATH']}"

    def run(self, **variables: str) -> str:
        """Run a pipeline to its end, and return what it printed."""
        job_variables = {**self.variables, **variables, "DRYDOCK_CACHE": str(self.small.cache)}
        options = [f"--variable={name}={value}" for name, value in job_variables.items()]
        options += ["--no-color", f"--ignore-predefined-vars={','.join(IGNORED)}"]
        result = subprocess.run(
            ["gitlab-ci-local", *options, "--home", str(self.small.cache / "gitlab")],
            cwd=self.small.root,
            env={**self.small.environment, "PATH": self.path},
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
        )
        output = result.stdout + result.stderr
        assert result.returncode == 0, output[-4000:]
        assert PASSWORD not in output
        return output


def passed(output: str) -> set[str]:
    return set(re.findall(r"^ PASS +(?:\[.*?\] +)?([\w-]+)", output, re.MULTILINE))


def test_a_release_is_published_and_a_request_builds_what_it_changed(
    small: Small, guarded: Registry, key: Path, programs: Path, tmp_path: Path
) -> None:
    docker = str(tmp_path / "docker")
    pipelines = Pipelines(small, programs, {
        "CI_REGISTRY_IMAGE": f"{guarded.host}/acme",
        "DRYDOCK_FOUNDATIONS": f"{guarded.host}/acme/foundations",
        "DRYDOCK_COSIGN_KEY": str(key), "COSIGN_PASSWORD": "", "DOCKER_CONFIG": docker,
        publishing.USER: "someone", publishing.PASSWORD: PASSWORD,
    })  # fmt: skip
    protected = {"CI_PIPELINE_SOURCE": "push", "CI_COMMIT_REF_PROTECTED": "true"}

    before = git(small.root, "rev-parse", "HEAD~1")
    output = pipelines.run(**protected, CI_COMMIT_BEFORE_SHA=before)
    assert passed(output) == {"release-test", "release", "pages"}
    where = f"{guarded.host}/acme/cpu:{VARIANT}-edge"
    options = ("--verify-key", str(key.with_suffix(".pub")), "--registry-only")
    verified = small.invoke("image.verify", where, *options, DOCKER_CONFIG=docker)
    assert verified.returncode == 0, verified.stderr

    nothing = pipelines.run(**protected, CI_COMMIT_BEFORE_SHA=git(small.root, "rev-parse", "HEAD"))
    assert "ci publish" not in nothing

    foundations = small.cache / "foundations"
    small.invoke("verify", "--target", VARIANT, "--record").check_returncode()
    shutil.rmtree(foundations)  # as on a runner that has built nothing
    request = {"CI_PIPELINE_SOURCE": "merge_request_event", "CI_MERGE_REQUEST_DIFF_BASE_SHA": edit(small.root)}
    started = time.monotonic()
    output = pipelines.run(**request)
    assert passed(output) == {"test", "changes", "build"}
    assert f"{VARIANT}: inputs changed" in output
    assert f"{VARIANT}: pulled the foundation sha256:" in output
    assert "now building again on the same foundation" in output
    sys.stdout.write(f"{output}\na request that edits the entrypoint: {time.monotonic() - started:.0f} s\n")
