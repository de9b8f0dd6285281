"""Source code by commit, from a real git repository, and source distributions by hash."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from drydock.core.errors import FetchError, InputError
from drydock.inputs import git_objects, source_tree, sources
from drydock.inputs.git import network_environment, run_limited_git
from drydock.inputs.store import Store
from drydock.inputs.uv import Environment
from drydock.model.locked import LockedSource, LockedWheel
from drydock.model.variant import SourceCode
from tests.support.fake_registry import Answer, Fake, Seen
from tests.support.git import git
from tests.support.hashes import sha256
from tests.support.loopback import Loopback

TARGET = Environment("3.11", "x86_64", 36)


class Member(NamedTuple):
    """A member of an archive: a file of so many bytes, or a link if it has a target."""

    name: str
    target: str = ""
    size: int = 0
    kind: bytes = tarfile.SYMTYPE


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
    assert not sources.is_source_stored(pin, store)
    folder = sources.make_source_folder(pin, TARGET, store)

    assert sorted(path.name for path in folder.iterdir()) == ["run.sh", "setup.py"]
    assert (folder / "setup.py").read_text() == "print('one')\n"
    assert os.access(folder / "run.sh", os.X_OK)
    assert sources.is_source_stored(pin, store)
    repository.rename(repository.parent / "gone")
    assert sources.make_source_folder(pin, TARGET, store) == folder


def test_a_commit_is_lost_when_its_branch_no_longer_leads_to_it(repository: Path) -> None:
    main_source, older = source(repository, ref="main"), git(repository, "rev-parse", "v1^{commit}")
    newest = git(repository, "rev-parse", "main")
    assert not sources.is_lost(main_source, newest)
    assert not sources.is_lost(main_source, older)
    git(repository, "tag", "--delete", "v1")
    assert not sources.is_lost(main_source, older)  # in the history of its branch

    git(repository, "commit", "--quiet", "--amend", "--message", "again")
    assert sources.is_lost(main_source, newest)
    assert not sources.is_lost(main_source, older)
    assert sources.is_lost(source(repository, ref="v1"), newest)
    assert not sources.is_lost(source(repository, ref=""), newest)
    git(repository, "tag", "kept", newest)
    assert not sources.is_lost(main_source, newest)


def test_a_missing_ref_and_a_missing_repository_are_named(repository: Path, store: Store) -> None:
    with pytest.raises(InputError, match="has no tag or branch 'v9'"):
        sources.resolve_source(source(repository, ref="v9"), TARGET, store)
    absent = LockedSource(name="app", repository="file:///nowhere", commit="1" * 40, source="a test")
    with pytest.raises(FetchError, match="app: "):
        sources.make_source_folder(absent, TARGET, store)
    assert not list((store.home / "sources").glob("1*"))


def test_a_source_distribution_may_contain_a_folder_of_the_same_name(store: Store, tmp_path: Path) -> None:
    source = distribution(
        tmp_path, store, Member("app/app/a.py"), Member("app/setup.py"), Member("app/latest", "setup.py")
    )
    folder = sources.make_source_folder(source, TARGET, store)
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) == [
        "app",
        "app/a.py",
        "latest",
        "setup.py",
    ]


@pytest.mark.parametrize("packing", ["bz2", "gz"])
def test_a_release_archive_is_fetched_by_its_hash_and_unpacked(
    server: Loopback, store: Store, tmp_path: Path, packing: Literal["bz2", "gz"]
) -> None:
    path = tmp_path / f"app-1.tar.{packing}"
    (tmp_path / "configure").write_text("#!/bin/sh\n")
    with tarfile.open(path, f"w:{packing}") as tar:
        tar.add(tmp_path / "configure", "app-1/configure")
    server.files[f"/{path.name}"] = path.read_bytes()
    url, key = f"{server.url}/{path.name}", sha256(path.read_bytes())
    archive_source = SourceCode(name="app", url=url, sha256=key, source="a test")

    pin = sources.resolve_source(archive_source, TARGET, store)
    assert (pin.url, pin.pin, pin.verified) == (url, key, False)
    assert [path.name for path in sources.make_source_folder(pin, TARGET, store).iterdir()] == ["configure"]
    assert sources.is_source_stored(pin, store)
    assert sources.resolve_source(archive_source, TARGET, store).verified
    sources.fetch_source(pin, TARGET, store)
    assert len(server.ranges(f"/{path.name}")) == 1


def test_a_release_archive_with_another_hash_is_refused(server: Loopback, store: Store) -> None:
    server.files["/app-1.tar.gz"] = b"other"
    pin = LockedSource(name="app", url=f"{server.url}/app-1.tar.gz", sha256="0" * 64, source="a test")
    with pytest.raises(FetchError, match=r"app-1\.tar\.gz"):
        sources.make_source_folder(pin, TARGET, store)


def distribution(folder: Path, store: Store, *members: Member) -> LockedSource:
    archive = folder / "app-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, link, size, kind in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = (kind, link, 0) if link else (tarfile.REGTYPE, "", size)
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    return stored_archive(store, archive.read_bytes())


def stored_archive(store: Store, data: bytes) -> LockedSource:
    store.add([data], sha256(data), "app-1.0.tar.gz")
    file: dict[str, Any] = {"filename": "app-1.0.tar.gz", "size": len(data), "sha256": sha256(data)}
    return LockedSource(name="app", sdist=LockedWheel(name="app", version="1.0", **file), source="a test")


def checked_out(repository: Path, store: Store, **env: str) -> Path:
    local = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "protocol.file.allow", "GIT_CONFIG_VALUE_0": "always"}
    return sources.make_source_folder(commit_of(repository), TARGET, store, {**os.environ, **local, **env})


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
    assert (sources.make_source_folder(pin, TARGET, store, env) / "setup.py").is_file()


def test_the_repository_of_a_git_hook_is_not_touched(repository: Path, store: Store, tmp_path: Path) -> None:
    hook_repository = tmp_path / "own"
    hook_repository.mkdir()
    git(hook_repository, "init", "--quiet")
    before = sorted(hook_repository.rglob("*"))
    folder = checked_out(repository, store, GIT_DIR=str(hook_repository / ".git"), GIT_WORK_TREE=str(hook_repository))
    assert (folder / "setup.py").is_file()
    assert sorted(hook_repository.rglob("*")) == before


def test_two_concurrent_checkouts_give_one_folder(repository: Path, store: Store) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: checked_out(repository, store), range(2))
    assert first == second
    assert (first / "setup.py").is_file()


# --- attacks and faults ---------------------------------------------------------------------------------------------


def commit_of(repository: Path) -> LockedSource:
    return LockedSource(
        name="app", repository=repository.as_uri(), commit=git(repository, "rev-parse", "HEAD"), source="a test"
    )


@pytest.mark.parametrize("change", ["content", "same size and time", "new file", "mode", "link", "whole folder"])
def test_a_changed_tree_of_a_commit_is_unpacked_again(repository: Path, store: Store, change: str) -> None:
    folder = checked_out(repository, store)
    before = folder.stat().st_mtime_ns
    file, old_stat = folder / "setup.py", (folder / "setup.py").stat()
    if change == "content":
        file.write_text("import evil\n")
    elif change == "same size and time":
        file.write_text("print('TWO')\n")
        os.utime(file, ns=(old_stat.st_atime_ns, old_stat.st_mtime_ns))
    elif change == "new file":
        (folder / "sitecustomize.py").write_text("import evil\n")
    elif change == "mode":
        file.chmod(0o755)
    elif change == "link":
        file.unlink()
        file.symlink_to("/etc/passwd")
    else:
        folder.rename(folder.with_name("elsewhere"))
        folder.symlink_to("elsewhere")
        file.write_text("import evil\n")
    repository.rename(repository.parent / "gone")

    again = sources.make_source_folder(pinned_as(folder.name), TARGET, store)
    assert again == folder
    assert not folder.is_symlink()
    assert sorted(path.name for path in folder.iterdir()) == ["run.sh", "setup.py"]
    assert (folder / "setup.py").read_bytes() == b"print('two')\n"
    assert (file.lstat().st_mode, file.lstat().st_mtime_ns) == (old_stat.st_mode, old_stat.st_mtime_ns)
    assert folder.stat().st_mtime_ns == before


def pinned_as(commit: str) -> LockedSource:
    return LockedSource(name="app", repository="file:///nowhere", commit=commit, source="a test")


def test_objects_of_another_commit_prove_nothing(repository: Path, store: Store) -> None:
    checked_out(repository, store)
    (repository / "setup.py").write_text("import evil\n")
    git(repository, "commit", "--quiet", "--all", "--message", "evil")
    planted, evil = commit_of(repository), git(repository, "rev-parse", "HEAD~1")
    git_objects.pack_path(str(planted.commit), store).write_bytes(git_objects.pack_path(evil, store).read_bytes())

    assert not git_objects.has_all_objects("app", str(planted.commit), Store(store.home), os.environ)
    assert not git_objects.pack_path(str(planted.commit), store).exists()
    assert (sources.make_source_folder(planted, TARGET, store) / "setup.py").read_text() == "import evil\n"


def test_a_damaged_pack_is_noticed_and_fetched_again(repository: Path, store: Store) -> None:
    pin = commit_of(repository)
    folder = sources.make_source_folder(pin, TARGET, store)
    pack = git_objects.pack_path(str(pin.commit), store)
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)

    with pytest.raises(FetchError, match="not the objects of commit") as caught:
        sources.make_source_folder(pin, TARGET, store)
    assert "run the same command" in caught.value.hint
    assert sources.make_source_folder(pin, TARGET, store) == folder


@pytest.mark.parametrize("fault", ["killed", "absent"])
def test_a_git_that_cannot_work_does_not_cost_the_stored_objects(
    repository: Path, store: Store, tmp_path: Path, fault: str
) -> None:
    pin = commit_of(repository)
    sources.make_source_folder(pin, TARGET, store)
    if fault == "killed":
        real = shutil.which("git")
        script = f'#!/bin/sh\ncase "$*" in *index-pack*) kill -9 $$;; esac\nexec {real} "$@"\n'
        (tmp_path / "git").write_text(script)
        (tmp_path / "git").chmod(0o755)
    with pytest.raises(FetchError, match=r"killed by signal 9|git is not installed"):
        sources.make_source_folder(pin, TARGET, store, {"PATH": str(tmp_path)})
    assert git_objects.has_all_objects("app", str(pin.commit), store, os.environ)


def test_a_pack_that_lacks_a_submodule_is_refused(repository: Path, store: Store, tmp_path: Path) -> None:
    outer = with_submodule(tmp_path / "outer", repository.as_uri())
    checked_out(outer, store)
    pack = git_objects.pack_path(str(commit_of(outer).commit), store)
    ids = git(outer, "rev-list", "--objects", "--no-object-names", "HEAD")
    result = subprocess.run(
        ["git", "pack-objects", "--stdout"], cwd=outer, input=ids.encode(), capture_output=True, check=True
    )
    other_store = Store(tmp_path / "other")
    with pytest.raises(FetchError, match="not the objects of commit"):
        git_objects.add_objects("a bundle", pack.stem, [result.stdout], other_store)
    assert not git_objects.pack_path(pack.stem, other_store).exists()
    git_objects.add_objects("a bundle", pack.stem, [pack.read_bytes()], other_store)
    repository.rename(tmp_path / "gone")
    assert (
        sources.make_source_folder(pinned_as(pack.stem), TARGET, other_store) / "third_party/inner/setup.py"
    ).is_file()


def with_submodule(folder: Path, url: str, **settings: str) -> Path:
    inner = git(Path(url.removeprefix("file://")), "rev-parse", "HEAD")
    folder.mkdir()
    git(folder, "init", "--quiet")
    for name, value in {"path": "third_party/inner", "url": url, **settings}.items():
        git(folder, "config", "--file", ".gitmodules", f"submodule.inner.{name}", value)
    git(folder, "add", ".gitmodules")
    git(folder, "update-index", "--add", "--cacheinfo", f"160000,{inner},third_party/inner")
    git(folder, "commit", "--quiet", "--message", "one")
    return folder


def test_a_submodule_that_upstream_does_not_update_stays_an_empty_folder(
    repository: Path, store: Store, tmp_path: Path
) -> None:
    folder = checked_out(with_submodule(tmp_path / "outer", repository.as_uri(), update="none"), store)
    assert list((folder / "third_party" / "inner").iterdir()) == []


@pytest.mark.parametrize("url", ["ext::sh -c 'touch {mark}'", "--upload-pack=touch {mark}", "file://{repository}"])
def test_the_address_of_a_submodule_runs_nothing(repository: Path, store: Store, tmp_path: Path, url: str) -> None:
    mark = tmp_path / "mark"
    outer = with_submodule(tmp_path / "outer", repository.as_uri())
    git(outer, "config", "--file", ".gitmodules", "submodule.inner.url", url.format(mark=mark, repository=repository))
    git(outer, "add", ".gitmodules")
    git(outer, "commit", "--quiet", "--allow-empty", "--message", "two")
    allowed = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "protocol.ext.allow", "GIT_CONFIG_VALUE_0": "always"}
    with pytest.raises(FetchError, match="app: "):
        sources.make_source_folder(commit_of(outer), TARGET, store, {**os.environ, **allowed})
    assert not mark.exists()


@pytest.mark.parametrize(
    ("repository", "commit"),
    [("{upstream}", "--upload-pack=touch {mark};"), ("--upload-pack=touch {mark};", "1" * 40)],
)
def test_a_lock_runs_no_command(repository: str, commit: str, store: Store, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "upstream").mkdir()
    git(tmp_path / "upstream", "init", "--quiet")
    words = {"mark": mark, "upstream": tmp_path / "upstream"}
    pin_fields = {"name": "app", "repository": repository.format(**words), "commit": commit.format(**words)}
    pin = LockedSource.model_construct(**pin_fields, sdist=None, source="a record that skipped validation")
    with pytest.raises((FetchError, InputError)):
        sources.make_source_folder(pin, TARGET, store)
    tag_source = SourceCode.model_construct(
        name="app", repository=pin.repository, ref="--upload-pack=touch", source="as above"
    )
    with pytest.raises((FetchError, InputError)):
        sources.find_ref_commit(tag_source)
    assert not mark.exists()


def tree_of(folder: Path, *lines: str) -> str:
    """Return the commit of a tree that `git add` would not make, in a new repository."""
    folder.mkdir()
    git(folder, "init", "--quiet")
    blob = git_input(folder, "hash-object", "-w", "--stdin", data="evil\n")
    text = "".join(f"{line.format(blob=blob)}\n" for line in lines).replace("  ", "\t")
    tree = git_input(folder, "mktree", "--missing", data=text)
    return git(folder, "commit-tree", tree, "-m", "one")


def git_input(folder: Path, *words: str, data: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=folder, input=data, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.parametrize("line", ["100644 blob {blob}  .git", "100644 blob {blob}  ..", "100644 blob {blob}  .GIT"])
def test_a_commit_with_a_path_that_leads_out_is_refused(store: Store, tmp_path: Path, line: str) -> None:
    commit = tree_of(tmp_path / "bad", line)
    git(tmp_path / "bad", "update-ref", "HEAD", commit)
    with pytest.raises(FetchError, match="lead out of its folder"):
        sources.make_source_folder(commit_of(tmp_path / "bad"), TARGET, store)
    assert not (store.home / "sources" / commit).exists()


@pytest.mark.parametrize("limit", ["MOST_FILES", "MOST_BYTES"])
def test_a_source_distribution_is_bounded(
    store: Store, tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_tree, limit, 1)
    with pytest.raises(FetchError, match="more than"):
        sources.make_source_folder(
            distribution(tmp_path, store, Member("app/a", size=9), Member("app/b", size=9)), TARGET, store
        )


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([Member("app/a"), Member("other/b")], "found 2 entries"),
        ([Member("a")], "found 1 entries"),
        ([Member("../a")], "cannot unpack"),
        ([Member("app/a", "/etc/passwd")], "cannot unpack"),
        ([Member("app/a", "../../../a")], "cannot unpack"),
        ([Member("app/x", "."), Member("app/x/setup.py", size=1)], "cannot unpack"),
        ([Member("app/a", size=1), Member("app/x", "a"), Member("app/x", size=1)], "cannot unpack"),
        ([Member("app", ".")], "cannot unpack|expected one folder"),
        ([Member("app/x", "null", kind=tarfile.CHRTYPE)], "cannot unpack"),
        ([Member("app/x", "fifo", kind=tarfile.FIFOTYPE)], "cannot unpack"),
        ([Member("app/x", "/etc/passwd", kind=tarfile.LNKTYPE)], "cannot unpack"),
        ([Member("app/" + "a" * (2 << 20), size=1)], "cannot unpack"),
    ],
    ids=["two tops", "no folder", "above", "link out", "link above", "through", "over", "top", "device", "fifo",
         "hard link out", "header"],
)  # fmt: skip
def test_a_source_distribution_is_one_folder_and_stays_in_it(
    store: Store, tmp_path: Path, members: list[Member], message: str
) -> None:
    with pytest.raises(FetchError, match=message):
        sources.make_source_folder(distribution(tmp_path, store, *members), TARGET, store)
    assert list((store.home / "sources").glob("[!.]*")) == []


@pytest.mark.parametrize("length", [2, 60])
def test_what_is_no_whole_archive_is_refused(store: Store, tmp_path: Path, length: int) -> None:
    pin = distribution(tmp_path, store, Member("app/a", size=9000)).sdist
    assert pin
    part = stored_archive(store, store.path(pin.sha256).read_bytes()[:length])
    with pytest.raises(FetchError, match="cannot unpack"):
        sources.make_source_folder(part, TARGET, store)


def test_a_planted_tree_of_a_source_distribution_is_replaced(store: Store, tmp_path: Path) -> None:
    source = distribution(tmp_path, store, Member("app-1.0/setup.py"))
    assert source.sdist
    planted = store.home / "sources" / source.sdist.sha256
    planted.mkdir(parents=True)
    (planted / "setup.py").write_text("import evil\n")
    assert sources.make_source_folder(source, TARGET, store) == planted
    assert (planted / "setup.py").read_bytes() == b""


def test_an_exchanged_source_distribution_is_refused(store: Store, tmp_path: Path) -> None:
    source = distribution(tmp_path, store, Member("app-1.0/setup.py"))
    assert source.sdist
    path = store.path(source.sdist.sha256)
    old_stat, data = path.stat(), bytearray(path.read_bytes())
    data[4:8] = b"\1\2\3\4"  # the time in gzip's header: the archive stays a valid one
    path.write_bytes(data)
    os.utime(path, ns=(old_stat.st_atime_ns, old_stat.st_mtime_ns))
    with pytest.raises(FetchError, match="changed on the disk"):
        sources.make_source_folder(source, TARGET, store)
    assert not path.exists()


def test_a_pack_does_not_depend_on_how_the_server_packs(repository: Path, tmp_path: Path) -> None:
    pin, stores = commit_of(repository), (Store(tmp_path / "one"), Store(tmp_path / "two"))
    first = sources.fetch_source(pin, TARGET, stores[0])
    git(repository, "-c", "pack.compression=0", "repack", "-adfq")
    assert sources.fetch_source(pin, TARGET, stores[1]).read_bytes() == first.read_bytes()


def test_a_tree_always_has_the_same_modes_and_times(repository: Path, tmp_path: Path) -> None:
    folders = []
    for name, umask in (("one", 0o077), ("two", 0o000)):
        before = os.umask(umask)
        try:
            folders.append(checked_out(repository, Store(tmp_path / name)))
        finally:
            os.umask(before)
    assert source_tree.is_same_tree(*folders)
    (folders[0] / "setup.py").touch()
    assert not source_tree.is_same_tree(*folders)


def test_another_commit_gives_its_files_another_time(repository: Path, store: Store) -> None:
    first = checked_out(repository, store)
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "three")
    second = checked_out(repository, store)
    assert (first / "setup.py").stat().st_mtime != (second / "setup.py").stat().st_mtime


@pytest.mark.parametrize(
    ("base", "url", "expected"),
    [
        ("https://h.example/a/b.git", "../c.git", "https://h.example/a/c.git"),
        ("https://h.example/a/b/", "../../x/y", "https://h.example/x/y"),
        ("https://h.example/a/b", "./c", "https://h.example/a/b/c"),
        ("git@h.example:a/b.git", "../c", "git@h.example:a/c"),
        ("git@h.example:b.git", "../c", "git@h.example:c"),
        ("https://h.example/a/", "https://o.example/c", "https://o.example/c"),
    ],
)
def test_a_relative_submodule_belongs_to_its_repository(base: str, url: str, expected: str) -> None:
    assert git_objects.join_submodule_url(base, url) == expected


# --- what source code lacks -----------------------------------------------------------------------------------------

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'7' * 64}\nsize 12345\n"


def test_a_pointer_of_git_lfs_in_a_commit_is_refused_with_the_remedy(repository: Path, store: Store) -> None:
    (repository / "data").mkdir()
    (repository / "data" / "k.bin").write_text(POINTER)
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "kernels")

    with pytest.raises(FetchError, match=r"app: found pointers of Git LFS, expected the files: data/k\.bin\n") as error:
        checked_out(repository, store)

    assert "git lfs pull" in error.value.hint
    assert not list((store.home / "sources").glob("[!.]*"))


def test_pointers_of_git_lfs_in_an_archive_are_counted(store: Store) -> None:
    names = [f"app/{number}.bin" for number in range(7)]
    source = stored_archive(store, packed(dict.fromkeys(names, POINTER)))

    with pytest.raises(FetchError, match=r"0\.bin, 1\.bin, 2\.bin, 3\.bin, 4\.bin and 2 more"):
        sources.make_source_folder(source, TARGET, store)


@pytest.mark.parametrize(
    ("target", "warned"), [("/etc/passwd", True), ("../../outside", True), ("../setup.py", False), ("absent", False)]
)
def test_a_link_that_leaves_the_source_code_is_said(
    repository: Path, store: Store, capsys: pytest.CaptureFixture[str], target: str, warned: bool
) -> None:
    (repository / "deep").mkdir()
    (repository / "deep" / "link").symlink_to(target)
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "link")

    folder = checked_out(repository, store)

    warning = f"warning: app: deep/link links to {target}, which is not in the source code"
    assert (warning in capsys.readouterr().err) is warned
    assert (folder / "deep" / "link").readlink() == Path(target)


def test_an_archive_without_its_submodules_is_said(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    modules = '[submodule "a"]\n\tpath = third_party/a\n\turl = ../a\n[submodule "b"]\n\tpath = b\n'
    source = stored_archive(store, packed({"app/.gitmodules": modules, "app/third_party/a/": "", "app/b/file": "x"}))

    sources.make_source_folder(source, TARGET, store)

    assert "the archive lacks the submodule third_party/a, whose folder is empty" in (stderr := capsys.readouterr().err)
    assert "submodule b" not in stderr


def packed(files: dict[str, str]) -> bytes:
    """Return a tar.gz of texts by name; a name that ends with a slash is a folder's."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.size = tarfile.REGTYPE, 0o644, len(text)
            if name.endswith("/"):
                member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.mark.parametrize("status", [429, 503, 509])
def test_a_busy_host_is_asked_again_after_the_time_that_it_names(
    status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("drydock.core.http.time.sleep", pauses.append)
    refs = f"{'a' * 40}\trefs/heads/main\n".encode()

    def answer(request: Seen) -> Answer:
        if len(fake.seen) < 3:
            return Answer(status, {"Retry-After": "7"})
        return Answer(200, body=b"ref: refs/heads/main\n" if request.path.endswith("HEAD") else refs)

    with Fake(answer) as fake:
        words = ("ls-remote", "--end-of-options", f"http://{fake.host}/r.git", "HEAD")
        env = network_environment({**os.environ, "HOME": str(tmp_path)})
        assert run_limited_git(words, "code", env) == f"{'a' * 40}\tHEAD\n".encode()
    assert pauses.count(7.0) == 1
