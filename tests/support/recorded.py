"""Records the digest of an image in a repository's lock, as `verify --record` does after two builds."""

from __future__ import annotations

from drydock.build.build_job import Job
from drydock.lock import lockfile
from drydock.model.locked import LockedImage


def record(job: Job, digest: str) -> None:
    """Write a digest into the lock as that of the job's inputs; remove it if the digest is empty."""
    image = LockedImage(digest=digest, inputs_sha256=job.inputs_sha256, buildkit="v1", buildx="v1") if digest else None
    pins = {**job.lock.platforms, job.platform: job.pins.model_copy(update={"image": image})}
    lockfile.write_lock(
        lockfile.path_of_lock(job.project, job.variant.id), job.lock.model_copy(update={"platforms": pins})
    )
