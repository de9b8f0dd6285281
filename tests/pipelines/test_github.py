"""GitHub's workflow: the steps of a release, run as a script: what changed, build, verify, publish, sign."""

from __future__ import annotations

import json
from pathlib import Path

from bench.small_project import VARIANT
from drydock.ci import publishing
from tests.pipelines.conftest import Runner
from tests.support.git import git
from tests.support.servers import PASSWORD, Registry
from tests.support.small_image import Small


def test_the_steps_build_verify_publish_and_sign_what_changed(
    small: Small, guarded: Registry, key: Path, tmp_path: Path
) -> None:
    runner = Runner("github", small.root, {
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
