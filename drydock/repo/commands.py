"""The tasks → docs/reference/commands.md: each with what it does and its options. Pure, but for the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from invoke.collection import Collection
from invoke.parser.context import ParserContext

from drydock.core.files import write_atomically
from drydock.repo.cli import TASKS, help_of, placeholder
from drydock.repo.markdown import table

FILE = Path("docs", "reference", "commands.md")
_HEAD = """# Commands

Every task of `./inv`, with its options; `drydock TASK` is the same [without a checkout](../build.md#install). The verbs
of an image are [a page of their own](../container.md). Written by `./inv docs` from `tasks.py`.
"""


def page(tasks: Collection) -> str:
    """Return the page."""
    contexts = {name: each for each in tasks.to_contexts() for name in (str(each.name), *each.aliases)}
    parts = [_HEAD]
    for heading, names in TASKS.items():
        parts += [f"\n## {heading}\n", *(_task(tasks, contexts[name]) for name in names)]
    return "".join(parts)


def _task(tasks: Collection, context: ParserContext) -> str:
    usage, _, text = help_of(tasks, context).partition("\n\n")
    name = usage.removeprefix("Usage: ./inv ").partition(" --")[0].removesuffix(" [OPTIONS]")
    described = text.partition("\n\nOptions:")[0].strip()
    options = table(("option", "description"), _options(context, tasks[str(context.name)].texts))
    return f"\n### {name}\n\n    {usage.removeprefix('Usage: ')}\n\n{described}\n\n{options}"


def _options(context: ParserContext, texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for flag, argument in context.flags.items():
        if flag.startswith("--"):
            text = texts.get(str(argument.attr_name or argument.name), "")
            yield f"`{f'{flag} {placeholder(argument)}'.rstrip()}`", text.replace("<", "&lt;")


def write(root: Path, tasks: Collection) -> list[Path]:
    """Write the page; return it if it changed."""
    return [root / FILE] if write_atomically(root / FILE, page(tasks)) else []


def stale(root: Path, tasks: Collection) -> list[Path]:
    """Return the page if it is not what the tasks give."""
    return [] if (root / FILE).is_file() and (root / FILE).read_text() == page(tasks) else [root / FILE]
