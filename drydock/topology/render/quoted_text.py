"""YAML and words of a shell that every reader understands alike, byte for byte the same for the same value. Pure.

YAML 1.1 (PyYAML, Ansible) and 1.2 (Compose, kubectl) differ in which plain words are numbers or booleans, such as 1e3,
0o7 and y. So a text is plain only if it is a word in both, and in double quotes otherwise.
"""

from __future__ import annotations

import re
import shlex
from typing import Any, NamedTuple

import yaml

WIDTH = 120
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]+", re.ASCII)


class Unsafe(NamedTuple):
    """A value of which Ansible reads no text as a template (`!unsafe`).

    A whole value, because ansible-core 2.19 takes a quoted text with this tag for what it is without quotes: "1" for a
    number (ansible/_internal/_yaml/_constructor.py, _resolve_and_construct_object).
    """

    value: Any


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent lists, as ansible-lint and yamllint expect."""
        _ = indentless
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        """Write each value in full: an alias says nothing to a reader."""
        _ = data
        return True


def _represent_yaml_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, None if _PLAIN.fullmatch(value) else '"')


def _represent_unsafe(dumper: yaml.SafeDumper, value: Unsafe) -> yaml.Node:
    node = dumper.represent_data(value.value)
    node.tag = "!unsafe"
    return node


_Dumper.add_representer(str, _represent_yaml_text)
_Dumper.add_representer(Unsafe, _represent_unsafe)


def quote_shell_word(text: str) -> str:
    """Quote a word for bash: one without control characters as shlex does, others by their bytes, in one line."""
    if all(char.isprintable() for char in text):
        return shlex.quote(text)
    return "$'" + "".join(_escape_ansi_char(char) for char in text) + "'"


def _escape_ansi_char(char: str) -> str:
    if char.isprintable() and char not in "\\'":
        return char
    return "".join(f"\\x{byte:02x}" for byte in char.encode())


def format_yaml(*documents: Any, start: bool = False) -> str:
    """Format documents with sorted keys; `start`: with the line --- before the first one, as ansible-lint wants."""
    return yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=True, width=WIDTH, allow_unicode=False, explicit_start=start or None
    )
