"""The CPU image is the same digest each time, from the store alone, with the network cut."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from drydock.build import build
from drydock.build.build_job import Job
from drydock.core.files import format_json
from drydock.core.paths import ROOT
from drydock.oci.image_layout import read_digest

CUT_OFF = ["unshare", "--net"]
"""A network namespace without any interface; the engine is reached through its Unix socket all the same."""

pytestmark = pytest.mark.proves("cpu-vllm0.32", "packages")


def invoke(*arguments: str, prefix: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [*(prefix or []), sys.executable, "-m", "invoke", "--search-root", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_a_second_build_does_no_work(built: build.Built) -> None:
    start = time.monotonic()
    process = invoke("build", "--target", "cpu", "--json")
    seconds = time.monotonic() - start
    result = json.loads(process.stdout)

    assert {"variant", "image", "digest", "seconds"} <= result.keys()
    assert result["digest"] == built.digest
    assert not {"fetch", "build", "load"} & result["phases"].keys()
    assert seconds < 10


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root can cut the network off")
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_build_from_nothing_with_the_network_cut_gives_the_same_digest(built: build.Built) -> None:
    process = invoke("verify", "--target", "cpu", "--json", prefix=CUT_OFF)
    result = json.loads(process.stdout or "{}")

    assert process.returncode == 0, process.stderr[-3000:]
    assert result["reproducible"] is True
    assert result["first"] == result["second"] == built.digest
    assert result["differences"] == []
    assert result["committed"] in {None, built.digest}


def bake(*options: str, plan: Path) -> subprocess.CompletedProcess[str]:
    command = ["docker", "buildx", "bake", "--file", str(plan), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_stock_buildx_runs_the_plan_to_the_same_digest(job: Job, built: build.Built, tmp_path: Path) -> None:
    plan = tmp_path / "docker-bake.json"
    plan.write_text(format_json(build.bake_file(job, build.fetch_contexts(job), tmp_path / "out")))
    result = bake("--allow=fs=/", plan=plan)

    assert result.returncode == 0, result.stderr[-2000:]
    assert read_digest(tmp_path / "out") == built.digest


def test_the_dockerfile_passes_buildkits_own_checks(job: Job, tmp_path: Path) -> None:
    plan = tmp_path / "docker-bake.json"
    plan.write_text(format_json(build.bake_file(job, build.fetch_contexts(job), tmp_path / "out")))
    result = bake("--call", "check", "--allow=fs=/", plan=plan)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "no warnings found" in (result.stdout + result.stderr).lower()
