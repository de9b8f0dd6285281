"""Source code by commit, from a real git repository, and by hash."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from drydock import sources
from drydock.errors import FetchError, InputError
from drydock.locked import LockedSource, LockedWheel
from drydock.model import SourceCode
from drydock.resolve import Environment
from drydock.store import Store

TARGET = Environment("3.11", "x86_64", 36)


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always")
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Make a repository with a branch, an annotated tag and an executable file."""
    folder = tmp_path / "upstream"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    (folder / "setup.py").write_text("print('one')\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "one")
    git(folder, "tag", "--annotate", "v1", "--message", "one")
    (folder / "setup.py").write_text("print('two')\n")
    git(folder, "commit", "--quiet", "--all", "--message", "two")
    return folder


def source(repository: Path, **changes: str | None) -> SourceCode:
    plain = {"name": "app", "repository": repository.as_uri(), "ref": "v1", "source": "a test"}
    return SourceCode.model_validate({**plain, **changes})


@pytest.mark.parametrize(("ref", "revision"), [("v1", "v1^{commit}"), ("main", "main")])
def test_a_tag_or_branch_becomes_its_commit(repository: Path, store: Store, ref: str, revision: str) -> None:
    pin = sources.resolve_source(source(repository, ref=ref), TARGET, store)

    assert (pin.commit, pin.verified) == (git(repository, "rev-parse", revision), True)


def test_a_commit_becomes_a_folder_of_its_files_alone(repository: Path, store: Store) -> None:
    commit = git(repository, "rev-parse", "v1^{commit}")
    pin = sources.resolve_source(source(repository, commit=commit), TARGET, store)
    assert not sources.stored(pin, store)
    folder = sources.folder(pin, TARGET, store)

    assert sorted(path.name for path in folder.iterdir()) == ["run.sh", "setup.py"]
    assert (folder / "setup.py").read_text() == "print('one')\n"
    assert os.access(folder / "run.sh", os.X_OK)
    assert sources.stored(pin, store)
    repository.rename(repository.parent / "gone")
    assert sources.folder(pin, TARGET, store) == folder


def test_a_ref_that_is_not_there_and_a_repository_that_is_not_there_are_named(repository: Path, store: Store) -> None:
    with pytest.raises(InputError, match="has no tag or branch 'v9'"):
        sources.resolve_source(source(repository, ref="v9"), TARGET, store)
    absent = LockedSource(name="app", repository="file:///nowhere", commit="1" * 40, source="a test")
    with pytest.raises(FetchError, match="app: "):
        sources.folder(absent, TARGET, store)
    assert not list((store.home / "sources").glob("1*"))


def test_a_source_distribution_is_unpacked_without_its_outer_folder(
    store: Store, tmp_path: Path, sha256: object
) -> None:
    archive = tmp_path / "app-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        info = tarfile.TarInfo("app-1.0/setup.py")
        info.size = 2
        tar.addfile(info, io.BytesIO(b"1\n"))
    data = archive.read_bytes()
    assert callable(sha256)
    store.add([data], sha256(data), archive.name)
    wheel = LockedWheel(name="app", version="1.0", filename=archive.name, size=len(data), sha256=sha256(data))
    folder = sources.folder(LockedSource(name="app", sdist=wheel, source="a test"), TARGET, store)

    assert [path.name for path in folder.iterdir()] == ["setup.py"]
