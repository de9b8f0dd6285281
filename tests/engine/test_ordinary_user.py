"""An ordinary user of group docker, without root's rights, goes from a matrix to a published image that runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from bench.small_project import VARIANT
from drydock.build import build
from drydock.build.build_job import Job
from drydock.core.paths import cache_home
from drydock.core.project import Project
from drydock.development.ordinary_user import OrdinaryUser, ordinary_user
from drydock.lock import image_record
from tests.support.servers import Registry
from tests.support.small_image import Small

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become another user; as an ordinary user, all tests show this"
)


@pytest.fixture
def user() -> Iterator[OrdinaryUser]:
    with ordinary_user() as account:
        yield account


@pytest.fixture
def checkout(user: OrdinaryUser, job: Job) -> Path:
    """The small image's repository in the user's home, and in its cache what the build of it needs."""
    build.fetch_contexts(job)  # the small image's base is the real one
    small = Small(user.home / "small", job.lock)
    for shared in ("store", "bases"):
        user.take_copy(cache_home() / shared, user.home / "cache" / shared)
    user.give_folder(user.home / "cache", files=False)
    user.give_folder(small.root)
    return small.root


def test_an_ordinary_user_builds_verifies_bundles_publishes_and_runs(
    user: OrdinaryUser, checkout: Path, registry: Registry
) -> None:
    def invoke(task: str, *words: str) -> str:
        command = (str(user.python), "-m", "invoke", task, "--target", VARIANT, *words)
        result = user.run(command, checkout, capture_output=True)
        assert result.returncode == 0, result.stderr[-3000:]
        return str(result.stdout)

    build_result: dict[str, Any] = json.loads(invoke("build", "--json"))
    try:
        assert json.loads(invoke("verify", "--record", "--json"))["reproducible"]
        record = image_record.read_platform_record(Project(checkout), VARIANT, build_result["platform"])
        assert record.find_verified_digest(build_result["inputs_sha256"]) == build_result["digest"]
        bundle = user.home / "bundle.tar"
        invoke("bundle.create", "--output", str(bundle))
        assert bundle.stat().st_uid == user.home.stat().st_uid
        published = json.loads(invoke("publish", "--registry", registry.host, "--json"))
        assert build_result["digest"] in json.dumps(published)
        assert "vllm" in invoke("run", "--", "version")
    finally:
        for tag in (build_result["image"], f"{build_result['image'].rpartition(':')[0]}:latest"):
            docker.from_env().images.remove(tag)
