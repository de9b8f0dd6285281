"""Source code in bundles: carried as objects of git that prove their commit."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from drydock.bundle.archive import Archive, index_of, write_archive
from drydock.bundle.bundle_records import (
    BUNDLE,
    COMMIT,
    INPUTS,
    SOURCE,
    Blob,
    make_artifact,
    make_blob,
    make_title_annotation,
)
from drydock.bundle.load import read_bundle
from drydock.core.errors import FetchError, InputError
from drydock.core.files import format_json
from drydock.core.project import Project
from drydock.inputs import git_objects, sources
from drydock.inputs.store import Store
from drydock.inputs.wheels import Environment
from drydock.model.locked import Lock, LockedSource
from drydock.model.record import dump_record
from tests.support.called_verbs import create_bundle, load_bundle
from tests.support.filled_registry import StockedRepository
from tests.support.git import git
from tests.support.local_registry import VARIANT

TARGET = Environment("3.11", "x86_64", 36)
TAR = "application/vnd.drydock.source.v1.tar"
"""How source code was carried before: a tree that nothing proves."""


def upstream(folder: Path, text: str) -> LockedSource:
    """Make a repository with one file; return its newest commit."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet")
    (folder / "setup.py").write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "one")
    commit = git(folder, "rev-parse", "HEAD")
    return LockedSource(name="app", repository=folder.as_uri(), commit=commit, source="a test")


class Compiled(StockedRepository):
    """A repository whose image is compiled from source code."""

    def __init__(self, folder: Path) -> None:
        pin = upstream(folder / "upstream", "print('one')\n")
        self.source = pin.model_copy(update={"repository": "https://git.example.org/app"})
        super().__init__(folder)

    def _locked(self) -> Lock:
        lock = super()._locked()
        platforms = {name: pins.model_copy(update={"sources": (self.source,)}) for name, pins in lock.platforms.items()}
        return lock.model_copy(update={"platforms": platforms})


class Carried:
    """A bundle, and where it was made."""

    def __init__(self, folder: Path) -> None:
        self.here, self.file = Compiled(folder / "here"), folder / "all.tar"
        create_bundle(Project(self.here.root), [VARIANT], self.file)
        self.vouched = {"digest": Archive(self.file).digest}
        (folder / "here" / "upstream").rename(folder / "gone")

    def forged(self, file: Path, layer: Blob, media_type: str, commit: str) -> Path:
        """Write the bundle with other source code in place of its own."""
        archive = Archive(self.file)
        bundle = read_bundle(archive)
        (image,) = bundle.images
        layers = [item for item in archive.json(image.inputs)["layers"] if item["mediaType"] != SOURCE]
        layers.append(layer.descriptor(media_type, **make_title_annotation("sources/app.pack"), **{COMMIT: commit}))
        inputs = make_artifact(INPUTS, layers)
        changed = bundle.model_copy(update={"images": (image.model_copy(update={"inputs": inputs.digest}),)})
        config = make_blob(format_json(dump_record(changed)).encode())
        bundle_manifest = make_artifact(BUNDLE, [], config=config.descriptor(BUNDLE))
        manifests = [item for item in archive.index()["manifests"] if item.get("artifactType") not in (BUNDLE, INPUTS)]
        entries = {item["digest"]: item for item in manifests}
        entries |= {
            item.digest: {**item.descriptor(), "artifactType": item.content["artifactType"]}
            for item in (bundle_manifest, inputs)
        }
        with tarfile.open(self.file) as tar:
            names = [name for name in tar.getnames() if name.startswith("blobs")]
            blobs = [make_blob(tar.extractfile(name).read()) for name in names]  # type: ignore[union-attr] - all are files
        write_archive(
            file, index_of(entries), [*blobs, layer, config, make_blob(bundle_manifest.data), make_blob(inputs.data)]
        )
        return file


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carried]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("sources")
        patch.setenv("DRYDOCK_CACHE", "")
        patch.setenv("GIT_CONFIG_COUNT", "1")
        patch.setenv("GIT_CONFIG_KEY_0", f"url.{folder.as_uri()}/here/upstream.insteadOf")
        patch.setenv("GIT_CONFIG_VALUE_0", "https://git.example.org/app")
        yield Carried(folder)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The empty store of another machine."""
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "there"))
    return Store(tmp_path / "there")


def poisoned_pack(folder: Path) -> Blob:
    """Return the objects of a commit of the attacker's."""
    pin, store = upstream(folder / "evil", "import evil\n"), Store(folder / "attacker")
    return make_blob(sources.fetch_source(pin, TARGET, store).read_bytes())


def planted(store: Store) -> list[str]:
    folders = (store.home / "sources", store.home / "store" / "git")
    return [path.name for folder in folders if folder.is_dir() for path in folder.iterdir() if path.name != "lock"]


def test_another_machine_compiles_the_files_of_the_commit(carried: Carried, there: Store) -> None:
    loaded = load_bundle(Project(carried.here.root), carried.file, carried.vouched)
    assert loaded.images[0].rebuildable
    folder = sources.make_source_folder(carried.here.source, TARGET, there)
    assert [path.name for path in folder.iterdir()] == ["setup.py"]
    assert (folder / "setup.py").read_text() == "print('one')\n"
    assert load_bundle(Project(carried.here.root), carried.file, carried.vouched).files_new == 0
    create_bundle(Project(carried.here.root), [VARIANT], there.home / "again.tar")
    assert (there.home / "again.tar").read_bytes() == carried.file.read_bytes()


def test_source_code_that_is_no_objects_of_git_is_refused(carried: Carried, there: Store, tmp_path: Path) -> None:
    forged = carried.forged(tmp_path / "forged.tar", make_blob(b"a tree"), TAR, str(carried.here.source.commit))
    with pytest.raises(InputError, match="unsupported input type"):
        load_bundle(Project(carried.here.root), forged, {"digest": Archive(forged).digest})
    assert planted(there) == []


def test_objects_of_another_commit_are_refused(carried: Carried, there: Store, tmp_path: Path) -> None:
    commit = str(carried.here.source.commit)
    forged = carried.forged(tmp_path / "forged.tar", poisoned_pack(tmp_path), SOURCE, commit)
    with pytest.raises(FetchError, match=f"not the objects of commit {commit}"):
        load_bundle(Project(carried.here.root), forged, {"digest": Archive(forged).digest})
    assert planted(there) == []


def test_changed_objects_are_not_bundled(carried: Carried, there: Store, tmp_path: Path) -> None:
    load_bundle(Project(carried.here.root), carried.file, carried.vouched)
    pack = git_objects.pack_path(str(carried.here.source.commit), there)
    pack.write_bytes(bytes(poisoned_pack(tmp_path).source))  # type: ignore[arg-type] - it is in memory
    with pytest.raises(FetchError, match="was changed on the disk"):
        create_bundle(Project(carried.here.root), [VARIANT], tmp_path / "b.tar")
    assert not (tmp_path / "b.tar").exists()
    assert not pack.exists()
    assert os.listdir(pack.parent) == ["lock"]  # noqa: PTH208 - names alone
