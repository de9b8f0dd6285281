"""No command that is published is called safe, if the parser that another version describes refuses it."""

from __future__ import annotations

import argparse
import itertools
import json
import re
from typing import Any

import pytest

from drydock.compare.judgment import Verdict
from tests.support.compared_commands import Words, published_commands, verdict_of, version_of

VERSIONS = ("0.6.1", "0.8.5", "0.11", "0.18", "0.27", "0.33")
PAIRS = [*itertools.combinations(VERSIONS, 2), *((new, old) for old, new in itertools.combinations(VERSIONS[2:], 2))]
COMMANDS = published_commands()


def to_number(text: str) -> float:
    """Take a number as vLLM does, with a suffix or the word for its own choice."""
    return 0 if re.fullmatch(r"\d+(\.\d+)?[kKmMgGtT]|auto", text) else float(text)


def parser_of(version: str) -> argparse.ArgumentParser:
    """Return a parser made of nothing but a version's list of flags: independent of how `compare` reads words."""
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    parser.add_argument("model", nargs="?")
    types: dict[str, Any] = {"int": to_number, "float": float, "json": json.loads}
    for flag, takes in version_of(version).lists["flags"].items():
        if takes == "boolean" and flag.startswith("--"):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction)
        elif takes in ("switch", "boolean"):
            parser.add_argument(flag, action="store_true")
        elif isinstance(takes, list):
            parser.add_argument(flag, choices=takes)
        else:
            parser.add_argument(flag, type=types.get(takes, str))
    return parser


def is_taken(parser: argparse.ArgumentParser, words: Words) -> bool:
    """Return whether a parser takes words; `--flag.key value` is JSON."""
    dotted = [re.sub(r"^(--[\w-]+)\..*", r"\1={}", word) for word in words]
    parser_words = [word for before, word in zip(("", *dotted), dotted, strict=False) if not before.endswith("={}")]
    try:
        return not parser.parse_known_args(parser_words)[1]
    except (argparse.ArgumentError, SystemExit):
        return False


def test_all_that_is_published_is_compared() -> None:
    assert len(COMMANDS) == 480


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_a_published_command_is_safe_only_if_the_new_parser_takes_it(old: str, new: str) -> None:
    parser = parser_of(new)
    verdicts = {words: verdict_of(words, old, new) for words in COMMANDS}
    refused = {words for words in COMMANDS if not is_taken(parser, words)}

    assert [words for words in refused if verdicts[words] is Verdict.SAFE] == []
    safe = sum(verdict is Verdict.SAFE for verdict in verdicts.values())
    assert safe > 250, "a comparison that calls nothing safe tells nothing"
