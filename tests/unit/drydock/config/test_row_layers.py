"""An accelerator's file over that of any host, with the positions of both."""

from __future__ import annotations

from pathlib import Path

from drydock.config.row_layers import merge_over_host
from drydock.config.strict_yaml import YamlDocument, read_yaml

HOST = """\
checks:
  - {id: ANY-001, text: of any host}
  - {id: ANY-002, text: of any host}
findings:
  ANY-010: {text: of any host}
variables: {shown: [A], files: {A: {}}}
translations: {zh: {a: b}}
retired: []
"""
ACCELERATOR = """\
accelerator: small
checks:
  - {id: OWN-001, text: its own}
  - {id: ANY-002, text: its own}
findings:
  ANY-010: {text: its own}
  AAA-010: {text: its own}
variables: {shown: [B], files: {B: {}}}
translations: {zh: {c: d}}
"""


def merged(folder: Path) -> YamlDocument:
    paths = [folder / name for name in ("host.yaml", "accelerator.yaml")]
    for path, text in zip(paths, (HOST, ACCELERATOR), strict=True):
        path.write_text(text)
    return merge_over_host(*(read_yaml(path, path.name) for path in paths))


def test_its_own_values_win_and_its_own_checks_come_first(tmp_path: Path) -> None:
    data = merged(tmp_path).data

    assert [(check["id"], check["text"]) for check in data["checks"]] == [
        ("OWN-001", "its own"),
        ("ANY-002", "its own"),
        ("ANY-001", "of any host"),
    ]
    assert [(number, finding["text"]) for number, finding in data["findings"].items()] == [
        ("AAA-010", "its own"),
        ("ANY-010", "its own"),
    ]
    assert data["variables"] == {"shown": ["A", "B"], "files": {"A": {}, "B": {}}}
    assert data["translations"] == {"zh": {"a": "b", "c": "d"}}
    assert "retired" not in data


def test_each_value_has_the_place_where_it_is_written(tmp_path: Path) -> None:
    places = merged(tmp_path).places
    keys = [("checks", number, "text") for number in range(3)]

    assert [(places[key].file or "accelerator.yaml", places[key].line) for key in keys] == [
        ("accelerator.yaml", 3),
        ("accelerator.yaml", 4),
        ("host.yaml", 2),
    ]
