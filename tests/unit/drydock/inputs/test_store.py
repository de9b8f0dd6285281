from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from drydock.core.errors import DiskFullError, FetchError
from drydock.inputs.store import Store, whole_folder
from tests.support.hashes import sha256
from tests.support.small_disk import small_disk

DATA = b"whole and right"


def test_a_file_is_stored_under_its_hash(store: Store) -> None:
    path = store.add([DATA[:5], DATA[5:]], sha256(DATA), "a.whl")
    assert path == store.path(sha256(DATA))
    assert path.read_bytes() == DATA
    assert store.has(sha256(DATA), len(DATA))
    assert list((store.home / "store" / "partial").iterdir()) == []


def test_a_truncated_file_counts_as_missing_and_is_replaced(store: Store) -> None:
    path = store.add([DATA], sha256(DATA), "a.whl")
    os.truncate(path, 3)
    assert not store.has(sha256(DATA), len(DATA))
    with store.receiving(sha256(DATA), len(DATA)) as file:
        assert file is not None
        file.write(DATA)
        store.keep(file, sha256(DATA), "a.whl")
    assert path.read_bytes() == DATA


def test_a_changed_file_is_removed_and_named(store: Store) -> None:
    path = store.add([DATA], sha256(DATA), "a.whl")
    path.write_bytes(DATA.swapcase())
    with pytest.raises(FetchError, match="was changed on the disk"):
        store.folder({"a.whl": sha256(DATA)})
    assert not path.exists()
    assert list((store.home / "contexts").iterdir()) == []


@pytest.mark.parametrize("link", [False, True])
def test_a_changed_file_of_equal_size_counts_as_missing_and_is_replaced(
    store: Store, tmp_path: Path, link: bool
) -> None:
    path = store.add([DATA], sha256(DATA), "a.whl")
    (tmp_path / "other").write_bytes(DATA.swapcase())
    if link:
        path.unlink()
        path.symlink_to(tmp_path / "other")
    else:
        path.write_bytes(DATA.swapcase())
    assert not store.has(sha256(DATA), len(DATA))
    assert store.add([DATA], sha256(DATA), "a.whl").read_bytes() == DATA
    assert store.has(sha256(DATA), len(DATA))
    assert not path.is_symlink()
    assert (tmp_path / "other").read_bytes() == DATA.swapcase()


def test_a_copied_store_that_lost_its_times_is_whole(store: Store) -> None:
    path = store.add([DATA], sha256(DATA), "a.whl")
    before = path.stat().st_mtime
    os.utime(path)
    assert store.has(sha256(DATA), len(DATA))
    assert path.stat().st_mtime == before


@pytest.mark.parametrize("change", ["link to a folder", "link to the file", "mode"])
def test_a_changed_context_is_made_again(store: Store, change: str) -> None:
    stored = store.add([DATA], sha256(DATA), "a.whl")
    folder = store.folder({"a.whl": sha256(DATA)}, {"list": b"a"})
    if change == "link to a folder":
        (folder / "more").symlink_to("/etc")
    elif change == "link to the file":
        (folder / "a.whl").unlink()
        (folder / "a.whl").symlink_to(stored)
    else:
        (folder / "list").chmod(0o755)
    assert store.folder({"a.whl": sha256(DATA)}, {"list": b"a"}) == folder
    assert sorted(path.name for path in folder.iterdir()) == ["a.whl", "list"]
    assert not (folder / "a.whl").is_symlink()
    assert stat.S_IMODE((folder / "list").stat().st_mode) == 0o644


def test_a_folder_contains_links_and_texts_under_nested_names(store: Store) -> None:
    stored = store.add([DATA], sha256(DATA), "a.whl")
    folder = store.folder({"torch/a.whl": sha256(DATA)}, {"torch/requirements.txt": b"a==1\n"})
    assert (folder / "torch" / "a.whl").samefile(stored)
    assert (folder / "torch" / "requirements.txt").read_text() == "a==1\n"
    assert stat.S_IMODE((folder / "torch" / "requirements.txt").stat().st_mode) == 0o644
    assert store.folder({"torch/a.whl": sha256(DATA)}, {"torch/requirements.txt": b"a==1\n"}) == folder
    assert store.folder({"torch/a.whl": sha256(DATA)}, {"torch/requirements.txt": b"a==2\n"}) != folder


def test_files_of_equal_name_and_size_differ_in_modification_time(store: Store) -> None:
    """Otherwise BuildKit would treat the second as the first, and build with the old content."""
    one, two = store.folder({}, {"list": b"a==1\n"}), store.folder({}, {"list": b"a==2\n"})
    assert (one / "list").stat().st_mtime != (two / "list").stat().st_mtime


def test_an_executable_is_a_copy_and_the_stored_file_does_not_change(store: Store) -> None:
    stored = store.add([DATA], sha256(DATA), "uv")
    tool = store.folder({"uv": sha256(DATA)}, executable={"uv"}) / "uv"
    assert stat.S_IMODE(tool.stat().st_mode) == 0o755
    assert stat.S_IMODE(stored.stat().st_mode) == 0o644


def test_an_interrupted_folder_is_removed(tmp_path: Path) -> None:
    def half() -> None:
        with whole_folder(tmp_path / "final") as temporary:
            (temporary / "half").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert list(tmp_path.iterdir()) == []


def test_a_failure_that_looks_like_a_faster_run_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError), whole_folder(tmp_path / "final") as temporary:
        temporary.mkdir()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_faster_run_stays(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "final") as slow:
        (slow / "slow").touch()
        with whole_folder(tmp_path / "final") as fast:
            (fast / "fast").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["final", "fast"]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_damaged_folder_is_replaced_once_by_the_fastest_run(tmp_path: Path, is_damaged: bool) -> None:
    final = tmp_path / "final"
    if is_damaged:
        final.mkdir()
        (final / "damaged").touch()

    def is_whole(folder: Path) -> bool:
        return not (folder / "damaged").exists()

    with whole_folder(final, replace_unless=is_whole) as slow:
        (slow / "slow").touch()
        with whole_folder(final, replace_unless=is_whole) as fast:
            (fast / "fast").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["final", "fast"]


def test_runs_that_need_the_same_folder_at_once_all_get_it_whole(tmp_path: Path) -> None:
    texts = {f"{number}.py": bytes(20_000) for number in range(12)}

    def read_names(store: Store, delay: float) -> set[str]:
        time.sleep(delay)
        return {path.name for path in store.folder({}, texts).iterdir()}

    with ThreadPoolExecutor(4) as pool:
        for number in range(50):  # before each run kept what a faster one had made, one of five stores failed
            store = Store(tmp_path / str(number))
            delays = [run * 0.0007 for run in range(4)]
            assert list(pool.map(partial(read_names, store), delays)) == [texts.keys()] * 4


def test_folders_of_killed_runs_are_removed_and_those_of_live_runs_are_not(tmp_path: Path) -> None:
    dead = tmp_path / ".final.dead"
    dead.mkdir()
    os.utime(dead, (0, 0))
    with whole_folder(tmp_path / "final") as living:
        os.utime(living, (0, 0))
        with whole_folder(tmp_path / "final"):
            assert living.is_dir()
            assert not dead.exists()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "64k") as disk:
        yield disk


def test_a_full_disk_is_an_error_and_complete_files_are_kept(tiny_disk: Path) -> None:
    store = Store(tiny_disk)
    small, big = b"small", bytes(1 << 17)
    store.add([small], sha256(small), "small")
    with pytest.raises(DiskFullError, match="no space left"):
        store.add([big], sha256(big), "big")
    assert store.has(sha256(small), len(small))
    assert not store.has(sha256(big))
