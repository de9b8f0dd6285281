"""Every recorded host gives the facts, findings and plans that are committed beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrypoints.core.parse import parse_words
from entrypoints.facts.probes.common.knobs import BOOT
from entrypoints.facts.record import FILE, dumps
from entrypoints.host.host import Host
from tests.support.hosts import expect, make


@pytest.mark.golden
@pytest.mark.parametrize("name", expect.names())
def test_a_recorded_host_gives_what_is_expected_of_it(name: str) -> None:
    for file, value in expect.expected(name).items():
        committed = (expect.HOSTS / name / file).read_text()

        assert json.loads(expect.dumps(value)) == json.loads(committed), f"{file}: read the difference, run expect.py"
        assert expect.dumps(value) == committed


@pytest.mark.golden
def test_a_made_host_is_what_make_makes() -> None:
    made = make.trees()
    committed = {name: (make.HOSTS / name / FILE).read_text() for name in made}

    assert [name for name, tree in made.items() if dumps(make.document(tree)) != committed[name]] == []


@pytest.mark.golden
def test_a_host_is_planned_with_the_variant_that_its_maker_names() -> None:
    named = {path.parent.name: path.read_text() for path in make.HOSTS.glob(f"*/{make.VARIANT}")}

    assert named == {name: tree[make.VARIANT] for name, tree in make.trees().items() if make.VARIANT in tree}


def test_a_recorded_host_gives_the_same_facts_as_a_folder_tree(tmp_path: Path) -> None:
    """As earlier versions recorded hosts, and as the fixing script is tried on them."""
    for name in expect.names():
        profile = expect.profile_of(name)
        folder = make.write(tmp_path / name, make.tree(name))

        assert expect.look(Host(str(folder)), profile) == expect.read(name, profile), name


def test_no_recorded_host_holds_an_environment_or_a_mount_table() -> None:
    for name in expect.names():
        files = expect.document(name)["files"]
        line = files.get("/proc/cmdline", "")
        words = parse_words(line, tuple(BOOT))

        assert [path for path in files if path.endswith(("environ", "mountinfo"))] == [], name
        assert line.split() == [f"{word}={value}" for word, value in words.items()], name


def test_a_finding_is_committed_without_what_its_check_says() -> None:
    profile = expect.profile_of("cuda-h100-8x")
    check = profile["checks"][0]
    constant = {key: check[key] for key in ("text", "remediation", "scope", "source")}
    passed = {"id": check["id"], **constant, "read": profile["facts"].get(check["fact"], ""), "fix": {}, "found": "x"}

    assert expect.brief([passed], profile) == [{"id": check["id"], "found": "x"}]
    assert expect.brief([{**passed, "text": "other"}], profile) == [{"id": check["id"], "text": "other", "found": "x"}]
    assert expect.brief([{**passed, "id": "RUN-001"}], profile) == [{**passed, "id": "RUN-001"}]
