"""Every recorded host gives the facts, findings and plans that are committed beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrypoints.core.parse import parse_kernel_words
from entrypoints.facts.probes.common.kernel_settings import BOOT
from entrypoints.facts.record import FILE, dump_recorded_host
from entrypoints.host.host import Host
from tests.support.hosts import expect, trees


@pytest.mark.golden
@pytest.mark.parametrize("name", expect.names())
def test_a_recorded_host_gives_what_is_expected_of_it(name: str) -> None:
    for file, value in expect.expected(name).items():
        committed = (expect.HOSTS / name / file).read_text()

        assert json.loads(expect.dumps(value, file)) == json.loads(committed), f"{name}/{file}: ./inv generate"
        assert expect.dumps(value, file) == committed


def test_a_recorded_host_says_where_it_is_from_and_is_written_as_record_writes_it() -> None:
    hosts = {name: expect.document(name) for name in expect.names()}

    assert [name for name, host in hosts.items() if not host["origin"]] == []
    assert [
        name for name, host in hosts.items() if dump_recorded_host(host) != (expect.HOSTS / name / FILE).read_text()
    ] == []


def test_a_recorded_host_gives_the_same_facts_as_a_folder_tree(tmp_path: Path) -> None:
    """As earlier versions recorded hosts, and as the fixing script is tried on them."""
    for name in expect.names():
        profile = expect.profile_of(name)
        folder = trees.write(tmp_path / name, trees.read_recorded_tree(name))

        assert expect.look(Host(str(folder)), profile) == expect.read(name, profile), name


def test_no_recorded_host_holds_an_environment_or_a_mount_table() -> None:
    for name in expect.names():
        files = expect.document(name)["files"]
        line = files.get("/proc/cmdline", "")
        words = parse_kernel_words(line, tuple(BOOT))

        assert [path for path in files if path.endswith(("environ", "mountinfo"))] == [], name
        assert line.split() == [f"{word}={value}" for word, value in words.items()], name
