"""Files of the cache that another user could have written: real users, on a volume that both can write to."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from entrypoints.cache import quota  # noqa: F401 - a process of another user cannot read the checkout to import it
from entrypoints.cache.entries import read_entry_manifest, write_entry_manifest
from entrypoints.cache.lifecycle import Caches, open_download_folders
from entrypoints.cache.trust import SHARED, choose_umask, find_replacer, find_writer
from entrypoints.core.folders import locate_private_root
from entrypoints.core.records import CachePlan, Entry, Mount
from entrypoints.facts.image_files import make_program_environment
from tests.support.other_users import as_user, only_root, reachable_folder
from tests.support.sample import PROFILE, facts

OWNER, STRANGER = 10001, 20001
IMAGE = {"variant": "cpu"}
ENTRIES = (Entry("device", IMAGE), Entry("plan", {**IMAGE, "model": "m"}))

pytestmark = only_root


@pytest.fixture
def volume() -> Iterator[Path]:
    """Make a volume as Docker makes it of the image's /cache: of root, writable for group 0, with the sticky bit."""
    with reachable_folder() as folder:
        (folder / "tmp").mkdir()
        (folder / "tmp").chmod(0o1777)
        (folder / "cache").mkdir()
        (folder / "cache").chmod(0o1775)
        yield folder / "cache"


def start(volume: Path, uid: int = OWNER, sources: tuple[str, ...] = (), **env: str) -> str:
    """Start as this user until ready, and return the log."""
    whole = {"TMPDIR": str(volume.parent / "tmp"), **env}
    folders = {"HF_HOME": f"{volume}/hub", "VLLM_CACHE_ROOT": f"{volume}/compiled/plan/vllm"}
    plan = CachePlan(str(volume), str(volume), entries=ENTRIES, folders=folders, sources=sources)

    def begin() -> str:
        os.umask(choose_umask(whole))
        messages: list[str] = []
        caches = Caches(plan, locate_private_root(whole, uid), whole, messages.append, PROFILE)
        caches.open()
        placed = caches.environment(folders)
        Path(placed["VLLM_CACHE_ROOT"], "graph").touch()
        Path(placed["HF_HOME"], "weights").touch()
        caches.count()
        caches.keep()
        caches.close(patient=True)
        return "\n".join([*messages, json.dumps(placed)])

    return as_user(uid, begin)


def rewrite(volume: Path) -> Callable[[], None]:
    entry = str(volume / "compiled" / "plan")
    return lambda: write_entry_manifest(entry, read_entry_manifest(entry) or {})


def test_what_another_user_wrote_is_not_used(volume: Path) -> None:
    start(volume, **{SHARED: "1"})  # every file is group-writable, as earlier releases made them
    assert "cache hit" in start(volume, **{SHARED: "1"})
    assert as_user(STRANGER, rewrite(volume)) == "None"
    output = start(volume)
    assert "cache miss" in output
    assert "WARN    PLAN-062" in output
    assert f"uid {STRANGER} owns {volume}/compiled/plan/entry.json" in output
    assert f"{SHARED}=1" in output
    assert "cache hit" in start(volume)  # compiled again, in files that only this user can write


def test_an_unshared_volume_is_protected_from_other_users(volume: Path) -> None:
    start(volume)
    assert "PermissionError" in as_user(STRANGER, rewrite(volume))
    assert "PermissionError" in as_user(STRANGER, lambda: (volume / "compiled").rename(volume / "away"))
    output = start(volume)
    assert "cache hit" in output
    assert "WARN" not in output


def test_a_shared_volume_is_used_by_all(volume: Path) -> None:
    start(volume, **{SHARED: "1"})
    output = start(volume, STRANGER, **{SHARED: "1"})
    assert "cache hit" in output
    assert "WARN" not in output


@pytest.mark.parametrize(("whose", "downloads"), [("", "tmp/drydock-20001/hub"), ("compiled", "cache/hub.20001")])
def test_a_folder_of_another_user_is_not_used(volume: Path, whose: str, downloads: str) -> None:
    start(volume)
    os.chown(volume / whose, OWNER, 0)
    output = start(volume, STRANGER)
    assert f"uid {OWNER} owns {volume / whose}" in output
    assert json.loads(output.splitlines()[-1])["HF_HOME"] == f"{volume.parent}/{downloads}"
    assert "cache hit" in start(volume, STRANGER)  # of the private folder


def test_a_volume_that_others_can_write_to_is_protected_where_its_owner_starts(volume: Path) -> None:
    os.chown(volume, OWNER, 0)
    volume.chmod(0o775)
    start(volume)
    assert "PermissionError" in as_user(STRANGER, lambda: (volume / "compiled").rename(volume / "away"))


def test_downloads_of_another_user_are_not_used(volume: Path) -> None:
    start(volume)
    os.chown(volume / "hub" / "weights", STRANGER, 0)
    for _ in range(2):
        output = start(volume)
        assert f"uid {STRANGER} owns {volume}/hub/weights" in output
        assert json.loads(output.splitlines()[-1])["HF_HOME"] == f"{volume}/hub.{OWNER}"


def test_a_source_of_another_user_is_not_copied(volume: Path) -> None:
    seed = volume.rename(volume.parent / "seed")
    start(seed)
    volume.mkdir()
    os.chown(volume, OWNER, 0)
    os.chown(seed / "compiled" / "plan" / "entry.json", STRANGER, 0)
    output = start(volume, sources=(str(seed),))
    assert f"uid {STRANGER} owns {seed}/compiled/plan/entry.json" in output
    assert f"MB from {seed}" in output  # the other entry
    assert "cache miss: no ready entry yet; kernels hit" in output


@pytest.mark.parametrize(
    ("spoil", "who"),
    [
        (lambda entry: os.chown(entry / "deep" / "file", STRANGER, 0), f"uid {STRANGER} owns ENTRY/deep/file"),
        (lambda entry: (entry / "deep" / "file").chmod(0o664), "group 0 can write to ENTRY/deep/file, of uid 0"),
        (lambda entry: (entry / "deep").chmod(0o1777), "every user can write to ENTRY/deep, of uid 0"),
        (lambda entry: os.chown(entry, STRANGER, 0), f"uid {STRANGER} owns ENTRY"),
        (lambda entry: (entry / "out").symlink_to("/etc/passwd"), "ENTRY/out is a link that leads elsewhere"),
        (lambda entry: (entry / "in").symlink_to("deep/file"), ""),
        (lambda entry: os.chown(entry / "deep" / "file", 0, STRANGER), ""),
    ],
)
def test_who_could_have_written_a_file(tmp_path: Path, spoil: Callable[[Path], object], who: str) -> None:
    entry = tmp_path / "entry"
    (entry / "deep").mkdir(parents=True)
    (entry / "deep" / "file").touch()
    spoil(entry)
    assert find_writer(str(entry)).replace(str(entry), "ENTRY") == who


def test_a_link_is_no_entry(tmp_path: Path) -> None:
    (tmp_path / "entry").symlink_to("/etc")
    assert find_writer(str(tmp_path / "entry")).endswith("entry is a link that leads elsewhere")


@pytest.mark.parametrize(("owner", "mode", "safe"), [(0, 0o755, True), (0, 0o1777, True), (0, 0o775, False),
                                                     (STRANGER, 0o700, False)])  # fmt: skip
def test_who_could_replace_what_is_in_a_folder(tmp_path: Path, owner: int, mode: int, safe: bool) -> None:
    tmp_path.chmod(mode)
    os.chown(tmp_path, owner, 0)
    assert (find_replacer(str(tmp_path)) == "") is safe


def test_a_program_without_a_plan_gets_no_downloads_of_another_user(volume: Path) -> None:
    """A benchmark reads tokenizers of the hub's cache; with --trust-remote-code, their code."""
    env = {"TMPDIR": str(volume.parent / "tmp"), "DRYDOCK_PROFILE": str(volume / "none")}
    here = facts(mounts={"cache": Mount(str(volume), True, True, 1 << 40, 1 << 40, "ext4")}, user=(OWNER, 0))

    def begin() -> str:
        return json.dumps(open_download_folders(PROFILE, make_program_environment(env), here))

    placed = json.loads(as_user(OWNER, begin))
    assert placed["HF_HOME"] == f"{volume}/hub"
    assert placed["HOME"] == f"{volume.parent}/tmp/drydock-{OWNER}/home"
    (volume / "hub" / "weights").touch()
    os.chown(volume / "hub" / "weights", STRANGER, 0)
    assert json.loads(as_user(OWNER, begin))["HF_HOME"] == f"{volume}/hub.{OWNER}"
