"""What verification reports, and what it lets into the lock."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from drydock.build import verify
from drydock.build.job import Job, committed_digest, prepare
from drydock.core.errors import BuildError, NotReproducibleError
from drydock.model.locked import LockedImage
from drydock.oci.diff import LayoutDifference

DIGEST = "sha256:" + "a" * 64


def job_with(image: LockedImage | None) -> Job:
    job = prepare("cpu")
    pins = job.pins.model_copy(update={"image": image})
    return replace(job, lock=job.lock.model_copy(update={"platforms": {job.platform: pins}}))


def test_a_committed_digest_counts_for_its_own_inputs_only() -> None:
    image = LockedImage(digest=DIGEST, inputs_sha256="b" * 64, buildkit="v1", buildx="v1")
    job = job_with(image)

    assert committed_digest(job.lock, job.platform, "b" * 64) == DIGEST
    assert committed_digest(job.lock, job.platform, "c" * 64) is None
    assert committed_digest(job_with(None).lock, job.platform, "b" * 64) is None


@pytest.mark.parametrize("recording", [False, True])
def test_a_digest_that_did_not_reproduce_is_an_error_and_never_recorded(recording: bool) -> None:
    difference = LayoutDifference("layer 3", "opt/file", "mtime", "1", "2")
    verified = verify.Verified(
        reproducible=False,
        first=DIGEST,
        second="sha256:" + "b" * 64,
        committed=None,
        matches_committed=None,
        differences=(difference._asdict(),),
    )

    with pytest.raises(NotReproducibleError, match="layer 3: opt/file: mtime: 1 → 2"):
        verify.settle(prepare("cpu"), verified, recording=recording)


def test_two_equal_builds_that_differ_from_the_committed_digest_are_an_error() -> None:
    verified = verify.Verified(
        reproducible=True,
        first=DIGEST,
        second=DIGEST,
        committed="sha256:" + "c" * 64,
        matches_committed=False,
        differences=(),
    )

    with pytest.raises(NotReproducibleError, match="the lock has sha256:c"):
        verify.settle(prepare("cpu"), verified, recording=False)


@pytest.mark.attack(
    what="a source tree in the cache is changed before both builds of verify",
    before="both builds compiled the changed code and agreed",
    after="the second build unpacks source code into a folder of its own",
)
def test_the_second_build_unpacks_source_code_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    commit = "1" * 40
    for name in ("sources", "contexts", "bases", "store"):
        (tmp_path / "cache" / name / commit).mkdir(parents=True)
    seen: list[list[str]] = []

    def run(*_: object, env: Mapping[str, str], **__: object) -> subprocess.CompletedProcess[str]:
        cache = Path(env["DRYDOCK_CACHE"])
        seen.append(sorted(str(path.relative_to(cache)) for path in cache.rglob("*")))
        seen.append(sorted(path.name for path in (cache / "store").iterdir()))
        return subprocess.CompletedProcess([], 1)

    monkeypatch.setattr(verify.subprocess, "run", run)
    with pytest.raises(BuildError):
        verify._build_elsewhere(prepare("cpu"), tmp_path / "elsewhere", None)
    assert seen == [["store"], [commit]]


def test_a_difference_reads_as_one_line() -> None:
    said = verify.describe(LayoutDifference("layer 3", "opt/file", "mtime", "1", "2"))

    assert said == "layer 3: opt/file: mtime: 1 → 2"
