"""Source code in bundles: only what the lock pins, carried as objects of git that prove their commit."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from drydock.bundle.archive import Archive, index_of, write
from drydock.bundle.contents import BUNDLE, COMMIT, INPUTS, SOURCE, Blob, artifact, blob, titled
from drydock.bundle.create import create
from drydock.bundle.load import LoadOptions, load, read_bundle
from drydock.core.errors import FetchError, InputError
from drydock.core.files import dumps
from drydock.inputs import packs, sources
from drydock.inputs.store import Store
from drydock.inputs.wheels import Environment
from drydock.lock import lockfile
from drydock.model.locked import Lock, LockedSource
from drydock.model.record import dump
from tests.support.filled_registry import StockedRepository
from tests.support.local_registry import VARIANT

TARGET = Environment("3.11", "x86_64", 36)
OTHER = "habana1.22-fork0.9"
"""A variant with source code, whose lock the repository has too."""
TAR = "application/vnd.drydock.source.v1.tar"
"""How source code was carried before: a tree that nothing proves."""


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


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
        found = super()._locked()
        platforms = {
            name: pins.model_copy(update={"sources": (self.source,)}) for name, pins in found.platforms.items()
        }
        return found.model_copy(update={"platforms": platforms})


class Carried:
    """A bundle, and where it was made."""

    def __init__(self, folder: Path) -> None:
        self.here, self.file = Compiled(folder / "here"), folder / "all.tar"
        create([VARIANT], self.file, root=self.here.root)
        self.vouched = LoadOptions(digest=Archive(self.file).digest)
        (folder / "here" / "upstream").rename(folder / "gone")

    def forged(self, file: Path, layer: Blob, media_type: str, commit: str, *, alone: bool) -> Path:
        """Write the bundle with other source code, beside its own or in its place."""
        archive = Archive(self.file)
        bundle = read_bundle(archive)
        (image,) = bundle.images
        layers = [item for item in archive.json(image.inputs)["layers"] if not (alone and item["mediaType"] == SOURCE)]
        layers.append(layer.descriptor(media_type, **titled("sources/app.pack"), **{COMMIT: commit}))
        inputs = artifact(INPUTS, layers)
        changed = bundle.model_copy(update={"images": (image.model_copy(update={"inputs": inputs.digest}),)})
        config = blob(dumps(dump(changed)).encode())
        own = artifact(BUNDLE, [], config=config.descriptor(BUNDLE))
        kept = [item for item in archive.index()["manifests"] if item.get("artifactType") not in (BUNDLE, INPUTS)]
        entries = {item["digest"]: item for item in kept}
        entries |= {
            item.digest: {**item.descriptor(), "artifactType": item.content["artifactType"]} for item in (own, inputs)
        }
        with tarfile.open(self.file) as tar:
            names = [name for name in tar.getnames() if name.startswith("blobs")]
            blobs = [blob(tar.extractfile(name).read()) for name in names]  # type: ignore[union-attr] - all are files
        write(file, index_of(entries), [*blobs, layer, config, blob(own.data), blob(inputs.data)])
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


def poison() -> Blob:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("setup.py")
        member.size = 12
        tar.addfile(member, io.BytesIO(b"import evil\n"))
    return blob(buffer.getvalue())


def poisoned_pack(folder: Path) -> Blob:
    """Return the objects of a commit of the attacker's."""
    pin, store = upstream(folder / "evil", "import evil\n"), Store(folder / "attacker")
    return blob(sources.fetch(pin, TARGET, store).read_bytes())


def planted(store: Store) -> list[str]:
    folders = (store.home / "sources", store.home / "store" / "git")
    return [path.name for folder in folders if folder.is_dir() for path in folder.iterdir() if path.name != "lock"]


def test_another_machine_compiles_the_files_of_the_commit(carried: Carried, there: Store) -> None:
    loaded = load(carried.file, carried.vouched, root=carried.here.root)
    assert loaded.images[0].rebuildable
    folder = sources.folder(carried.here.source, TARGET, there)
    assert [path.name for path in folder.iterdir()] == ["setup.py"]
    assert (folder / "setup.py").read_text() == "print('one')\n"
    assert load(carried.file, carried.vouched, root=carried.here.root).files_new == 0
    create([VARIANT], there.home / "again.tar", root=carried.here.root)
    assert (there.home / "again.tar").read_bytes() == carried.file.read_bytes()


@pytest.mark.attack(
    what="a bundle plants a source tree under the commit or the archive's hash that a lock pins",
    before="it was kept under that name, and the next build of any variant compiled it",
    after="a source tree that nothing proves is refused",
)
@pytest.mark.parametrize("name", ["own commit", "another variant's commit", "an archive's hash"])
def test_a_tree_under_a_pinned_name_is_refused(carried: Carried, there: Store, tmp_path: Path, name: str) -> None:
    commits = {"own commit": str(carried.here.source.commit), "another variant's commit": other_commit(carried)}
    commit = commits.get(name, "5" * 64)
    forged = carried.forged(tmp_path / "forged.tar", poison(), TAR, commit, alone=True)
    with pytest.raises(InputError, match="unsupported input type"):
        load(forged, root=carried.here.root)
    assert planted(there) == []


def other_commit(carried: Carried) -> str:
    """Return a commit that another variant's lock in the repository pins."""
    text = lockfile.path_of(Path(__file__).parents[2], OTHER)
    lock = lockfile.read_lock(text)
    lockfile.path_of(carried.here.root, OTHER).parent.mkdir(parents=True, exist_ok=True)
    lockfile.write_lock(lockfile.path_of(carried.here.root, OTHER), lock)
    return next(str(item.commit) for pins in lock.platforms.values() for item in pins.sources if item.commit)


@pytest.mark.attack(
    what="a bundle has git objects under a commit that they do not belong to",
    before="not staged: a bundle had source trees, which nothing proves",
    after="git computes the ids again; the load is refused and keeps nothing",
)
def test_objects_of_another_commit_are_refused(carried: Carried, there: Store, tmp_path: Path) -> None:
    commit = str(carried.here.source.commit)
    forged = carried.forged(tmp_path / "forged.tar", poisoned_pack(tmp_path), SOURCE, commit, alone=True)
    with pytest.raises(FetchError, match=f"not the objects of commit {commit}"):
        load(forged, root=carried.here.root)
    assert planted(there) == []


@pytest.mark.attack(
    what="a bundle brings source code that only another variant's lock pins, or none, or under a path",
    before="kept",
    after="ignored, and named on standard error",
)
@pytest.mark.parametrize("name", ["another variant's", "nobody's", "a path"])
def test_source_code_that_the_lock_does_not_pin_is_ignored(
    carried: Carried, there: Store, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = poisoned_pack(tmp_path)
    commit = {"another variant's": other_commit(carried), "nobody's": "7" * 40}.get(name, "../../../evil")
    forged = carried.forged(tmp_path / "forged.tar", pack, SOURCE, commit, alone=False)
    load(forged, root=carried.here.root)
    assert planted(there) == [f"{carried.here.source.commit}.pack"]
    assert f"does not pin commit '{commit}'" in capsys.readouterr().err


@pytest.mark.attack(
    what="a file in the store is changed before it is bundled",
    before="a changed source tree was bundled under its commit",
    after="refused and removed; the next run fetches it again",
)
def test_changed_objects_are_not_bundled(carried: Carried, there: Store, tmp_path: Path) -> None:
    load(carried.file, carried.vouched, root=carried.here.root)
    pack = packs.path(str(carried.here.source.commit), there)
    pack.write_bytes(bytes(poisoned_pack(tmp_path).source))  # type: ignore[arg-type] - it is in memory
    with pytest.raises(FetchError, match="was changed on the disk"):
        create([VARIANT], tmp_path / "b.tar", root=carried.here.root)
    assert not (tmp_path / "b.tar").exists()
    assert not pack.exists()
    assert os.listdir(pack.parent) == ["lock"]  # noqa: PTH208 - names alone
