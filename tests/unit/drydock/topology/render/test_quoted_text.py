"""YAML that readers of YAML 1.1 and of YAML 1.2 understand alike."""

from __future__ import annotations

import io
import shlex
import subprocess
from typing import Any

import pytest
import yaml
from ruamel.yaml import YAML

from drydock.topology.render.quoted_text import Unsafe, format_yaml, quote_shell_word

DOUBTFUL = [
    *(
        "1e3",
        "0o7",
        "0x1F",
        "1_000",
        "1:30",
        "2026-01-01",
        ".inf",
        "y",
        "N",
        "on",
        "No",
        "NULL",
        "~",
        "=",
        "<<",
        "",
        " x",
    ),
    *(
        "a: b",
        "- a",
        "# a",
        "*a",
        "&a",
        "!a",
        "%a",
        "@a",
        "`a",
        "{a}",
        "[a]",
        "'a'",
        '"a"',
        "a\nb",
        "a\tb",
        "\x85\u2028",
    ),
]


@pytest.mark.parametrize("text", DOUBTFUL)
def test_a_text_is_the_same_text_in_both_versions(text: str) -> None:
    value: dict[str, Any] = {"value": text, text: ["list", text]}
    document = format_yaml(value)
    assert yaml.safe_load(document) == value
    assert YAML(typ="safe", pure=True).load(io.StringIO(document)) == value


def test_an_unsafe_text_is_tagged_and_quoted() -> None:
    assert format_yaml({"aa": Unsafe("{{ b }}"), "cc": ["dd"]}, start=True) == (
        '---\naa: !unsafe "{{ b }}"\ncc:\n  - dd\n'
    )


def test_the_same_list_twice_is_written_twice() -> None:
    same = ["a1"]
    assert format_yaml({"xx": same, "zz": same}) == "xx:\n  - a1\nzz:\n  - a1\n"


@pytest.mark.parametrize(
    "text", ["", "plain", "a b", "it's $HOME `id` $(id) \\", "a\nNODE\n", "\x1b[0m'\\0\x85\u2028é"]
)
def test_bash_reads_a_word_as_it_was_in_one_line(text: str) -> None:
    word = quote_shell_word(text)
    result = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)

    assert result.stdout.decode() == text
    assert word.isprintable()
    assert word == shlex.quote(text) or not text.isprintable()
