"""Entries of the compile cache: judge, lock, copy, quarantine."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from entrypoints.cache.entries import (
    CRASHES,
    FILL,
    HIT,
    Opened,
    Unusable,
    find_nearest_entry,
    is_in_use,
    judge_entry,
    list_entries,
    open_entry,
    parse_manifest,
    quarantine_entry,
    write_entry_manifest,
)
from entrypoints.core.records import Entry
from tests.support.damage import survives_damage

FACTORS = {"variant": "cpu", "model": "m", "--dtype": "bfloat16"}
ENTRY = Entry("cpu-1-2", FACTORS)
READY: dict[str, Any] = {"factors": FACTORS, "attempts": 0, "ready": 1700000000, "used": 1700000000}


def put(root: Path, manifest: dict[str, Any] | None = READY, name: str = ENTRY.name, **contents: str) -> Path:
    path = root / "compiled" / name
    path.mkdir(parents=True)
    for file, text in contents.items():
        (path / file).write_text(text)
    if manifest is not None:
        write_entry_manifest(str(path), manifest)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def opened(root: Path, *sources: Path, messages: list[str] | None = None) -> Opened:
    return open_entry(str(root), ENTRY, map(str, sources), [] if messages is None else messages, [])


@pytest.mark.parametrize(
    ("manifest", "kind", "why"),
    [
        (READY, "hit", ""),
        ({**READY, "ready": 0}, "fill", "did not get ready"),
        ({**READY, "attempts": CRASHES}, "reject", "3 starts in a row"),
        ({**READY, "factors": {**FACTORS, "model": "other"}}, "reject", "model was other, is m"),
        (None, "reject", "cannot be read"),
        ({}, "reject", "it has no entry.json"),
    ],
)
def test_an_entry_is_judged_by_its_manifest(manifest: dict[str, Any] | None, kind: str, why: str) -> None:
    verdict = judge_entry(manifest, FACTORS, empty=False)
    assert verdict.kind == kind
    assert why in verdict.why


def test_a_missing_entry_is_filled(tmp_path: Path) -> None:
    entry = opened(tmp_path)
    assert (entry.verdict.kind, entry.manifest) == (FILL, {})
    assert is_in_use(entry.path)


def test_a_ready_entry_is_used_by_several_servers(tmp_path: Path) -> None:
    put(tmp_path)
    first, second = opened(tmp_path), opened(tmp_path)
    assert first.verdict.kind == second.verdict.kind == HIT
    assert first.path == second.path


def test_an_entry_is_filled_by_one_server_only(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(Unusable, match="another server is filling it"):
        opened(tmp_path)


@pytest.mark.parametrize(
    "poison",
    [
        {"manifest": {"factors": "?"}},
        {"manifest": None, "kernel": "half"},
        {"manifest": {**READY, "factors": {"model": "foreign"}}},
        {"manifest": {**READY, "attempts": CRASHES}},
    ],
)
def test_an_untrusted_entry_is_quarantined_with_one_warning(tmp_path: Path, poison: dict[str, Any]) -> None:
    put(tmp_path, **poison)
    messages: list[str] = []
    entry = opened(tmp_path, messages=messages)
    assert entry.verdict.kind == FILL
    assert names(Path(entry.path)) == ["lock"]
    assert len(messages) == 1
    assert messages[0].startswith(f"WARN {entry.path}: ")
    assert len(list((tmp_path / "quarantine").iterdir())) == 1


def test_empty_folders_of_an_interrupted_start_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "compiled" / ENTRY.name / "triton").mkdir(parents=True)
    assert opened(tmp_path).verdict == (FILL, "")


def test_a_foreign_owners_entry_is_unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)  # as for any user but root
    with pytest.raises(Unusable, match=f"owned by uid {os.getuid()}; uid .* cannot write to it"):
        opened(tmp_path)


def test_a_file_in_an_entrys_place_is_unusable(tmp_path: Path) -> None:
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled" / ENTRY.name).write_text("")
    with pytest.raises(Unusable, match="found a file"):
        opened(tmp_path)


def test_an_entry_is_copied_from_a_folder_that_has_it_ready(tmp_path: Path) -> None:
    put(tmp_path / "none", {**READY, "ready": 0}, kernel="unfinished")
    put(tmp_path / "other", {**READY, "factors": {}}, kernel="foreign")
    source = put(tmp_path / "volume", kernel="right", lock="")
    messages: list[str] = []
    entry = opened(tmp_path / "work", tmp_path / "none", tmp_path / "other", tmp_path / "volume", messages=messages)
    assert entry.verdict.kind == HIT
    assert Path(entry.path, "kernel").read_text() == "right"
    assert messages[-1].startswith("cache: copied ")
    assert names(tmp_path / "work" / "compiled") == [ENTRY.name]
    assert not is_in_use(str(source))


def test_an_interrupted_copy_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "volume", kernel="right")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("entrypoints.cache.entries.copy_folder", full)
    messages: list[str] = []
    entry = opened(tmp_path / "work", tmp_path / "volume", messages=messages)
    assert entry.verdict.kind == FILL
    assert "No space left on device" in messages[0]
    assert names(tmp_path / "work" / "compiled") == [ENTRY.name]


def test_a_quarantined_entry_is_complete(tmp_path: Path) -> None:
    path = put(tmp_path, kernel="poison")
    target = Path(quarantine_entry(str(path)))
    assert not path.exists()
    assert (target / "kernel").read_text() == "poison"


def test_the_nearest_entry_differs_in_the_fewest_factors(tmp_path: Path) -> None:
    put(tmp_path, {**READY, "factors": {**FACTORS, "--dtype": "float16"}}, "near")
    put(tmp_path, {**READY, "factors": {**FACTORS, "--dtype": "float16", "model": "other"}}, "far")
    put(tmp_path, {**READY, "ready": 0}, "unfinished")
    put(tmp_path, {**READY, "factors": {"variant": "cpu"}}, "kernels")
    neighbour = find_nearest_entry(list_entries(str(tmp_path)), ENTRY)
    assert neighbour is not None
    assert Path(neighbour[0].path).name == "near"
    assert neighbour[1] == ("--dtype was float16, is bfloat16",)


def test_a_file_system_without_locks_is_used_unlocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert opened(tmp_path).verdict.kind == FILL


@pytest.mark.fuzz
def test_no_damaged_manifest_stops_a_start() -> None:
    def parse(text: str) -> None:
        judge_entry(parse_manifest(text), FACTORS, empty=False)

    survives_damage(parse, json.dumps(READY))
