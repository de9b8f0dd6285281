"""Rows that are built at once by real BuildKits are those that are built one by one, and no row stops another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from bench.second_buildkit import remote_builder
from bench.small_project import VARIANT
from drydock.build import build
from drydock.build.build_job import Job
from drydock.core.errors import BuildError
from drydock.engine.connection import inspect_images
from drydock.engine.daemon import wait_for
from tests.support.cut_off import skip_without_second_engine
from tests.support.small_image import Small, stub_vllm

OTHER, BROKEN = "other-stand-in", "broken-stand-in"
ROWS = f"{VARIANT},{OTHER}"


@pytest.fixture(scope="module")
def small(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    build.fetch_contexts(job)  # its base is the real one
    project = Small(tmp_path_factory.mktemp("many"), job.lock)
    project.add_row(OTHER, stub_vllm() | {"vllm/other.py": f"A = {time.time()}\n"})
    project.add_row(BROKEN, stub_vllm() | {"vllm/envs.py": "environment_variables = {\n"})
    yield project
    client = docker.from_env()
    for row in (VARIANT, OTHER, BROKEN):
        for image in inspect_images(client, f"drydock/{row}"):
            client.images.remove(image["Id"], force=True)


def read_rows(result: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """Return what `build --json` says of each row; it says so of rows that failed too."""
    assert result.stdout, f"exit code {result.returncode}: {result.stderr[-3000:]}"
    return {row["variant"]: row for row in json.loads(result.stdout)["rows"]}


@pytest.fixture(scope="module")
def digests(small: Small) -> dict[str, str]:
    """Build three rows at once, of which one fails; return the digests of the others."""
    result = small.invoke("build", "--target", f"{BROKEN},{ROWS}", "--offline", "--json")
    row_results = read_rows(result)

    assert result.returncode == BuildError.code, result.stderr[-3000:]
    assert {name: row["state"] for name, row in row_results.items()} == {
        BROKEN: "failed",
        VARIANT: "built",
        OTHER: "built",
    }
    assert "exit code: 1" in row_results[BROKEN]["why"]
    assert small.leftovers() == []
    return {name: row["digest"] for name, row in row_results.items() if row["digest"]}


def test_rows_that_were_built_at_once_are_those_that_are_built_alone(small: Small, digests: dict[str, str]) -> None:
    again = small.invoke("build", "--target", VARIANT, "--target", OTHER, "--offline")
    assert again.returncode == 0, again.stderr[-3000:]
    assert [line.split()[2:4] for line in again.stdout.splitlines()[1:]] == [
        ["image", digests[VARIANT]],
        ["image", digests[OTHER]],
    ]
    assert small.build()["digest"] == digests[VARIANT]


def test_two_buildkits_share_the_rows_and_make_the_same_images(
    small: Small, digests: dict[str, str], tmp_path: Path
) -> None:
    skip_without_second_engine()
    with remote_builder("far", tmp_path) as (name, engine, env):
        words = ["build", "--target", ROWS, "--builder", f"default,{name}", "--no-cache", "--offline", "--json"]
        result = small.invoke(*words, BUILDX_CONFIG=env["BUILDX_CONFIG"])
        disk_usage = engine.docker("buildx", "du")

    assert result.returncode == 0, result.stderr[-3000:]
    assert {row: of["digest"] for row, of in read_rows(result).items()} == digests
    assert "MB" in disk_usage.splitlines()[-1], disk_usage


def test_ctrl_c_leaves_nothing_half_made_of_any_row(small: Small, digests: dict[str, str]) -> None:
    process = small.start("invoke", "build", "--target", ROWS, "--no-cache", "--offline")
    layouts = small.cache / "foundations"
    assert wait_for(lambda: len([*layouts.glob("*/*/.*")]) == 2, 60)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)

    assert process.returncode == 130, stderr[-3000:]
    assert "Traceback" not in stderr
    assert [*small.cache.glob("*/*/*/.*")] == []
    result = small.invoke("build", "--target", ROWS, "--offline", "--json")
    assert {row: of["digest"] for row, of in read_rows(result).items()} == digests
