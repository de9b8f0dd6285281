from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from pathlib import Path

import pytest

from drydock.config.server_access import Access
from drydock.core.errors import RegistryError
from drydock.oci.manifest import Manifest, to_manifest
from drydock.oci.reference import parse_reference
from drydock.registry.blobs import Blobs
from drydock.registry.manifests import EMPTY, MANIFEST, Manifests, fallback_tag
from drydock.registry.registry_client import Client
from tests.support.servers import PASSWORD, FaultyProxy, Registry

QUICK = Access(pause=0.01, timeout=10)


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def a_blob(folder: Path, size: int, seed: int = 0) -> tuple[Path, str]:
    data = hashlib.shake_128(seed.to_bytes(4)).digest(size)
    path = folder / hashlib.sha256(data).hexdigest()
    path.write_bytes(data)
    return path, digest_of(data)


def blobs(host: str, folder: Path, repository: str = "some/image") -> Blobs:
    return Blobs(Client(parse_reference(f"{host}/{repository}"), QUICK), folder / "state")


def manifests(host: str, folder: Path, repository: str = "some/image") -> Manifests:
    return Manifests(Client(parse_reference(f"{host}/{repository}"), QUICK), folder / "state")


def image(made_blobs: Blobs, folder: Path, seed: int = 0) -> Manifest:
    """Push an image of one layer; return its manifest, which was not pushed."""
    descriptors = []
    for number, kind in enumerate(("config.v1+json", "layer.v1.tar")):
        path, digest = a_blob(folder, 100 + number, seed * 2 + number)
        made_blobs.push(path, digest)
        descriptors.append({"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest, "size": 100 + number})
    return to_manifest({"schemaVersion": 2, "mediaType": MANIFEST, "config": descriptors[0], "layers": descriptors[1:]})


def referrer(made_blobs: Blobs, folder: Path, subject: Manifest, text: str) -> Manifest:
    (folder / "empty").write_bytes(b"{}")
    made_blobs.push(folder / "empty", digest_of(b"{}"))
    empty = {"mediaType": EMPTY, "digest": digest_of(b"{}"), "size": 2}
    content = {"schemaVersion": 2, "mediaType": MANIFEST, "artifactType": "application/x-test", "config": empty}
    return to_manifest({**content, "layers": [empty], "subject": subject.descriptor(), "annotations": {"text": text}})


@pytest.mark.parametrize("size", [0, 1, 2, 1000, 5 << 20])
def test_a_blob_arrives_whole_and_once(registry: Registry, tmp_path: Path, size: int) -> None:
    path, digest = a_blob(tmp_path, size, seed=size)
    assert [blobs(registry.host, tmp_path).push(path, digest).how for _ in range(2)] == ["uploaded", "present"]
    assert b"".join(blobs(registry.host, tmp_path).pull(digest)) == path.read_bytes()


@pytest.mark.parametrize("size", [(1 << 20) + 1, 3 << 20, (3 << 20) + 5])
def test_a_large_blob_goes_in_chunks(
    registry: Registry, tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drydock.registry.blobs.CHUNK", 1 << 20)
    path, digest = a_blob(tmp_path, size, seed=7)
    counted: list[int] = []
    client = Client(parse_reference(f"{registry.host}/in/chunks"), QUICK)
    assert Blobs(client, tmp_path / "state", counted.append).push(path, digest).how == "uploaded"
    assert sum(counted) == size
    assert registry.blob_file(digest).read_bytes() == path.read_bytes()


def test_a_broken_off_upload_goes_on_where_it_was(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drydock.registry.blobs.CHUNK", 1 << 20)
    path, digest = a_blob(tmp_path, 4 << 20, seed=8)

    class Stopped(Exception):  # noqa: N818
        pass

    def stop_after(count: int) -> None:
        chunk_sizes.append(count)
        if sum(chunk_sizes) > 2 << 20:
            raise Stopped

    chunk_sizes: list[int] = []
    client = Client(parse_reference(f"{registry.host}/taken/up"), QUICK)
    with pytest.raises(Stopped):
        Blobs(client, tmp_path / "state", stop_after).push(path, digest)
    sent_again: list[int] = []
    Blobs(client, tmp_path / "state", sent_again.append).push(path, digest)
    assert registry.blob_file(digest).read_bytes() == path.read_bytes()
    assert sum(sent_again) == 4 << 20
    assert list((tmp_path / "state").rglob("*.json")) == []


def test_a_blob_of_another_repository_is_mounted(registry: Registry, tmp_path: Path) -> None:
    path, digest = a_blob(tmp_path, 1000, seed=9)
    blobs(registry.host, tmp_path, "mount/from").push(path, digest)
    assert blobs(registry.host, tmp_path, "mount/to").push(path, digest, "mount/from").how == "mounted"
    other_blob, absent = a_blob(tmp_path, 1000, seed=10)
    assert blobs(registry.host, tmp_path, "mount/to").push(other_blob, absent, "mount/from").how == "uploaded"


def test_manifests_by_digest_and_tag(registry: Registry, tmp_path: Path) -> None:
    mine = manifests(registry.host, tmp_path)
    manifest = image(blobs(registry.host, tmp_path), tmp_path)
    assert (mine.find(manifest.digest), mine.digest("v1")) == (None, None)
    mine.push(manifest)
    mine.push(manifest, "v1")
    stored_manifest = mine.find(manifest.digest)
    assert stored_manifest
    assert (stored_manifest.data, stored_manifest.media_type, mine.digest("v1")) == (
        manifest.data,
        MANIFEST,
        manifest.digest,
    )
    assert "v1" in mine.tags()
    assert manifests(registry.host, tmp_path, "no/such").tags() == ()


def test_a_manifest_without_its_blobs_is_refused_with_the_registrys_words(registry: Registry, tmp_path: Path) -> None:
    absent = {"mediaType": EMPTY, "digest": digest_of(b"absent"), "size": 6}
    manifest = to_manifest({"schemaVersion": 2, "mediaType": MANIFEST, "config": absent, "layers": []})
    with pytest.raises(RegistryError, match="MANIFEST_BLOB_UNKNOWN"):
        manifests(registry.host, tmp_path).push(manifest)


def test_referrers_are_listed_without_the_api(registry: Registry, tmp_path: Path) -> None:
    mine, my_blobs = (
        manifests(registry.host, tmp_path, "some/referred"),
        blobs(registry.host, tmp_path, "some/referred"),
    )
    subject = image(my_blobs, tmp_path, seed=3)
    mine.push(subject)
    first, second = (referrer(my_blobs, tmp_path, subject, text) for text in ("1", "2"))
    for manifest in (first, second, first):
        mine.refer(manifest)
    referrers = mine.referrers(subject.digest)
    assert {item["digest"] for item in referrers} == {first.digest, second.digest}
    assert {item["artifactType"] for item in referrers} == {"application/x-test"}
    assert fallback_tag(subject.digest) in mine.tags()


def test_many_referrers_at_once_are_all_listed(registry: Registry, tmp_path: Path) -> None:
    mine, my_blobs = manifests(registry.host, tmp_path, "some/busy"), blobs(registry.host, tmp_path, "some/busy")
    subject = image(my_blobs, tmp_path, seed=4)
    mine.push(subject)
    made_all = [referrer(my_blobs, tmp_path, subject, str(number)) for number in range(8)]
    threads = [threading.Thread(target=mine.refer, args=(manifest,)) for manifest in made_all]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {item["digest"] for item in mine.referrers(subject.digest)} == {item.digest for item in made_all}


# --- credentials ----------------------------------------------------------------------------------------------------


def configured(folder: Path, host: str, password: str) -> dict[str, str]:
    auth = base64.b64encode(f"someone:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))
    return {**os.environ, "DOCKER_CONFIG": str(folder)}


def test_dockers_own_credentials_are_used(guarded: Registry, tmp_path: Path) -> None:
    env = configured(tmp_path, guarded.host, PASSWORD)
    client = Client(parse_reference(f"{guarded.host}/some/image"), QUICK, env=env)
    path, digest = a_blob(tmp_path, 1000)
    assert Blobs(client, tmp_path / "state").push(path, digest).how == "uploaded"


# --- faults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_blobs_manifests_and_referrers_arrive_through_faults(
    registry: Registry, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drydock.registry.blobs.CHUNK", 1 << 16)
    proxy = FaultyProxy(registry.port, 0.35, seed)
    mine, my_blobs = manifests(proxy.host, tmp_path, f"faulty/{seed}"), blobs(proxy.host, tmp_path, f"faulty/{seed}")
    path, digest = a_blob(tmp_path, 300_000, seed=100 + seed)
    my_blobs.push(path, digest)
    subject = image(my_blobs, tmp_path, seed=50 + seed)
    mine.push(subject)
    mine.refer(referrer(my_blobs, tmp_path, subject, "1"))
    mine.push(subject, "v1")
    assert mine.digest("v1") == subject.digest
    assert b"".join(my_blobs.pull(digest)) == path.read_bytes()
    assert len(mine.referrers(subject.digest)) == 1
    proxy.close()
