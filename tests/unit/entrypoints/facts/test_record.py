"""A recorded host gives the same facts again, holds nothing else, and is read as what anyone may have written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from drydock.topology.render import chips
from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.records import Facts
from entrypoints.facts.facts import collect_facts
from entrypoints.facts.record import (
    FILES_AT_MOST,
    STEPS_AT_MOST,
    open_host,
    parse_record,
    read_record,
    write_recorded_host,
)
from entrypoints.host.commands import Commands
from entrypoints.host.host import Host
from tests.support import topologies
from tests.support.damage import survives_damage
from tests.support.sample import PROFILE

HOSTS = Path(__file__).resolve().parents[3] / "hosts"
MOUNT = {"path": "/cache", "exists": True, "writable": True, "free": 1, "total": 2, "filesystem": "ext4"}
SMALL: dict[str, Any] = {
    "origin": "a test",
    "machine": "x86_64",
    "mounts": {"cache": MOUNT},
    "files": {"/dev/kfd": "", "/proc/meminfo": "MemTotal: 1 kB\n"},
    "links": {},
    "commands": {"tool -q": {"rc": 0, "stdout": "7\n", "stderr": ""}},
}


def looked(
    host: Host, env: dict[str, str] | None = None, accelerator: str = PROFILE["accelerator"]
) -> tuple[Host, Commands, Facts]:
    commands = Commands(host)
    return host, commands, collect_facts(host, commands, {**PROFILE, "accelerator": accelerator}, env or {})


def document(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


# --- writing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "file"), [("host.json", "host.json"), ("new/a", "new/a/host.json")])
def test_recorded_facts_read_back_the_same(tmp_path: Path, path: str, file: str) -> None:
    host, commands, live = looked(Host())

    assert write_recorded_host(host, commands, live, str(tmp_path / path)) == str(tmp_path / file)
    assert looked(open_host(str(tmp_path / path)))[2] == live
    assert looked(open_host(str(tmp_path / file)))[2] == live


def test_a_recording_of_a_recording_is_the_same_file(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    write_recorded_host(*looked(Host()), str(one))
    write_recorded_host(*looked(open_host(str(one))), str(two))

    assert one.read_text() == two.read_text()
    assert list(document(one)) == ["commands", "files", "links", "machine", "mounts", "origin"]


@pytest.mark.parametrize(("recorded", "pod"), [("ascend-a3-8x2", True), ("ascend-910b3-8x", False)])
def test_a_recording_has_what_ranktables_are_made_of_and_only_what_succeeded(
    tmp_path: Path, recorded: str, pod: bool
) -> None:
    """Ranktables are made of each chip's address (drydock/topology/render/chips.py), which no server asks for."""
    value = document(HOSTS / recorded / "host.json")
    count = len(looked(open_host(str(HOSTS / recorded)), accelerator="ascend")[2].devices)
    chip_commands = topologies.chips(0, count, pod=pod)
    chip_commands["hccn_tool -i 1 -ip -g"] = {"rc": 1, "stdout": "", "stderr": "no such device"}
    answers = {command: {"stderr": "", **answer} for command, answer in {**chip_commands, **value["commands"]}.items()}
    (tmp_path / "here.json").write_text(json.dumps({**value, "commands": answers}))
    write_recorded_host(
        *looked(open_host(str(tmp_path / "here.json")), accelerator="ascend"), str(tmp_path / "host.json")
    )
    commands = document(tmp_path / "host.json")["commands"]

    assert chips.read_chip_address(commands, 0) == "10.9.0.1"
    assert chips.read_chip_super_pod(commands, 3) == (("3", "3") if pod else None)
    assert {*commands} & {*chip_commands} == {*chip_commands} - {"hccn_tool -i 1 -ip -g"}


KNOWN = ("init_on_alloc=", "pci=")
"""Words of the kernel's command line that a check needs; the others may name disks and secrets."""


def test_nothing_of_the_environment_or_the_mount_table_is_recorded(tmp_path: Path) -> None:
    write_recorded_host(*looked(Host(), {"HF_TOKEN": "hf_secret"}), str(tmp_path / "host.json"))
    files = document(tmp_path / "host.json")["files"]
    words = files["/proc/cmdline"].split()

    assert not [path for path in files if "environ" in path or "mountinfo" in path]
    assert words == [word for word in words if word.startswith(KNOWN)]
    assert "hf_secret" not in (tmp_path / "host.json").read_text()


@pytest.mark.parametrize("path", ["", "mine.json", "mine.json/host"])
def test_what_is_there_already_is_left_alone(tmp_path: Path, path: str) -> None:
    (tmp_path / "mine.json").write_text("mine")

    with pytest.raises(EntrypointError) as refused:
        write_recorded_host(*looked(Host()), str(tmp_path / path))
    assert refused.value.code == (HOST if path.endswith("/host") else USAGE)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"mine.json": "mine"}


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    assert write_recorded_host(*looked(Host()), str(tmp_path)) == str(tmp_path / "host.json")


def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_source: str, _target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(EntrypointError, match=r"host\.json: No space left on device \(errno 28\), expected") as refused:
        write_recorded_host(*looked(Host()), str(tmp_path / "host.json"))
    assert refused.value.code == HOST
    assert list(tmp_path.iterdir()) == []


# --- reading --------------------------------------------------------------------------------------------------------


def read(folder: Path, value: Any) -> Host:
    (folder / "host.json").write_text(value if isinstance(value, str) else json.dumps(value))
    return open_host(str(folder / "host.json"))


def test_a_recorded_host_holds_what_its_file_says(tmp_path: Path) -> None:
    host = read(tmp_path, SMALL)

    assert not host.live
    assert host.text("/machine") == "x86_64\n"
    assert host.text("/proc/meminfo") == "MemTotal: 1 kB\n"
    assert (host.exists("/dev/kfd"), host.exists("/dev"), host.exists("/dev/dri")) == (True, True, False)
    assert Commands(host).run(("tool", "-q"), 1).stdout == "7\n"
    assert host.source.origin == "a test"
    assert host.failures == []


@pytest.mark.parametrize("root", ["", "host.json", "host.json/", "."])
def test_a_root_is_the_file_or_its_folder(tmp_path: Path, root: str) -> None:
    read(tmp_path, SMALL)
    if root == "host.json/":
        with pytest.raises(EntrypointError, match=r"Not a directory \(errno 20\)"):
            open_host(f"{tmp_path}/{root}")
    else:
        assert open_host(f"{tmp_path}/{root}").text("/machine") == "x86_64\n"


def test_a_folder_without_a_recorded_host_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(EntrypointError, match=f"--root {tmp_path}: no recorded host is in this folder") as error:
        open_host(str(tmp_path))
    assert error.value.code == 2
    (tmp_path / "proc").mkdir()
    assert not open_host(str(tmp_path)).live


def test_the_root_of_this_system_is_the_live_host() -> None:
    assert open_host("/").live


HOSTILE: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "Expecting property name"),
    "a list": ([], "found list, expected an object"),
    "deep": ("[" * 200_000, "nested deeper than 64 levels"),
    "deep inside": (
        json.dumps(SMALL).replace('"x86_64"', '{"a":' * 500 + "1" + "}" * 500),
        "nested deeper than 64 levels",
    ),
    "an unknown key": ({**SMALL, "variant": "x"}, "unknown key 'variant', expected origin, machine, mounts, files"),
    "a key less": ({key: SMALL[key] for key in SMALL if key != "files"}, "key 'files' is missing, expected"),
    "no machine": ({**SMALL, "machine": " "}, "machine: found ' ', expected the output of `uname -m`"),
    "an escape": ({**SMALL, "machine": "x\x1b[2J"}, "machine: found 'x\\\\x1b"),
    "an origin that is no text": ({**SMALL, "origin": 1}, "origin: found int, expected text"),
    "half a character": ({**SMALL, "files": {"/a": "\ud800"}}, "files: .*surrogates not allowed"),
    "half a character in a path": ({**SMALL, "files": {"/\udcff": ""}}, "files: .*surrogates not allowed"),
    "half a character of an answer": (
        {**SMALL, "commands": {"tool": {"rc": 0, "stdout": "\ud800"}}},
        "commands: .*surrogates not allowed",
    ),
    "files as a list": ({**SMALL, "files": []}, f"files: expected an object of at most {FILES_AT_MOST} paths"),
    "too many files": (
        {**SMALL, "files": {f"/{number}": "" for number in range(FILES_AT_MOST + 1)}},
        f"files: expected an object of at most {FILES_AT_MOST} paths",
    ),
    "a text that is a number": ({**SMALL, "files": {"/a": 1}}, "files: '/a': found int, expected text"),
    "a path above the root": ({**SMALL, "files": {"/../etc": ""}}, "files: '/../etc': expected an absolute path"),
    "a path through a dot": ({**SMALL, "files": {"/./etc": ""}}, "expected an absolute path"),
    "a relative path": ({**SMALL, "files": {"etc": ""}}, "expected an absolute path"),
    "two slashes": ({**SMALL, "files": {"//etc": ""}}, "expected an absolute path"),
    "a slash in the end": ({**SMALL, "files": {"/etc/": ""}}, "expected an absolute path"),
    "the root itself": ({**SMALL, "files": {"/": ""}}, "expected an absolute path"),
    "a line end in a path": ({**SMALL, "files": {"/a\n": ""}}, "expected an absolute path"),
    "a path without end": ({**SMALL, "files": {"/a" * (STEPS_AT_MOST + 1): ""}}, f"at most {STEPS_AT_MOST} folders"),
    "a file that is a folder": ({**SMALL, "files": {"/a": "", "/a/b": ""}}, "'/a/b': 'a' is also a file"),
    "a folder that is a file": ({**SMALL, "files": {"/a/b": "", "/a": ""}}, "'/a': is also a folder"),
    "a link": ({**SMALL, "links": {"/a": "/b"}}, "links: expected {}"),
    "a mount of another size": (
        {**SMALL, "mounts": {"cache": {**MOUNT, "free": "much"}}},
        "mounts: 'cache': expected path, exists",
    ),
    "a mount of no size": ({**SMALL, "mounts": {"cache": {**MOUNT, "free": -1}}}, "mounts: 'cache': expected free"),
    "a mount below zero": ({**SMALL, "mounts": {"cache": {**MOUNT, "total": -1}}}, "expected free and total"),
    "a mount beyond numbers": ({**SMALL, "mounts": {"cache": {**MOUNT, "total": 10**400}}}, "'cache': expected path"),
    "a mount with more": ({**SMALL, "mounts": {"cache": {**MOUNT, "x": 1}}}, "mounts: 'cache': expected path"),
    "mounts as a list": ({**SMALL, "mounts": []}, "mounts: found list, expected an object"),
    "an answer without code": ({**SMALL, "commands": {"tool": {"stdout": ""}}}, "commands: 'tool': expected"),
    "an answer that is a list": ({**SMALL, "commands": {"tool": [1]}}, "commands: 'tool': expected"),
    "a code that is no number": ({**SMALL, "commands": {"t": {"rc": True, "stdout": ""}}}, "commands: 't': expected"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_is_wrong_is_refused_with_its_place_and_what_to_do(tmp_path: Path, name: str) -> None:
    value, expected_error = HOSTILE[name]

    with pytest.raises(EntrypointError, match=expected_error) as refused:
        read(tmp_path, value)
    assert refused.value.code == USAGE
    assert refused.value.message.startswith(f"--root {tmp_path / 'host.json'}: ")
    assert refused.value.hint == "record the host again: facts --record host.json"
    assert len(refused.value.message) < 1000


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "host.json").write_bytes(b'{"origin": "\xff"}')

    with pytest.raises(EntrypointError, match="can't decode byte 0xff in position 12"):
        read_record(str(tmp_path / "host.json"))


def test_a_file_without_end_is_refused_before_it_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entrypoints.facts.record.SIZE_AT_MOST", 1 << 20)

    with pytest.raises(EntrypointError, match="larger than 1 MiB"):
        read(tmp_path, " " * (1 << 20) + "{}")


def test_a_pipe_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "host.json")

    with pytest.raises(EntrypointError, match="not a regular file"):
        open_host(str(tmp_path))


@pytest.mark.fuzz
def test_no_damaged_record_ends_in_a_traceback() -> None:
    survives_damage(parse_record, json.dumps(SMALL))
