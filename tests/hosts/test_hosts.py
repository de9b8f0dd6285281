"""Every recorded host gives the facts, findings and plans that are committed beside it."""

from __future__ import annotations

import json

import pytest

from entrypoints.parse import parse_words
from entrypoints.probes.knobs import BOOT
from tests.hosts import expect, make


@pytest.mark.golden
@pytest.mark.parametrize("name", expect.names())
def test_a_recorded_host_gives_what_is_expected_of_it(name: str) -> None:
    for file, value in expect.expected(name).items():
        committed = json.loads((expect.HOSTS / name / file).read_text())

        assert json.loads(expect.dumps(value)) == committed, f"{file}: read the difference, then run expect.py"


@pytest.mark.golden
@pytest.mark.parametrize("name", sorted(make.trees()))
def test_a_made_host_is_what_make_makes(name: str) -> None:
    assert make.read(make.HERE / name) == make.trees()[name]


@pytest.mark.parametrize("name", expect.names())
def test_no_recorded_host_holds_an_environment_or_a_mount_table(name: str) -> None:
    tree = make.read(expect.HOSTS / name)
    words = parse_words(tree.get("proc/cmdline", ""), tuple(BOOT))

    assert [path for path in tree if path.endswith(("environ", "mountinfo"))] == []
    assert tree.get("proc/cmdline", "").split() == [f"{word}={value}" for word, value in words.items()]
