"""Images of ours under names that they were not published under."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from drydock.attest import cosign, documents
from drydock.attest.cosign import Trust
from drydock.core.errors import UntrustedError
from drydock.core.project import Project
from drydock.examine import verify_published
from drydock.oci.manifest import to_manifest
from drydock.oci.reference import parse_reference
from drydock.publish import bindings
from drydock.publish.bindings import DAY
from drydock.registry.manifests import INDEX
from tests.support.local_registry import VARIANT, publish
from tests.support.signed_image import Signed


def test_a_channel_is_what_was_published_to_it(signed: Signed, tmp_path: Path, key: Path) -> None:
    for tag in ("stable", f"{VARIANT}-stable"):
        verification = signed.verify(f"{signed.where}:{tag}")
        assert f"tag {tag} was published with this digest" in verification.shown
        assert f"repository {signed.where} is where it was published" in verification.shown
        assert f"age: tag {tag} never expires; --max-age DAYS limits its age" in verification.not_shown
    later = signed.next_release(tmp_path, key)
    assert signed.verify(f"{signed.where}:stable").digest == later.digest


def test_a_tag_that_was_never_published_is_refused(signed: Signed) -> None:
    signed.move("latest", signed.done.digest)
    for reference in (f"{signed.where}:latest", signed.where):
        assert "no tag.json binds the tag latest" in signed.refused(reference)
    with pytest.raises(UntrustedError, match=r"no tag\.json binds the tag latest"):
        verify_published.verify_reference(
            Project(signed.local.root), signed.where, verify_published.VerifyOptions(rebuild=False)
        )
    assert signed.verify(f"{signed.where}@{signed.done.digest}").digest == signed.done.digest


def test_a_copy_in_another_repository_is_refused(signed: Signed) -> None:
    repositories = signed.registry.folder / "data" / "docker" / "registry" / "v2" / "repositories"
    shutil.copytree(repositories / "published" / "cpu", repositories / "elsewhere" / "cpu")
    copy = f"{signed.registry.host}/elsewhere/cpu"
    for name in (f":{VARIANT}-1.0.0", ":stable", f"@{signed.done.digest}"):
        assert f"verify with --mirror-of {signed.where}" in signed.refused(f"{copy}{name}")
        options = verify_published.VerifyOptions(Trust(key=signed.public), rebuild=False, mirror_of=signed.where)
        verification = verify_published.verify_reference(Project(signed.local.root), f"{copy}{name}", options)
        assert verification.digest == signed.done.digest


def test_a_channel_that_was_moved_back_is_refused(
    signed: Signed, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = signed.next_release(tmp_path, key)
    channel = f"{signed.where}:stable"
    assert signed.verify(channel).digest == later.digest
    signed.move("stable", signed.done.digest)
    assert "the channel was moved back" in signed.refused(channel)
    assert signed.verify(f"{signed.where}@{signed.done.digest}").digest == signed.done.digest
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "a machine that has verified nothing"))
    assert signed.verify(channel).digest == signed.done.digest


def test_a_frozen_channel_and_an_expired_release_are_refused(
    signed: Signed, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed.next_release(tmp_path, key, expires=30)
    options = verify_published.VerifyOptions(Trust(key=signed.public), rebuild=False, max_age=10)
    channel, release = f"{signed.where}:stable", f"{signed.where}:{VARIANT}-1.0.1"
    assert not verify_published.verify_reference(Project(signed.local.root), channel, options).not_shown[1:]
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 11 * DAY)
    with pytest.raises(UntrustedError, match="more than 10 days ago"):
        verify_published.verify_reference(Project(signed.local.root), channel, options)
    signed.verify(channel)
    signed.verify(release)
    monkeypatch.setattr(time, "time", lambda: real() + 31 * DAY)
    for reference in (channel, release):
        assert "expired on" in signed.refused(reference)
    signed.verify()


def test_a_tag_document_of_somebody_else_is_refused(signed: Signed) -> None:
    manifest = signed.repository.manifests.find(signed.done.digest)
    assert manifest
    subject = bindings.Subject(signed.where, VARIANT, signed.done.digest, signed.done.platforms)
    forged = bindings.bind_tag(subject, "latest", bindings.Terms(), {}).attached()
    artifact = signed.repository.refer(manifest, forged.media_type, forged.data, forged.name)
    signed.move("latest", signed.done.digest)
    error_text = signed.refused(f"{signed.where}:latest")
    assert artifact.digest in error_text
    assert "no valid signature" in error_text


def test_what_an_earlier_version_published_is_still_verified_by_its_release_tag(signed: Signed, key: Path) -> None:
    signed.rewrite_referrers(lambda item: item.get("artifactType") != documents.TAG)
    manifest = signed.repository.manifests.find(signed.done.digest)
    assert manifest
    fields = {"schema": 1, "image": signed.done.digest, "repository": "published/cpu", "tag": f"{VARIANT}-1.0.0"}
    artifact = signed.repository.refer(manifest, documents.RELEASE, json.dumps(fields).encode(), "release.json")
    cosign.sign_digests([parse_reference(signed.where).at(artifact.digest)], cosign.Signer(str(key)))
    assert signed.verify().digest == signed.done.digest
    assert "published before channels were signed" in signed.refused(f"{signed.where}:stable")
    publish(signed.local.root, signed.where.rpartition("/")[0], channel="stable", sign_key=str(key))
    assert signed.verify(f"{signed.where}:stable").digest == signed.done.digest


def test_an_index_with_two_images_for_a_platform_is_refused(signed: Signed, tmp_path: Path, key: Path) -> None:
    other_release = signed.next_release(tmp_path, key)
    first, second = (signed.repository.manifests.find(digest) for digest in (other_release.digest, signed.done.digest))
    assert first
    assert second
    amd64 = {"os": "linux", "architecture": "amd64"}

    def pushed(*platforms: dict[str, str]) -> str:
        entries = [
            {**item.descriptor(), "platform": platform}
            for item, platform in zip((first, second), platforms, strict=True)
        ]
        index = to_manifest({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})
        signed.repository.manifests.push(index, "index")
        return f"{signed.where}@{index.digest}"

    options = verify_published.VerifyOptions(rebuild=False)
    for platforms, problem in (
        ((amd64, amd64), "or two for one"),
        (
            (amd64 | {"architecture": "arm64"}, amd64),
            "the index says linux/arm64, the image is for lin",
        ),
        ((dict.fromkeys(amd64, "unknown"), amd64), "the index has entries for no platform"),
    ):
        with pytest.raises(UntrustedError, match=problem):
            verify_published.verify_reference(Project(signed.local.root), pushed(*platforms), options)
