"""The command line as invoke reads it: every command that a page shows is one that exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from invoke.parser import Parser, ParserContext

import tasks
from drydock.core.paths import ROOT

PAGES = (*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("drydock/*.py")))
"""And the modules, whose hints name commands too."""
COMMAND = re.compile(r"""(?:\./inv|\bin/invoke|["`]invoke|    invoke) ([a-z][^`\n|#";:]*)""")
"""Up to the end of the code span or the line, a pipe or a comment."""


def contexts() -> dict[str, ParserContext]:
    """Return what each verb takes, by its name as pages write it; `./inv` says `lock diff` for invoke's lock.diff."""
    return {
        str(name).replace(".", " "): verb
        for verb in tasks.namespace.to_contexts()
        for name in (verb.name, *verb.aliases)
    }


def read(words: str) -> dict[str, object]:
    """Return what a command line gives each argument of its verb. Raises ParseError."""
    (context,) = Parser(contexts=tasks.namespace.to_contexts()).parse_argv(shlex.split(words))
    return {name: argument.value for name, argument in context.args.items()}


def wrong(command: str) -> Iterator[str]:
    """Yield what is unknown in a command: its verb, or flags of it. Pages also name a verb without what it needs."""
    own, known = command.partition(" -- ")[0].split(), contexts()
    verbs = [name for name in (" ".join(own[:2]), own[0].replace(".", " ")) if name in known]
    if not verbs:
        yield own[0]
    for flag in {word.partition("=")[0].rstrip(".,;:)") for word in own if word.startswith("-")} if verbs else ():
        if flag not in known[verbs[0]].flags:
            yield f"{verbs[0]} {flag}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_shows_exists(page: Path) -> None:
    commands = COMMAND.findall(page.read_text())
    assert [unknown for command in commands for unknown in wrong(command)] == []


def test_a_command_that_does_not_exist_is_noticed() -> None:
    assert [
        *wrong("biuld --target cpu"),
        *wrong("build --taget cpu"),
        *wrong("lock diff a b"),
        *wrong("matrix --json"),
    ] == [
        "biuld",
        "build --taget",
    ]


@pytest.mark.parametrize("verb", ["lock --target cpu", "fetch -t cpu", "plan -t cpu", "build -t cpu"])
def test_contexts_arrive_whole_and_as_often_as_given(verb: str) -> None:
    assert read(verb)["context"] == []
    assert read(f"{verb} --context base=/a --context 'wheels=/b c'")["context"] == ["base=/a", "wheels=/b c"]
