"""A recorded host gives the same facts again, and holds nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrypoints.commands import Commands
from entrypoints.errors import HOST, USAGE, EntrypointError
from entrypoints.facts import probe
from entrypoints.host import Host
from entrypoints.record import record
from tests.support.sample import PROFILE


def test_recorded_facts_read_back_the_same(tmp_path: Path) -> None:
    host = Host()
    commands = Commands(host)
    live = probe(host, commands, PROFILE, {})
    record(host, commands, live, str(tmp_path / "host"))
    again = Host(str(tmp_path / "host"))

    assert probe(again, Commands(again), PROFILE, {}) == live


def test_a_recording_of_a_recording_is_the_same_folder(tmp_path: Path) -> None:
    source, host = Host(), Host(str(tmp_path / "one"))
    record(source, Commands(source), probe(source, Commands(source), PROFILE, {}), str(tmp_path / "one"))
    record(host, Commands(host), probe(host, Commands(host), PROFILE, {}), str(tmp_path / "two"))

    assert _files(tmp_path / "one") == _files(tmp_path / "two")


KNOWN = ("init_on_alloc=", "pci=")
"""Words of the kernel's command line that a check needs; the others may name disks and secrets."""


def test_nothing_of_the_environment_or_the_mount_table_is_recorded(tmp_path: Path) -> None:
    host = Host()
    commands = Commands(host)
    record(host, commands, probe(host, commands, PROFILE, {"HF_TOKEN": "hf_secret"}), str(tmp_path / "host"))
    files = _files(tmp_path / "host")

    assert not [path for path in files if "environ" in path or "mountinfo" in path]
    assert files["proc/cmdline"].split() == [word for word in files["proc/cmdline"].split() if word.startswith(KNOWN)]
    assert not [path for path, text in files.items() if "hf_secret" in text]


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    host = Host()
    commands = Commands(host)
    facts = probe(host, commands, PROFILE, {})

    with pytest.raises(EntrypointError, match="is there already") as refused:
        record(host, commands, facts, str(tmp_path))
    assert refused.value.code == USAGE
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_folder_that_cannot_be_made_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    host = Host()
    commands = Commands(host)
    facts = probe(host, commands, PROFILE, {})

    with pytest.raises(EntrypointError, match=r"file/host: .*errno") as refused:
        record(host, commands, facts, str(tmp_path / "file" / "host"))
    assert refused.value.code == HOST
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def _files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
