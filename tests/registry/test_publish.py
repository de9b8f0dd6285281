from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from drydock.attest import cosign, documents
from drydock.config.server_access import Access
from drydock.core.errors import InputError, RegistryError, TagError
from drydock.core.project import Project
from drydock.oci.reference import parse_reference
from drydock.publish import bindings, push
from drydock.publish.push import Published, list_built_layouts
from drydock.publish.repository import Repository
from drydock.registry import registry_client
from drydock.registry.manifests import INDEX
from tests.support.local_registry import VARIANT, LocalRepository, publish
from tests.support.servers import Registry
from tests.support.small_disk import small_disk

QUICK = Access(pause=0.01, timeout=10)


def repository(registry: Registry, path: str, state: Path) -> Repository:
    return Repository(parse_reference(f"{registry.host}/{path}"), QUICK, state=state)


def test_blobs_then_manifests_then_tags(registry: Registry, local: LocalRepository, tmp_path: Path) -> None:
    publication = publish(local.root, f"{registry.host}/first", release="1.0.0", channel="stable")
    there = repository(registry, "first/cpu", tmp_path).manifests
    assert set(publication.platforms) == {"linux/amd64", "linux/arm64"}
    assert {tag: there.digest(tag) for tag in (f"{VARIANT}-1.0.0", f"{VARIANT}-stable", "stable")} == dict.fromkeys(
        (f"{VARIANT}-1.0.0", f"{VARIANT}-stable", "stable"), publication.digest
    )
    index = there.find(publication.digest)
    assert index
    assert index.media_type == INDEX
    assert {item["platform"]["architecture"]: item["digest"] for item in index.content["manifests"]} == {
        "amd64": publication.platforms["linux/amd64"],
        "arm64": publication.platforms["linux/arm64"],
    }
    assert all(there.find(digest) for digest in publication.platforms.values())


def test_a_second_time_nothing_travels_and_nothing_moves(registry: Registry, local: LocalRepository) -> None:
    options = {"registry": f"{registry.host}/second", "release": "1.0.0"}
    first, again = (publish(local.root, **options) for _ in range(2))
    assert first.bytes_sent > 0
    assert (again.bytes_sent, again.blobs["uploaded"], again.digest) == (0, 0, first.digest)
    assert [tag.moves for tag in again.tags] == [False]


def test_what_another_repository_holds_is_mounted(registry: Registry, local: LocalRepository) -> None:
    publish(local.root, f"{registry.host}/mounts/a")
    publication = publish(local.root, f"{registry.host}/mounts/b")
    assert (publication.bytes_sent, publication.blobs["uploaded"]) == (0, 0)
    assert publication.blobs["mounted"] > 0


def test_a_dry_run_changes_nothing(registry: Registry, local: LocalRepository, tmp_path: Path) -> None:
    options = {"registry": f"{registry.host}/dry", "release": "1.0.0", "dry_run": True}
    publication = publish(local.root, **options)
    assert (publication.dry_run, publication.blobs["present"], publication.bytes_sent > 0) == (True, 0, True)
    assert repository(registry, "dry/cpu", tmp_path).manifests.tags() == ()


def test_a_release_never_moves_and_a_channel_does(registry: Registry, local: LocalRepository, tmp_path: Path) -> None:
    where = f"{registry.host}/moving"
    first = publish(local.root, where, release="1.0.0", channel="edge")
    other_repository = LocalRepository(tmp_path / "other", salt="other")
    os.environ["DRYDOCK_CACHE"] = str(other_repository.cache)
    with pytest.raises(TagError, match=f"already names {first.digest}") as caught:
        publish(other_repository.root, where, release="1.0.0", channel="edge")
    assert caught.value.code == 12
    there = repository(registry, "moving/cpu", tmp_path).manifests
    assert there.digest("edge") == first.digest
    second = publish(other_repository.root, where, release="1.0.1", channel="edge")
    assert {tag.tag: tag.was for tag in second.tags} == {
        f"{VARIANT}-1.0.1": None,
        f"{VARIANT}-edge": first.digest,
        "edge": first.digest,
    }
    assert there.digest("edge") == second.digest
    assert there.digest(f"{VARIANT}-1.0.0") == first.digest


def channel_of(registry: Registry, state: Path, tag: str = "stable") -> bindings.Binding:
    """Return what the newest document about a channel says."""
    there = repository(registry, "channels/cpu", state)
    digest = there.manifests.digest(tag)
    assert digest
    tag_documents = (
        bindings.parse_binding(item.data, item.manifest) for item in there.documents(digest, (documents.TAG,))
    )
    return max((item for item in tag_documents if item.tag == tag), key=lambda item: item.counter)


def test_a_channel_counts_on_from_what_our_key_signed(
    registry: Registry, local: LocalRepository, key: Path, tmp_path: Path
) -> None:
    where = f"{registry.host}/channels"
    options = {"registry": where, "release": "1.4.0", "channel": "stable", "sign_key": str(key)}
    first = publish(local.root, **options)
    mine = channel_of(registry, tmp_path)
    assert (mine.repository, mine.image, dict(mine.platforms)) == (f"{where}/cpu", first.digest, first.platforms)
    assert (mine.release, mine.variant) == ("1.4.0", VARIANT)
    there = repository(registry, "channels/cpu", tmp_path)
    manifest = there.manifests.find(first.digest)
    assert manifest
    assert mine.channel
    planted = mine.model_copy(
        update={"release": "9.0.0", "channel": mine.channel.model_copy(update={"counter": mine.counter + 600})}
    ).attached()
    for data in (planted.data, b"{}"):
        there.refer(manifest, planted.media_type, data, planted.name)
    publish(local.root, **{**options, "release": "1.4.0"})
    signed = cosign.signed_by(
        [there.where.at(item.manifest) for item in there.documents(first.digest, (documents.TAG,))],
        cosign.Signer(str(key)),
    )
    tag_documents = [
        bindings.parse_binding(item.data, "here")
        for item in there.documents(first.digest, (documents.TAG,))
        if there.where.at(item.manifest) in signed
    ]
    counters = [item.counter for item in tag_documents if item.tag == "stable"]
    assert len(set(counters)) == 2
    assert mine.counter < max(counters) < mine.counter + 600


def test_an_older_release_does_not_take_a_channel_back(
    registry: Registry, local: LocalRepository, key: Path, tmp_path: Path
) -> None:
    options = {
        "registry": f"{registry.host}/channels/old",
        "release": "1.4.0",
        "channel": "stable",
        "sign_key": str(key),
    }
    publish(local.root, **options)
    other_repository = LocalRepository(tmp_path / "other", salt="older")
    os.environ["DRYDOCK_CACHE"] = str(other_repository.cache)
    older = {**options, "release": "1.3.1"}
    with pytest.raises(TagError, match=r"names release 1\.4\.0, cannot move it back to 1\.3\.1"):
        publish(other_repository.root, **older)
    assert repository(registry, "channels/old/cpu", tmp_path).manifests.digest(f"{VARIANT}-1.3.1") is None
    publish(other_repository.root, **{**older, "channel": ""})
    back = publish(other_repository.root, **{**older, "allow_rollback": True})
    assert repository(registry, "channels/old/cpu", tmp_path).manifests.digest("stable") == back.digest


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_key_is_opened_before_anything_is_pushed(
    registry: Registry,
    local: LocalRepository,
    key: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    dry_run: bool,
) -> None:
    del key  # it sees that there is a cosign
    monkeypatch.setattr(push, "list_built_layouts", lambda *_: pytest.fail("read"))
    options = {"registry": f"{registry.host}/late", "release": "1.0.0", "dry_run": dry_run}
    for changes, problem in (
        ({"sign_key": str(tmp_path / "no.key")}, r"no\.key: .*no such file"),
        ({"keyless": True, "signing_config": str(tmp_path / "no.json")}, r"--signing-config .*no\.json: no such file"),
        ({"release": "1"}, "--release 1: invalid version"),
        ({"registry": f"{registry.host}/late:tag"}, "--registry .*: expected host and path|invalid repository"),
    ):
        with pytest.raises(InputError, match=problem):
            publish(local.root, **{**options, **changes})
    assert repository(registry, "late/cpu", tmp_path).manifests.tags() == ()


def test_what_was_not_built_is_not_published(registry: Registry, local: LocalRepository, tmp_path: Path) -> None:
    os.environ["DRYDOCK_CACHE"] = str(tmp_path / "empty")
    with pytest.raises(InputError, match="no image was built"):
        publish(local.root, registry.host)


def test_a_changed_manifest_is_not_published(local: LocalRepository) -> None:
    layout = local.layout("linux/amd64")
    digest = json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]
    with (layout / "blobs" / digest.replace(":", "/")).open("ab") as file:
        file.write(b" ")
    with pytest.raises(RegistryError, match="changed on the disk"):
        list_built_layouts(Project(local.root), local.variant)


def test_a_changed_layer_is_not_published_and_no_tag_is_set(
    registry: Registry, local: LocalRepository, tmp_path: Path
) -> None:
    layer = max((local.layout("linux/arm64") / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    layer.write_bytes(b"x" + layer.read_bytes()[1:])
    with pytest.raises(RegistryError, match="changed on the disk"):
        publish(local.root, f"{registry.host}/damaged")
    assert repository(registry, "damaged/cpu", tmp_path).manifests.tags() == ()


def test_expired_credentials_are_said_before_anything_is_done(
    guarded: Registry, local: LocalRepository, tmp_path: Path
) -> None:
    auth = base64.b64encode(b"someone:expired-secret").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {guarded.host: {"auth": auth}}}))
    process = verb(local, f"{guarded.host}/mine", DOCKER_CONFIG=str(tmp_path))
    stdout, stderr = process.communicate(timeout=120)
    assert (process.returncode, stdout) == (11, "")
    assert f"docker login {guarded.host}" in stderr
    assert "expired-secret" not in stderr
    assert auth not in stderr


# --- no space left --------------------------------------------------------------------------------------------------


def fill(folder: Path) -> None:
    """Leave no byte and no name for another file."""
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass


def test_a_full_disk_here_is_said_and_what_was_built_stays(
    registry: Registry, local: LocalRepository, tmp_path: Path
) -> None:
    before = layouts(local.cache)
    with small_disk(tmp_path / "disk", "8m") as disk:
        shutil.copytree(local.cache, disk / "cache")
        fill(disk)
        where, changes = f"{registry.host}/full", {"DRYDOCK_CACHE": str(disk / "cache"), "TMPDIR": str(disk)}
        process = verb(local, where, "--release", "1.0.0", **changes)
        stdout, stderr = process.communicate(timeout=120)
        assert (process.returncode, stdout) == (8, ""), stderr[-2000:]
        assert "no space left" in stderr
        assert "Traceback" not in stderr
        assert layouts(disk / "cache") == before
        there = repository(registry, "full/cpu", tmp_path / "state").manifests
        assert there.tags() == ()
        (disk / "filler").unlink()
        assert finished(verb(local, where, "--release", "1.0.0", **changes)).tags[0].was is None


def layouts(cache: Path) -> dict[str, str]:
    """Return the checksums of what was built."""
    files = (path for path in (cache / "images").rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(cache)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_full_disk_of_the_registry_is_said_and_no_tag_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = LocalRepository(tmp_path, platforms=("linux/amd64",), salt="full", size=8 << 20)
    with small_disk(tmp_path / "disk", "4m") as disk:
        full = Registry(disk / "registry")
        full.start()
        try:
            monkeypatch.setattr(registry_client, "ATTEMPTS", 2)
            monkeypatch.setenv("DRYDOCK_CACHE", str(local.cache))
            with pytest.raises(RegistryError, match="the registry answered 5") as caught:
                publish(local.root, f"{full.host}/full", release="1.0.0")
            assert caught.value.code == 10
            assert repository(full, "full/cpu", tmp_path / "state").manifests.tags() == ()
        finally:
            full.stop()


# --- in spite of everything -----------------------------------------------------------------------------------------


def verb(local: LocalRepository, where: str, *options: str, **changes: str) -> subprocess.Popen[str]:
    return local.start("publish", "--target", VARIANT, "--registry", where, "--json", *options, **changes)


def finished(process: subprocess.Popen[str]) -> Published:
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr[-2000:]
    return Published.model_validate(json.loads(stdout))


def test_two_publishes_at_once(registry: Registry, local: LocalRepository) -> None:
    processes = [verb(local, f"{registry.host}/twice", "--release", "1.0.0") for _ in range(2)]
    first, second = (finished(process) for process in processes)
    assert first.digest == second.digest
    assert first.blobs["uploaded"] + second.blobs["uploaded"] == sum(first.blobs.values())


def test_two_machines_at_once(registry: Registry, local: LocalRepository, tmp_path: Path) -> None:
    shutil.copytree(local.cache, tmp_path / "another machine")
    caches = [str(local.cache), str(tmp_path / "another machine")]
    where = f"{registry.host}/machines"
    processes = [verb(local, where, "--release", "1.0.0", DRYDOCK_CACHE=cache) for cache in caches]
    first, second = (finished(process) for process in processes)
    assert first.digest == second.digest
    there = repository(registry, "machines/cpu", tmp_path / "state").manifests
    assert {len(there.referrers(digest)) for digest in first.platforms.values()} == {4}


def test_of_two_different_images_at_once_one_gets_the_release(
    registry: Registry, local: LocalRepository, tmp_path: Path
) -> None:
    other_repository = LocalRepository(tmp_path / "other", salt="other")
    os.environ["DRYDOCK_CACHE"] = str(local.cache)
    changes = {"DRYDOCK_CACHE": str(local.cache)}
    arguments = ("publish", "--target", VARIANT, "--registry", f"{registry.host}/race", "--release", "1.0.0", "--json")
    (other_repository.root.parent / "cache" / "images").rename(local.cache / "images-other")
    (other_repository.cache).rmdir()
    other_repository.cache.symlink_to(local.cache)
    for platform in (local.cache / "images-other" / VARIANT).iterdir():
        for layout in platform.iterdir():
            layout.rename(local.cache / "images" / VARIANT / platform.name / layout.name)
    processes = [one.start(*arguments, **changes) for one in (local, other_repository)]
    codes = []
    for process in processes:
        process.communicate(timeout=120)
        codes.append(process.returncode)
    assert sorted(codes) == [0, 12]


def test_killed_at_any_moment_it_is_simply_run_again(registry: Registry, tmp_path: Path) -> None:
    local = LocalRepository(tmp_path, platforms=("linux/amd64",), salt="killed", size=8 << 20)
    chance = random.Random(11)  # noqa: S311 - moments to kill at, the same each run
    where = f"{registry.host}/killed"
    there = repository(registry, "killed/cpu", tmp_path / "state").manifests
    for _ in range(8):
        process = verb(local, where, "--release", "1.0.0")
        time.sleep(chance.uniform(0.3, 1.5))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        release_digest = there.digest(f"{VARIANT}-1.0.0")
        assert release_digest is None or there.find(release_digest)
    publication = finished(verb(local, where, "--release", "1.0.0"))
    assert there.digest(f"{VARIANT}-1.0.0") == publication.digest
    assert list((local.cache / "uploads").rglob("*.json")) == []
