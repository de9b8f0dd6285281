"""Foundations in a real registry, signed by the real cosign: pushed by one machine, pulled by another, deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from drydock.attest.cosign import Signer
from drydock.build.build_job import Job
from drydock.config.server_access import Access
from drydock.core.errors import InputError, RegistryError, UntrustedError
from drydock.lock.image_record import write_platform_record
from drydock.model.shared_options import TrustOptions
from drydock.oci import image_layout
from drydock.publish import foundation_use, foundations
from drydock.publish.push import push_blobs, read_layout
from drydock.publish.repository import Repository
from drydock.registry.manifests import fallback_tag
from tests.support.foundations import record, write
from tests.support.local_registry import PLATFORMS, LocalRepository
from tests.support.servers import Registry

PLATFORM = PLATFORMS[0]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A row without recorded digests, whose foundation is kept."""
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    local = LocalRepository(tmp_path, platforms=(PLATFORM,))
    local.forget(PLATFORM)
    foundation_job = local.job(PLATFORM)
    write(foundation_job.foundation)
    return foundation_job


def push(job: Job, registry: Registry, key: Path | None = None) -> foundations.PushedFoundation:
    signer = Signer(str(key)) if key else None
    (pushed,) = foundations.push_foundations(
        job.project, [job.variant], f"{registry.host}/own/f", signer, insecure=False
    )
    return pushed


def pulled(job: Job, registry: Registry, key: Path | None = None) -> dict[str, bytes] | None:
    """Return what another machine, which keeps nothing, gets; None for nothing."""
    shutil.rmtree(job.foundation.parent, ignore_errors=True)
    trust = TrustOptions(verify_key=str(key.with_suffix(".pub")) if key else "")
    pull = foundations.make_registry_pull(f"{registry.host}/own/f", trust)
    assert pull
    return content(job.foundation) if pull(job) else None


def content(layout: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in layout.rglob("*") if path.is_file()}


def committed(job: Job) -> Job:
    """Write the digest of the kept foundation into the record."""
    recorded_job = record(job, image_layout.read_digest(job.foundation))
    write_platform_record(job.project, job.variant.id, job.platform, recorded_job.record)
    return recorded_job


def test_one_machine_pushes_and_another_pulls(job: Job, registry: Registry) -> None:
    job, before = committed(job), content(job.foundation)
    first, second = push(job, registry), push(job, registry)
    assert first.foundation == second.foundation
    assert first.bytes_sent > 0
    assert second.bytes_sent == 0
    assert first.foundation.endswith(f"own/f:{job.foundation_key}@{image_layout.read_digest(job.foundation)}")
    assert pulled(job, registry) == before


def test_a_signature_counts_for_one_key_only(
    job: Job, registry: Registry, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(job.foundation)
    pushed = push(job, registry, key)
    assert pushed.signed
    assert pulled(job, registry) is None
    assert pulled(job, registry, key) == before

    newer = job.lock.model_copy(update={"source_date_epoch": job.lock.source_date_epoch + 1})
    other_job = Job(job.variant, newer, PLATFORM, job.project)
    repository = Repository(foundations.parse_foundations_address(f"{registry.host}/own/f"), Access())
    manifest = repository.manifests.find(job.foundation_key)
    assert manifest
    repository.manifests.push(manifest, other_job.foundation_key)  # as somebody with the registry's password can
    assert pulled(other_job, registry, key) is None
    assert "no valid signature" in capsys.readouterr().err


def test_only_what_the_record_says_is_pushed(job: Job, registry: Registry) -> None:
    job = committed(job)
    shutil.rmtree(job.foundation)
    write(job.foundation, config=lambda config: config.update(author="somebody"))
    with pytest.raises(UntrustedError, match="the kept foundation is sha256"):
        push(job, registry)
    next(path for path in (job.foundation / "blobs" / "sha256").iterdir()).write_bytes(b"damaged")
    with pytest.raises(RegistryError, match=r"changed on the disk|damaged"):
        push(job, registry)
    shutil.rmtree(job.foundation)
    with pytest.raises(InputError, match=r"no foundation is kept here of cpu-vllm0\.32"):
        push(job, registry)


def test_what_no_lock_needs_is_deleted(job: Job, registry: Registry, key: Path) -> None:
    where, older = f"{registry.host}/own/pruned", "1" * 64
    foundations.push_foundations(job.project, [job.variant], where, Signer(str(key)), insecure=False)
    repository, _ = foundation_use.list_shared_foundations(job.project, where, "", insecure=False)
    needed_manifest = repository.manifests.find(job.foundation_key)
    other_digest = write(job.foundation.parent / "other", config=lambda config: config.update(author="somebody"))
    layout = read_layout(job, job.foundation.parent / "other")
    push_blobs(repository, [layout])
    repository.manifests.push(layout.manifest, older)
    assert needed_manifest
    repository.manifests.push(needed_manifest, f"{fallback_tag(other_digest)}.sig")  # as another user can

    def keys() -> set[str]:
        return {
            foundation.key
            for foundation in foundation_use.list_shared_foundations(job.project, where, "", insecure=False)[1]
        }

    assert keys() == {job.foundation_key, older}
    repository, shared_foundations = foundation_use.list_shared_foundations(job.project, where, "", insecure=False)
    assert [
        foundation.digest for foundation in foundation_use.prune_foundations(repository, shared_foundations, yes=True)
    ] == [other_digest]
    assert repository.manifests.find(other_digest) is None
    assert repository.manifests.find(job.foundation_key) == needed_manifest
    assert keys() == {job.foundation_key}


def test_a_key_that_does_not_open_is_an_error_before_anything_is_pushed(
    job: Job, registry: Registry, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del key  # it sees that there is a cosign
    monkeypatch.setattr(foundations, "push_blobs", lambda *_: pytest.fail("pushed"))
    with pytest.raises(InputError, match="no such file"):
        push(job, registry, tmp_path / "no.key")
