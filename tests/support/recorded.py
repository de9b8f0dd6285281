"""Records the digest of an image in a repository, as `verify --record` does after two builds."""

from __future__ import annotations

from drydock.build.build_job import Job
from drydock.lock import image_record
from drydock.lock.image_record import VerifiedImage


def record(job: Job, digest: str) -> None:
    """Write a digest into the record as that of the job's inputs; remove it if the digest is empty."""
    values = {"digest": digest, "inputs_sha256": job.inputs_sha256, "buildkit": "v1", "buildx": "v1"}
    record = job.record.model_copy(update={"verified": VerifiedImage(**values) if digest else None})
    image_record.write_platform_record(job.project, job.variant.id, job.platform, record)
