"""The command line as invoke parses it: every command in pages and modules exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from invoke.parser import Parser, ParserContext

import tasks
from drydock.core.paths import ROOT

pytestmark = pytest.mark.checkout

PATTERNS = ("*.md", "docs/**/*.md", "drydock/**/*.py", "bench/*.py")
PAGES = [path for pattern in PATTERNS for path in sorted(ROOT.glob(pattern)) if path != ROOT / "drydock/cli/cli.py"]
"""Pages, and modules, whose hints contain commands; program.py has patterns of commands."""
COMMAND = re.compile(r"""(?:\./inv|\bin/invoke|["`]invoke|    invoke) ([a-z][^`\n|#";:)]*)""")
"""A command ends with the code span, the line, a pipe or a comment."""
CHAINED = ("verify", "publish")
"""Verbs that pages write behind `build`, in one command."""


def contexts() -> dict[str, ParserContext]:
    """Return the parameters of each task, by its name in pages: `lock diff` is invoke's `lock.diff`."""
    return {
        str(name).replace(".", " "): verb
        for verb in tasks.namespace.to_contexts()
        for name in (verb.name, *verb.aliases)
    }


def read(words: str) -> dict[str, object]:
    """Parse a command line; return argument → value. Raises ParseError."""
    (context,) = Parser(contexts=tasks.namespace.to_contexts()).parse_argv(shlex.split(words))
    return {name: argument.value for name, argument in context.args.items()}


def wrong(command: str) -> Iterator[str]:
    """Yield unknown tasks and flags in a command. Required flags may be missing, as in pages."""
    words, known = command.partition(" -- ")[0].split(), contexts()
    places = (place for place, word in enumerate(words) if place and words[0] == "build" and word in CHAINED)
    chained = next(places, len(words))
    if chained < len(words):
        yield from wrong(" ".join(words[chained:]))
        words = words[:chained]
    if words[0] in ("TASK", "help", "completion") or (
        words[1:] == [] and any(name.startswith(f"{words[0]} ") for name in known)
    ):
        return  # a group of tasks may be named by itself
    verbs = [name for name in (" ".join(words[:2]), words[0].replace(".", " ")) if name in known]
    if not verbs:
        yield words[0]
    for flag in {word.partition("=")[0].rstrip(".,;:)") for word in words if word.startswith("-")} if verbs else ():
        if flag not in known[verbs[0]].flags:
            yield f"{verbs[0]} {flag}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_in_a_page_exists(page: Path) -> None:
    text = page.read_text()
    if page.name == "CHANGELOG.md":
        text, _, _ = text.partition("\n## 0.1.0")  # releases name the verbs that they had
    commands = COMMAND.findall(text)
    assert [unknown for command in commands for unknown in wrong(command)] == []


@pytest.mark.parametrize("module", sorted(ROOT.glob("drydock/**/*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_hints_spell_a_command_as_the_readme_does(module: Path) -> None:
    hints = re.findall(rf"\binvoke (?:{'|'.join({name.split()[0] for name in contexts()})})\b.*", module.read_text())
    assert [line for line in hints if not line.startswith(("invoke docs`: {name}", "invoke prove: {model}"))] == []


def test_an_unknown_command_is_found() -> None:
    assert [
        *wrong("biuld --target cpu"),
        *wrong("build --taget cpu"),
        *wrong("lock diff a b"),
        *wrong("matrix --json"),
    ] == [
        "biuld",
        "build --taget",
    ]


@pytest.mark.parametrize("verb", ["lock --target cpu", "fetch --target cpu", "bake --target cpu", "build --target cpu"])
def test_context_may_be_repeated_and_contain_spaces(verb: str) -> None:
    assert read(verb)["context"] == []
    assert read(f"{verb} --context base=/a --context 'wheels=/b c'")["context"] == ["base=/a", "wheels=/b c"]
