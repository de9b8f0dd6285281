from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import EngineError, FetchError, StaleError
from drydock.engine import daemon
from drydock.examine.hardening import SETID
from drydock.inputs import fetch, rootfs
from drydock.inputs.debs import fetch_packages
from drydock.inputs.store import Store
from drydock.lock.lockfile import path_of_lock, read_lock
from drydock.model.locked import LockedDeb, LockedDebianBase
from drydock.oci import image_layout
from tests.support import layouts
from tests.support.hashes import sha256

MakeDeb = Callable[[dict[str, str], dict[str, bytes]], bytes]


@pytest.fixture
def packages(store: Store, make_deb: MakeDeb) -> rootfs.Packages:
    """Add two packages to the store: one with a program below /bin, and mmdebstrap."""
    debs = []
    for name, files in (("tool", {"./bin/": b"", "./bin/tool": b"#!"}), ("mmdebstrap", {"./usr/bin/mmdebstrap": b""})):
        data = make_deb({"Package": name, "Version": "1.0", "Architecture": "amd64"}, files)
        store.add([data], sha256(data), name)
        debs.append(_deb(name, len(data), sha256(data)))
    return rootfs.Packages("bookworm", "linux/amd64", 1, (debs[0],), tuple(debs))


def _deb(name: str, size: int, sha256: str) -> LockedDeb:
    return LockedDeb(name=name, version="1.0", architecture="amd64", filename="x.deb", size=size, sha256=sha256)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("./bin/sh", "usr/bin/sh"),
        ("./lib64", "usr/lib64"),
        ("./usr/bin/env", "usr/bin/env"),
        ("./", ""),
        ("./etc/", "etc"),
    ],
)
def test_paths_are_mapped_to_the_merged_usr(name: str, path: str) -> None:
    assert rootfs.merge_usr_path(name) == path


@pytest.mark.parametrize(
    ("name", "kind", "merges"),
    [
        ("./lib", tarfile.SYMTYPE, True),
        ("./lib", tarfile.DIRTYPE, False),
        ("./usr/lib", tarfile.SYMTYPE, False),
    ],
)
def test_links_that_merge_usr_are_recognised(name: str, kind: bytes, merges: bool) -> None:
    member = tarfile.TarInfo(name)
    member.type = kind

    assert rootfs.is_merge(member) == merges


def test_the_bootstrap_image_contains_unpacked_packages_and_a_repository(
    packages: rootfs.Packages, store: Store
) -> None:
    output = io.BytesIO()
    rootfs.write_bootstrap(output, packages, store)
    output.seek(0)
    with tarfile.open(fileobj=output) as tar:
        members = {member.name: member for member in tar}
        index = tar.extractfile("repository/Packages")
        assert index is not None
        text = index.read().decode()
    assert members["bin"].linkname == "usr/bin"
    assert members["usr/bin/tool"].mode == 0o755
    assert "bin/tool" not in members
    assert members["usr/bin"].isdir()
    assert f"repository/{packages.packages[0].sha256}.deb" in members
    assert "Package: tool\nVersion: 1.0\n" in text
    assert f"SHA256: {packages.packages[0].sha256}\n" in text


@pytest.mark.parametrize("kind", ["packages", "bootstrap"])
def test_an_exchanged_package_is_refused(packages: rootfs.Packages, store: Store, kind: str) -> None:
    path = store.path(getattr(packages, kind)[-1].sha256)
    old_stat, data = path.stat(), path.read_bytes()
    path.write_bytes(data.replace(b"#!", b"!#").replace(b"2.0\n", b"2.1\n"))
    os.utime(path, ns=(old_stat.st_atime_ns, old_stat.st_mtime_ns))
    with pytest.raises(FetchError, match="changed on the disk"):
        rootfs.write_bootstrap(io.BytesIO(), packages, store)
    assert not path.exists()


def test_the_release_file_pins_its_index() -> None:
    assert f" {sha256(b'index')} 5 Packages\n" in rootfs.format_release_file("bookworm", "index")


def test_the_path_of_the_base_depends_on_its_inputs(packages: rootfs.Packages, store: Store) -> None:
    bootstrap_only = packages._replace(packages=packages.bootstrap)
    assert rootfs.base_folder(packages, store) == rootfs.base_folder(packages, store)
    assert (
        len({rootfs.base_folder(source, store) for source in (packages, bootstrap_only, packages._replace(epoch=2))})
        == 3
    )


def test_a_digest_mismatch_names_both_digests_and_the_version_of_mmdebstrap(
    packages: rootfs.Packages, tmp_path: Path
) -> None:
    layer = tmp_path / "layer.tar"
    layer.write_bytes(b"")
    digest = image_layout.write_layout(tmp_path, layer, "linux/amd64", 1, "a test")
    rootfs.check_digest(tmp_path, digest, packages)
    with pytest.raises(StaleError, match=rf"{digest}, expected sha256:0000 \(mmdebstrap 1\.0\)"):
        rootfs.check_digest(tmp_path, "sha256:0000", packages)


def test_a_platform_that_the_engine_cannot_run_says_what_to_do(
    packages: rootfs.Packages, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(
        "#!/bin/sh\ncase $1 in run) echo 'exec /usr/bin/mmdebstrap: exec format error' >&2; exit 1;; esac\n"
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(daemon, "ensure_engine", lambda: None)  # it would install one in place of this program
    with pytest.raises(EngineError, match=r"^linux/amd64: this engine runs no programs of it") as error:
        rootfs.make_base(packages, store)
    assert "qemu-user-binfmt" in error.value.hint


@pytest.mark.engine
def test_making_the_locked_base_again_gives_the_locked_digest(tmp_path: Path) -> None:
    lock = read_lock(path_of_lock(DRYDOCK, "cpu-vllm0.32"))
    base = lock.platforms["linux/amd64"].base
    assert isinstance(base, LockedDebianBase)
    source = fetch.rootfs_packages(base, "linux/amd64", lock.source_date_epoch)
    fresh = Store(tmp_path)
    fetch_packages((*source.packages, *source.bootstrap), base.snapshot, fresh, os.environ)
    layout = rootfs.make_base(source, fresh)
    assert image_layout.read_digest(layout) == base.digest
    layer = max((layout / "blobs" / "sha256").iterdir(), key=lambda blob: blob.stat().st_size)
    with tarfile.open(layer) as tar:
        assert [member.name for member in tar if member.mode & SETID and not member.isdir()] == []


def test_a_base_to_record_is_made_from_its_packages(
    packages: rootfs.Packages, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer_digests = []

    def write(source: rootfs.Packages, _: Store, final: Path) -> None:
        shutil.rmtree(final, ignore_errors=True)
        layer = store.home / f"layer-{len(layer_digests)}"
        layer.write_bytes(b"planted" if not layer_digests else b"made")
        layer_digests.append(image_layout.write_layout(final, layer, source.platform, source.epoch, "x"))

    monkeypatch.setattr(rootfs, "_make_base_layout", write)
    write(packages, store, rootfs.base_folder(packages, store))
    assert image_layout.read_digest(rootfs.make_base(packages, store)) == layer_digests[0]
    assert [image_layout.read_digest(rootfs.make_base(packages, store, to_record=True)) for _ in range(2)] == [
        layer_digests[1]
    ] * 2
    assert len(layer_digests) == 2


@pytest.mark.parametrize("suffix", layouts.COMPRESSIONS)
def test_a_base_is_made_again_of_an_image_on_it(
    suffix: str, packages: rootfs.Packages, store: Store, tmp_path: Path
) -> None:
    files = layouts.tar([("etc/os-release", b"bookworm", {"mtime": 1})])
    (tmp_path / "layer").write_bytes(files)
    digest = image_layout.write_layout(
        tmp_path / "base", tmp_path / "layer", "linux/amd64", 1, rootfs._describe_author("bookworm")
    )
    image = layouts.write(tmp_path / "image", files, b"vllm", suffix=suffix)
    other_layout = layouts.write(tmp_path / "other", b"another base", b"vllm", suffix=suffix)
    final = rootfs.base_folder(packages, store)

    rootfs.restore_base_layout(packages, store, digest, other_layout)
    assert [path for path in final.parent.iterdir() if path.name != "lock"] == []
    rootfs.restore_base_layout(packages, store, digest, image)
    assert image_layout.is_intact_layout(final)
    assert image_layout.read_digest(final) == digest
    rootfs.restore_base_layout(packages, store, digest, other_layout)
    assert image_layout.read_digest(final) == digest


def test_a_base_of_an_image_is_bounded(
    packages: rootfs.Packages, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rootfs, "LARGEST", 1 << 20)
    (tmp_path / "layer").write_bytes(bytes(4 << 20))
    digest = image_layout.write_layout(
        tmp_path / "base", tmp_path / "layer", "linux/amd64", 1, rootfs._describe_author("bookworm")
    )
    rootfs.restore_base_layout(packages, store, digest, layouts.write(tmp_path / "image", bytes(4 << 20)))
    assert not rootfs.base_folder(packages, store).exists()
