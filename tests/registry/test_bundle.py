"""Bundles of small images: the same bytes each time, loaded whole through kills, damage and full disks; published."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from drydock.attest import cosign
from drydock.build import checkouts
from drydock.build.build_job import BuildOptions, prepare_job
from drydock.bundle import load
from drydock.bundle.archive import Archive, index_of, write_archive
from drydock.bundle.bundle_records import BUNDLE, DEB, INPUTS, WHEEL, make_artifact, make_blob
from drydock.bundle.create import Created
from drydock.bundle.load import format_loaded_bundle
from drydock.core.errors import DiskFullError, FetchError, InputError, NotReproducibleError, UntrustedError
from drydock.core.files import format_json
from drydock.core.project import Project
from drydock.core.tar import unpack_tar
from drydock.examine.remote_image import open_image
from drydock.model.locked import LockedFile
from drydock.model.record import dump_record
from drydock.publish import push
from tests.support.called_verbs import create_bundle, load_bundle
from tests.support.filled_registry import StockedRepository
from tests.support.local_registry import PLATFORMS, VARIANT, publish
from tests.support.needed_programs import require_program
from tests.support.servers import Registry
from tests.support.sigstore import key_pair
from tests.support.small_disk import small_disk


class Carried:
    """A bundle, and where it was made."""

    def __init__(self, folder: Path) -> None:
        self.here = StockedRepository(folder / "here", platforms=PLATFORMS)
        self.file = folder / "all.tar"
        self.created: Created = create_bundle(Project(self.here.root), [VARIANT], self.file)
        self.vouched = {"digest": self.created.bundle}


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carried]:
    before = os.environ.get("DRYDOCK_CACHE")
    yield Carried(tmp_path_factory.mktemp("bundle"))
    os.environ.pop("DRYDOCK_CACHE")
    os.environ |= {"DRYDOCK_CACHE": before} if before else {}


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty cache folder of another machine."""
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "there"))
    return tmp_path / "there"


def whole(cache: Path) -> int:
    """See that every name in a store is true; return the number of files."""
    files = [path for path in (cache / "store" / "sha256").rglob("*") if path.is_file()]
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == path.name for path in files)
    return len(files)


def contents(cache: Path) -> dict[str, bytes]:
    return {str(path.relative_to(cache)): path.read_bytes() for path in sorted(cache.rglob("*")) if path.is_file()}


def test_the_same_bytes_each_time(carried: Carried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(carried.here.cache))
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    again = create_bundle(Project(carried.here.root), [VARIANT, "cpu"], tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == carried.file.read_bytes()
    assert again.bundle == carried.created.bundle


def test_another_machine_has_it_all_and_makes_the_same_bundle_of_it(carried: Carried, there: Path) -> None:
    loaded = load_bundle(Project(carried.here.root), carried.file, carried.vouched)
    assert loaded.bundle == carried.created.bundle
    assert [image.rebuildable for image in loaded.images] == [True, True]
    assert loaded.files_new == whole(there) == whole(carried.here.cache)
    layouts = {str(carried.here.layout(platform).relative_to(there)) for platform in PLATFORMS}
    assert {*checkouts.list_kept_names()} == layouts  # a build in another checkout leaves them
    create_bundle(Project(carried.here.root), [VARIANT], there / "again.tar")
    assert (there / "again.tar").read_bytes() == carried.file.read_bytes()


def test_a_second_load_does_nothing(carried: Carried, there: Path) -> None:
    load_bundle(Project(carried.here.root), carried.file, carried.vouched)
    before = contents(there)
    assert load_bundle(Project(carried.here.root), carried.file, carried.vouched).files_new == 0
    assert contents(there) == before


@pytest.mark.usefixtures("there")
def test_what_was_loaded_is_published_with_what_was_said_where_it_was_built(
    carried: Carried, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_bundle(Project(carried.here.root), carried.file, carried.vouched)
    monkeypatch.setenv("DRYDOCK_BUILDER_ID", "https://another.example/builder")
    publication = publish(carried.here.root, f"{registry.host}/bundled", release="1.0.0")
    assert publication.platforms == carried.created.images[VARIANT]
    image = open_image(publication.image)
    kinds = {"application/vnd.in-toto+json": ""}
    for platform in PLATFORMS:
        (statement,) = image.documents(publication.platforms[platform], kinds)
        assert statement.json()["predicate"]["runDetails"]["builder"]["id"] == "urn:drydock:builder:local"


def test_killed_at_any_moment_it_is_simply_run_again(carried: Carried, there: Path) -> None:
    chance = random.Random(5)  # noqa: S311 - the same moments each run
    command = ("bundle.load", str(carried.file), "--digest", carried.created.bundle)
    started = time.monotonic()
    assert carried.here.start(*command, DRYDOCK_CACHE=str(there)).wait() == 0
    whole_run = time.monotonic() - started
    shutil.rmtree(there)
    for _ in range(6):
        process = carried.here.start(*command, DRYDOCK_CACHE=str(there))
        time.sleep(chance.uniform(0.5, 1.0) * whole_run)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        whole(there)
    loaded = load_bundle(Project(carried.here.root), carried.file, carried.vouched)
    assert [image.digest for image in loaded.images] == list(carried.created.images[VARIANT].values())
    assert whole(there) == whole(carried.here.cache)


def test_killed_while_it_is_written_the_old_one_stays(carried: Carried, tmp_path: Path) -> None:
    file = tmp_path / "again.tar"
    shutil.copy(carried.file, file)
    for after in (1.5, 2.0, 2.5):
        process = carried.here.start("bundle.create", "--target", VARIANT, "--output", str(file))
        time.sleep(after)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert file.read_bytes() == carried.file.read_bytes()


def test_a_damaged_archive_is_named_and_what_was_whole_stays(carried: Carried, there: Path, tmp_path: Path) -> None:
    data = bytearray(carried.file.read_bytes())
    places = [match.start() for match in re.finditer(rb"bash 5\S+bash", data)] or [len(data) // 2]
    data[places[0]] ^= 1
    (tmp_path / "damaged.tar").write_bytes(data)
    with pytest.raises(FetchError, match="damaged archive"):
        load_bundle(Project(carried.here.root), tmp_path / "damaged.tar", carried.vouched)
    whole(there)
    assert load_bundle(Project(carried.here.root), carried.file, carried.vouched).bundle == carried.created.bundle


def test_a_disk_that_is_too_small_is_said_first(
    carried: Carried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        monkeypatch.setenv("DRYDOCK_CACHE", str(disk / "cache"))
        with pytest.raises(DiskFullError, match=r"MB needed, 1 MB free"):
            load_bundle(Project(carried.here.root), carried.file, carried.vouched)
        assert list(disk.iterdir()) == []


def test_a_disk_that_fills_up_meanwhile_leaves_the_store_intact(
    carried: Carried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "check_free_space", lambda *_: None)
    with small_disk(tmp_path / "disk", "64k") as disk:
        monkeypatch.setenv("DRYDOCK_CACHE", str(disk / "cache"))
        with pytest.raises(DiskFullError, match="no space left"):
            load_bundle(Project(carried.here.root), carried.file, carried.vouched)
        assert whole(disk / "cache") < whole(carried.here.cache)
        assert list((disk / "cache").glob("images/**/index.json")) == []
    with small_disk(tmp_path / "disk", "8m"):
        assert load_bundle(Project(carried.here.root), carried.file, carried.vouched).files_new == whole(
            carried.here.cache
        )


def test_of_another_commit_it_says_which(carried: Carried, there: Path, tmp_path: Path) -> None:
    other_repository = StockedRepository(tmp_path / "other", salt="other")
    os.environ["DRYDOCK_CACHE"] = str(there)
    loaded = load_bundle(Project(other_repository.root), carried.file, carried.vouched)
    assert [image.rebuildable for image in loaded.images] == [False, False]
    assert "the bundle was made from commit unknown, which differs" in format_loaded_bundle(loaded)


def test_a_build_here_that_gave_something_else_is_said_before_anything_is_written(
    carried: Carried, there: Path
) -> None:
    load_bundle(Project(carried.here.root), carried.file, carried.vouched)
    layout = prepare_job(Project(carried.here.root), VARIANT, BuildOptions(platform=PLATFORMS[0])).kept_layout
    assert layout
    index = json.loads((layout / "index.json").read_text())
    index["manifests"][0]["digest"] = f"sha256:{'0' * 64}"
    (layout / "index.json").write_text(json.dumps(index))
    shutil.rmtree(there / "store")
    with pytest.raises(NotReproducibleError, match="this machine built sha256:000"):
        load_bundle(Project(carried.here.root), carried.file, carried.vouched)
    assert not (there / "store").exists()


@pytest.mark.usefixtures("there")
def test_what_was_not_built_is_not_bundled(carried: Carried, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no image was built from the current inputs"):
        create_bundle(Project(carried.here.root), [VARIANT], tmp_path / "a.tar")
    assert not (tmp_path / "a.tar").exists()


@pytest.fixture(scope="module")
def signed(carried: Carried, key: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same bundle, signed."""
    file = tmp_path_factory.mktemp("signed") / "signed.tar"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRYDOCK_CACHE", str(carried.here.cache))
        created = create_bundle(Project(carried.here.root), [VARIANT], file, key=str(key))
    assert (created.signed, created.bundle) == (True, carried.created.bundle)
    return file


def resigned(signed: Path, output: Path, index: bytes = b"", signature: bytes = b"") -> Path:
    """Write the bundle with another index, or with another signature or none."""
    archive = Archive(signed)
    with tarfile.open(signed) as tar:
        names = [name for name in tar.getnames() if name.startswith("blobs")]
        blobs = [make_blob(tar.extractfile(name).read()) for name in names]  # type: ignore[union-attr] - all are files
    write_archive(output, index or archive.index_bytes, blobs, signature)
    return output


def test_who_made_it_is_asked_by_his_key(carried: Carried, signed: Path, key: Path, there: Path) -> None:
    loaded = load_bundle(Project(carried.here.root), signed, {"verify_key": str(key.with_suffix(".pub"))})
    assert loaded.signed
    assert "(signature verified)" in format_loaded_bundle(loaded)
    assert loaded.files_new == whole(there)


class Forgery(NamedTuple):
    """What somebody on the way makes of a signed bundle, and why it is refused."""

    index: Callable[[Archive], bytes]
    signature: Callable[[Archive, Path], bytes]
    said: str


def other_key(archive: Archive, folder: Path) -> bytes:
    return cosign.sign_data(archive.index_bytes, cosign.Signer(str(key_pair(folder))))


def without_one(archive: Archive) -> bytes:
    entries = archive.index()["manifests"]
    return index_of({item["digest"]: item for item in entries if item.get("artifactType") != INPUTS})


FORGERIES = {
    "stripped": Forgery(lambda archive: archive.index_bytes, lambda *_: b"", "not signed, but --verify-key"),
    "of somebody else": Forgery(
        lambda archive: archive.index_bytes, other_key, "no valid signature: .*invalid signature"
    ),
    "of another index": Forgery(
        without_one, lambda archive, _: archive.signature, "no valid signature: .*invalid signature"
    ),
    "no signature": Forgery(lambda archive: archive.index_bytes, lambda *_: b"{}", "no valid signature"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_one_is_refused_with_the_reason_before_anything_is_written(
    name: str, carried: Carried, signed: Path, key: Path, there: Path, tmp_path: Path
) -> None:
    forgery, archive = FORGERIES[name], Archive(signed)
    forged = resigned(signed, tmp_path / "f.tar", forgery.index(archive), forgery.signature(archive, tmp_path))
    before = contents(there)
    with pytest.raises(UntrustedError, match=rf"f\.tar: {forgery.said}"):
        load_bundle(Project(carried.here.root), forged, {"verify_key": str(key.with_suffix(".pub"))})
    assert contents(there) == before


def test_what_cannot_be_signed_is_not_written(
    carried: Carried, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(carried.here.cache))
    monkeypatch.setenv("COSIGN_PASSWORD", "wrong")
    with pytest.raises(InputError, match=r"signing with .*cosign\.key: .*decryption failed"):
        create_bundle(Project(carried.here.root), [VARIANT], tmp_path / "a.tar", key=str(key))
    assert list(tmp_path.glob("*.tar")) == []


def test_a_key_or_a_file_that_cannot_be_used_is_an_error_before_an_image_is_read(
    carried: Carried, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "list_built_layouts", lambda *_: pytest.fail("read"))
    for output, name, problem in (
        (tmp_path / "a.tar", str(key.with_name("no.key")), r"no\.key: .*no such file"),
        (Path("/proc/none/a.tar"), "", r"/proc/none"),
        (tmp_path, "", "expected a file, found a folder"),
    ):
        with pytest.raises(InputError, match=problem):
            create_bundle(Project(carried.here.root), [VARIANT], output, key=name)


@pytest.fixture
def vendored(carried: Carried, there: Path, tmp_path: Path) -> Path:
    """The same bundle, of an image that was built with a vendor's file."""
    archive = Archive(carried.file)
    bundle = load.read_bundle(archive)
    pin = LockedFile(filename="installer.run", size=7, sha256=hashlib.sha256(b"install").hexdigest())
    images = tuple(image.model_copy(update={"supplied": {"vendor": (pin,)}}) for image in bundle.images)
    config = make_blob(format_json(dump_record(bundle.model_copy(update={"images": images}))).encode())
    bundle_manifest = make_artifact(BUNDLE, [], config=config.descriptor(BUNDLE))
    entries = {item["digest"]: item for item in archive.index()["manifests"] if item.get("artifactType") != BUNDLE}
    entries[bundle_manifest.digest] = {**bundle_manifest.descriptor(), "artifactType": BUNDLE}
    with tarfile.open(carried.file) as tar:
        names = [name for name in tar.getnames() if name.startswith("blobs")]
        blobs = [make_blob(tar.extractfile(name).read()) for name in names]  # type: ignore[union-attr] - all are files
    write_archive(tmp_path / "vendored.tar", index_of(entries), [*blobs, config, make_blob(bundle_manifest.data)])
    assert there
    return tmp_path / "vendored.tar"


def test_vendors_files_stay_behind_and_are_brought_by_their_hashes(
    carried: Carried, vendored: Path, tmp_path: Path
) -> None:
    root, folder = carried.here.root, tmp_path / "vendor"
    vouched = {"digest": Archive(vendored).digest}
    vendor = {**vouched, "context": [f"vendor={folder}"]}
    folder.mkdir()
    assert (
        "supply it to rebuild: cpu-vllm0.32: --context vendor=FOLDER with installer.run (sha256 "
        in format_loaded_bundle(load_bundle(Project(root), vendored, vouched))
    )
    with pytest.raises(InputError, match=r"no file installer\.run"):
        load_bundle(Project(root), vendored, vendor)
    with pytest.raises(InputError, match="did you mean 'vendor'"):
        load_bundle(Project(root), vendored, {**vouched, "context": [f"vendr={folder}"]})
    (folder / "installer.run").write_bytes(b"another")
    with pytest.raises(FetchError, match=r"installer\.run: sha256 is"):
        load_bundle(Project(root), vendored, vendor)
    (folder / "installer.run").write_bytes(b"install")
    assert load_bundle(Project(root), vendored, vendor).not_included == ()
    assert load_bundle(Project(root), vendored, vouched).not_included == ()


@pytest.fixture(scope="module")
def oras() -> str:
    """A stock client of OCI layouts, installed where it is missing."""
    return require_program("oras", minimum=(1, 2))


def test_a_stock_client_reads_it(carried: Carried, signed: Path, oras: str, tmp_path: Path) -> None:
    def ask(*arguments: str) -> str:
        return subprocess.run([oras, *arguments], check=True, capture_output=True, text=True, cwd=tmp_path).stdout

    index = json.loads(ask("manifest", "fetch", "--oci-layout", f"{signed}:{VARIANT}"))
    assert {item["digest"] for item in index["manifests"]} == set(carried.created.images[VARIANT].values())
    amd64 = carried.created.images[VARIANT]["linux/amd64"]
    output = ask("discover", "--format", "json", "--oci-layout", f"{signed}@{amd64}")
    assert {INPUTS, "application/spdx+json", "application/vnd.in-toto+json"} <= set(
        re.findall(r"application/[^\"]+", output)
    )
    ask("pull", "--oci-layout", f"{signed}:{VARIANT}-linux-amd64-inputs", "--output", "files")
    manifest = Archive(signed).json(load.read_bundle(Archive(signed)).images[0].inputs)
    assert {item["mediaType"] for item in manifest["layers"]} == {DEB, WHEEL}
    assert len([path for path in (tmp_path / "files").rglob("*") if path.is_file()]) == len(manifest["layers"])


def test_cosign_alone_says_whose_it_is(signed: Path, key: Path, tmp_path: Path) -> None:
    with tarfile.open(signed) as tar:
        unpack_tar(tar, tmp_path)
    command = ["cosign", "verify-blob", "--key", str(key.with_suffix(".pub")), "--insecure-ignore-tlog"]
    command += ["--bundle", "index.json.sigstore.json", "index.json"]
    assert "Verified OK" in subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
