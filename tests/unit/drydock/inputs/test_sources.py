"""Source code by commit, from a real git repository, and source distributions by hash."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from drydock.core.errors import FetchError, InputError
from drydock.inputs import sources
from drydock.inputs.store import Store
from drydock.inputs.uv import Environment
from drydock.model.locked import LockedSource, LockedWheel
from drydock.model.variant import SourceCode

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


def test_a_commit_becomes_a_folder_of_its_files_only(repository: Path, store: Store) -> None:
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


def test_a_missing_ref_and_a_missing_repository_are_named(repository: Path, store: Store) -> None:
    with pytest.raises(InputError, match="has no tag or branch 'v9'"):
        sources.resolve_source(source(repository, ref="v9"), TARGET, store)
    absent = LockedSource(name="app", repository="file:///nowhere", commit="1" * 40, source="a test")
    with pytest.raises(FetchError, match="app: "):
        sources.folder(absent, TARGET, store)
    assert not list((store.home / "sources").glob("1*"))


def test_a_source_distribution_is_unpacked_without_its_top_level_folder(
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


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"app-1.0/a": "", "other/b": ""}, "found 2 entries"),
        ({"a": ""}, "found 1 entries"),
        ({"../a": ""}, "cannot unpack"),
        ({"app-1.0/a": "/etc/passwd"}, "cannot unpack"),
        ({"app-1.0/a": "../../../a"}, "cannot unpack"),
    ],
)
def test_a_source_distribution_without_a_single_top_level_folder_is_refused(
    store: Store, tmp_path: Path, sha256: Callable[[bytes], str], members: dict[str, str], message: str
) -> None:
    with pytest.raises(FetchError, match=message):
        sources.folder(distribution(tmp_path, store, sha256, members), TARGET, store)
    assert list((store.home / "sources").glob("[!.]*")) == []


def test_a_source_distribution_may_contain_a_folder_of_the_same_name(
    store: Store, tmp_path: Path, sha256: Callable[[bytes], str]
) -> None:
    source = distribution(tmp_path, store, sha256, {"app/app/a.py": "", "app/setup.py": "", "app/latest": "setup.py"})
    folder = sources.folder(source, TARGET, store)
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) == [
        "app",
        "app/a.py",
        "latest",
        "setup.py",
    ]


def test_a_source_distribution_that_is_not_an_archive_is_refused(store: Store, sha256: Callable[[bytes], str]) -> None:
    store.add([b"PK"], sha256(b"PK"), "app-1.0.zip")
    wheel = LockedWheel(name="app", version="1.0", filename="app-1.0.zip", size=2, sha256=sha256(b"PK"))
    with pytest.raises(FetchError, match="cannot unpack"):
        sources.folder(LockedSource(name="app", sdist=wheel, source="a test"), TARGET, store)


def distribution(folder: Path, store: Store, sha256: Callable[[bytes], str], members: dict[str, str]) -> LockedSource:
    """Store a source distribution of empty files, and of links where a target is given."""
    archive = folder / "app-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, link in members.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = (tarfile.SYMTYPE, link) if link else (tarfile.REGTYPE, "")
            tar.addfile(info)
    data = archive.read_bytes()
    store.add([data], sha256(data), archive.name)
    wheel = LockedWheel(name="app", version="1.0", filename=archive.name, size=len(data), sha256=sha256(data))
    return LockedSource(name="app", sdist=wheel, source="a test")


def checked_out(repository: Path, store: Store, **env: str) -> Path:
    pin = LockedSource(
        name="app", repository=repository.as_uri(), commit=git(repository, "rev-parse", "HEAD"), source="a test"
    )
    local = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "protocol.file.allow", "GIT_CONFIG_VALUE_0": "always"}
    return sources.folder(pin, TARGET, store, {**os.environ, **local, **env})


def test_nested_and_relative_submodules_are_fetched(repository: Path, store: Store, tmp_path: Path) -> None:
    for name, inner in (("middle", repository.name), ("outer", "middle")):
        (tmp_path / name).mkdir()
        git(tmp_path / name, "init", "--quiet")
        git(tmp_path / name, "submodule", "--quiet", "add", (tmp_path / inner).as_uri(), "third_party/inner")
        git(tmp_path / name, "config", "--file", ".gitmodules", "submodule.third_party/inner.url", f"../{inner}")
        git(tmp_path / name, "commit", "--quiet", "--all", "--message", "one")
    folder = checked_out(tmp_path / "outer", store)
    assert (folder / "third_party/inner/third_party/inner/setup.py").is_file()
    assert list(folder.rglob(".git")) == []


def test_the_users_git_configuration_does_not_change_the_files(repository: Path, store: Store, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[core]\n\tautocrlf = true\n\thooksPath = /nowhere\n")
    folder = checked_out(repository, store, GIT_CONFIG_GLOBAL=str(tmp_path / "config"))
    assert (folder / "setup.py").read_bytes() == b"print('two')\n"


def test_a_mirror_in_gits_configuration_is_used(repository: Path, store: Store, tmp_path: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    (tmp_path / "config").write_text(f'[url "{repository.as_uri()}"]\n\tinsteadOf = https://example.org/app.git\n')
    pin = LockedSource(name="app", repository="https://example.org/app.git", commit=commit, source="a test")
    env = {**os.environ, "GIT_CONFIG_GLOBAL": str(tmp_path / "config")}
    assert (sources.folder(pin, TARGET, store, env) / "setup.py").is_file()


def test_the_repository_of_a_git_hook_is_not_touched(repository: Path, store: Store, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    git(own, "init", "--quiet")
    before = sorted(own.rglob("*"))
    folder = checked_out(repository, store, GIT_DIR=str(own / ".git"), GIT_WORK_TREE=str(own))
    assert (folder / "setup.py").is_file()
    assert sorted(own.rglob("*")) == before


def test_a_missing_commit_is_named(repository: Path, store: Store) -> None:
    lost = LockedSource(name="app", repository=repository.as_uri(), commit="1" * 40, source="a test")
    with pytest.raises(FetchError, match="app: origin 1111111"):
        sources.folder(lost, TARGET, store)


def test_two_concurrent_checkouts_give_one_folder(repository: Path, store: Store) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: checked_out(repository, store), range(2))
    assert first == second
    assert (first / "setup.py").is_file()
