"""The tasks → docs/reference/commands.md: each with what it does and its options. Pure, but for the file."""

from __future__ import annotations

from pathlib import Path

from drydock.cli.cli import Commands, Verbs, help_of, list_help
from drydock.core.files import write_atomically
from drydock.pages.markdown import make_table

FILE = Path("docs", "reference", "commands.md")
_HEAD = """# Commands

Every task of `./inv`, with its options; `drydock TASK` is the same [without a checkout](../build.md#install). The verbs
of an image are [a page of their own](../container.md). Written by `./inv docs` from `drydock/verbs/`.
"""


def render_commands_page(commands: Commands) -> str:
    """Return the page. Benchmarks are parts of one verb."""
    verbs = Verbs(commands)
    parts = [_HEAD]
    for heading, members in commands.items():
        names = [name for name in members if not name.startswith("bench ")]
        parts += [f"\n## {heading}\n", *(_describe_verb(verbs, name) for name in names)]
    return "".join(parts)


def _describe_verb(verbs: Verbs, name: str) -> str:
    verb, context = verbs[name], verbs.contexts[name.replace(" ", ".")]
    usage, _, _ = help_of(verbs, context).partition("\n\n")
    rows = [(f"`{option}`", text.replace("<", "&lt;")) for option, text in list_help(verb, context).items()]
    options = make_table(("option", "description"), rows)
    return f"\n### {name}\n\n    {usage.removeprefix('Usage: ')}\n\n{verb.__doc__}\n\n{options}"


def write_commands_page(root: Path, commands: Commands) -> list[Path]:
    """Write the page; return it if it changed."""
    return [root / FILE] if write_atomically(root / FILE, render_commands_page(commands)) else []


def find_stale_page(root: Path, commands: Commands) -> list[Path]:
    """Return the page if it is not what the verbs give."""
    return (
        [] if (root / FILE).is_file() and (root / FILE).read_text() == render_commands_page(commands) else [root / FILE]
    )
