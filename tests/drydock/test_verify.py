"""What verification reports, and what it lets into the lock."""

from __future__ import annotations

import pytest

from drydock import build, verify
from drydock.errors import NotReproducible
from drydock.model import LockedImage
from drydock.ocidiff import Difference

DIGEST = "sha256:" + "a" * 64


def job_with(image: LockedImage | None) -> build.Job:
    job = build.prepare("cpu")
    pins = job.lock.platforms[job.platform].model_copy(update={"image": image})
    return job.model_copy(update={"lock": job.lock.model_copy(update={"platforms": {job.platform: pins}})})


def test_a_committed_digest_counts_for_its_own_inputs_only() -> None:
    image = LockedImage(digest=DIGEST, inputs_sha256="b" * 64, buildkit="v1", buildx="v1")
    job = job_with(image)

    assert verify.committed_digest(job.lock, job.platform, "b" * 64) == DIGEST
    assert verify.committed_digest(job.lock, job.platform, "c" * 64) is None
    assert verify.committed_digest(job_with(None).lock, job.platform, "b" * 64) is None


def test_a_digest_that_did_not_reproduce_is_never_recorded() -> None:
    verified = verify.Verified(
        reproducible=False, first=DIGEST, second=DIGEST, committed=None, matches_committed=None, differences=()
    )

    with pytest.raises(NotReproducible, match=r"cpu-vllm0\.32: the two builds differ"):
        verify.record(build.prepare("cpu"), verified)


def test_a_difference_reads_as_one_line() -> None:
    said = verify.describe(Difference("layer 3", "opt/file", "mtime", "1", "2"))

    assert said == "layer 3: opt/file: mtime: 1 → 2"
