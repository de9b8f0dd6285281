from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from drydock.attest import provenance
from drydock.build.build_job import Job, prepare_job
from drydock.config.project_choice import DRYDOCK
from drydock.core.commit import GitFailedError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.lock import image_record, lockfile
from drydock.model.locked import LockedSource


@pytest.fixture(scope="module")
def job() -> Job:
    return prepare_job(DRYDOCK, "cpu-vllm0.32")


def test_the_statement_names_the_digest_and_all_inputs(job: Job, tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text("{}")
    os.utime(tmp_path / "index.json", (1795219200, 1795219200))
    statement = provenance.make_statement(job, tmp_path, f"sha256:{'a' * 64}", "r.example/cpu", {})
    assert statement["subject"] == [{"name": "r.example/cpu", "digest": {"sha256": "a" * 64}}]
    assert statement["predicate"]["runDetails"]["metadata"]["finishedOn"] == "2026-11-21T00:00:00Z"
    dependencies = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    hashes = {item["digest"].get("sha256") for item in dependencies}
    pins = job.pins
    assert {wheel.sha256 for wheels in pins.layers.values() for wheel in wheels} <= hashes
    assert {deb.sha256 for deb in pins.base.packages} <= hashes  # type: ignore[union-attr] - Debian's
    uris = {item.get("uri") for item in dependencies}
    assert {
        "file:matrix.yaml",
        "file:templates/cpu/stacks/cpu.yaml",
        "file:images/cpu-vllm0.32/lock.json",
        "file:images/cpu-vllm0.32/Dockerfile",
    } <= uris


def test_source_trees_are_identified_by_their_commit(job: Job) -> None:
    source = LockedSource(name="vllm", repository="https://git.example/vllm", commit="c" * 40, source="x")
    pins = job.pins.model_copy(update={"sources": (source,)})
    changed = job.lock.model_copy(update={"platforms": {job.platform: pins}})
    dependencies = provenance.list_dependencies(replace(job, lock=changed), provenance.Checkout("", "", dirty=False))
    expected = {"uri": f"git+https://git.example/vllm@{'c' * 40}", "digest": {"gitCommit": "c" * 40}}
    assert expected in dependencies


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, "urn:drydock:builder:local"),
        ({"DRYDOCK_BUILDER_ID": "https://ci.example"}, "https://ci.example"),
        ({"GITHUB_WORKFLOW_REF": "o/r/.github/workflows/p.yml@refs/heads/main"},
         "https://github.com/o/r/.github/workflows/p.yml@refs/heads/main"),
        ({"CI_CONFIG_REF_URI": "gitlab.com/o/r//.gitlab-ci.yml@refs/heads/main"},
         "https://gitlab.com/o/r//.gitlab-ci.yml@refs/heads/main"),
    ],
)  # fmt: skip
def test_builder_from_environment(env: dict[str, str], expected: str) -> None:
    assert provenance.read_builder_id(env) == expected


def git(folder: Path, *commands: tuple[str, ...]) -> None:
    for command in commands:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(folder), *who, *command], check=True)


def test_credentials_of_a_remote_are_removed(tmp_path: Path) -> None:
    remote = ("remote", "add", "origin", "https://user:secret@git.example/r.git")
    git(tmp_path, ("init", "-q"), remote, ("commit", "-q", "--allow-empty", "-m", "x"))
    checkout = provenance.read_origin(Project(tmp_path))
    assert (checkout.repository, len(checkout.commit), checkout.dirty) == ("https://git.example/r.git", 40, False)


def test_a_record_is_no_change_but_another_pin_is(tmp_path: Path) -> None:
    path = lockfile.path_of_lock(Project(tmp_path), "cpu-vllm0.32")
    path.parent.mkdir(parents=True)
    lock = lockfile.read_lock(lockfile.path_of_lock(DRYDOCK, "cpu-vllm0.32"))
    lockfile.write_lock(path, lock)
    image_record.write_record(Project(tmp_path), lock.variant, image_record.ImageRecord())
    git(tmp_path, ("init", "-q"), ("add", "--all"), ("commit", "-q", "-m", "x"))
    recorded = {"linux/amd64": image_record.PlatformRecord()}
    image_record.write_record(Project(tmp_path), lock.variant, image_record.ImageRecord(platforms=recorded))
    assert not provenance.read_origin(Project(tmp_path)).dirty
    lockfile.write_lock(path, lock.model_copy(update={"source_date_epoch": 2}))
    assert provenance.read_origin(Project(tmp_path)).dirty


def test_outside_a_repository_there_is_no_commit(tmp_path: Path) -> None:
    assert tmp_path != ROOT
    assert provenance.read_origin(Project(tmp_path)).commit == ""


@pytest.mark.parametrize("word", ["rev-parse", "config", "diff"])
def test_git_that_fails_is_neither_no_commit_nor_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    git(project, ("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "x"))
    script = f'#!/bin/sh\n[ "$3" = {word} ] && {{ echo "fatal: cannot read" >&2; exit 128; }}\n'
    (tmp_path / "git").write_text(f'{script}exec {shutil.which("git")} "$@"\n')
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    with pytest.raises(GitFailedError, match=f"git {word}: cannot read"):
        provenance.read_origin(Project(project))


def test_a_repository_of_another_user_is_no_origin_without_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, ("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "x"))
    (tmp_path / "project").mkdir()
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")

    with pytest.raises(GitFailedError, match="dubious ownership") as error:
        provenance.read_origin(Project(tmp_path / "project"))

    assert error.value.hint.endswith(f"safe.directory {tmp_path}")
