"""Values → YAML whose texts every reader takes for texts, and changes of a file's text that keep its comments. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from drydock.core.errors import InputError

_OTHER_IN_1_2 = re.compile(
    r"[yYnN]|[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|0o[0-7]+|0x[0-9A-Fa-f]+", re.ASCII
)
"""Plain words that PyYAML takes for texts and others, such as Compose and kubectl, for numbers or booleans
(YAML 1.2.2, 10.3.2; https://yaml.org/type/bool.html)."""


class _TextDumper(yaml.SafeDumper):
    pass


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, '"' if _OTHER_IN_1_2.fullmatch(value) else None)


_TextDumper.add_representer(str, _represent_text)


def write_yaml(*documents: Any) -> str:
    """Return documents in the order of their keys, without line breaks in texts."""
    return yaml.dump_all(documents, Dumper=_TextDumper, sort_keys=False, width=1000, allow_unicode=True)


# --- changes of a file that people write ----------------------------------------------------------------------------


def set_value(text: str, name: str, path: Sequence[str], value: Any) -> str:
    """Return a file's text with another value for a key, or with that key; comments and the rest stay as they are.

    `path` leads through tables that are there, to a key that may be missing. A list of texts that is there keeps the
    lines of the entries that stay. An empty list removes its key. Raises InputError where the text cannot be changed.
    """
    expected = yaml.safe_load(text)
    table = expected
    for key in path[:-1]:
        table = table[key]
    if value == []:
        table.pop(path[-1], None)
    else:
        table[path[-1]] = value

    edited = _edit_key(text, path, value)
    try:
        is_right = (yaml.safe_load(edited) or {}) == expected
    except yaml.YAMLError:
        is_right = False
    if not is_right:
        raise InputError(
            f"{name}: {'.'.join(path)} cannot be changed by a program as it is written",
            hint=f"write it by hand: {path[-1]}: {_write_flow(value)}",
        )
    return edited


def _edit_key(text: str, path: Sequence[str], value: Any) -> str:
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for key in path[:-1]:
        node = _find_entry(node, key)[1]
    key_node, old = _find_entry(node, path[-1])
    if key_node is None:
        return text if value == [] else _insert_key(text, node, path[-1], value)
    if value == [] and not node.flow_style:
        start = text.rfind("\n", 0, key_node.start_mark.index) + 1
        return text[:start] + text[_find_next_line(text, old) :]
    if isinstance(old, yaml.SequenceNode) and not old.flow_style and value:
        return _edit_lines(text, old, value)
    if isinstance(old, yaml.SequenceNode) and old.value and value[: len(old.value)] == _read_texts(old):
        end = _find_end(old)
        return f"{text[:end]}, {', '.join(map(_write_flow, value[len(old.value) :]))}{text[end:]}"
    return f"{text[: old.start_mark.index]}{_write_flow(value)}{text[old.end_mark.index :]}"


def _find_entry(node: Any, key: str) -> tuple[Any, Any]:
    """Return the nodes of a key and its value; None for both if the table lacks it."""
    entries = node.value if isinstance(node, yaml.MappingNode) else ()
    return next(((name, value) for name, value in entries if name.value == key), (None, None))


def _insert_key(text: str, table: Any, key: str, value: Any) -> str:
    entry = f"{key}: {_write_flow(value)}"
    if table.flow_style:
        end = _find_end(table)
        return f"{text[:end]}{', ' if table.value else ''}{entry}{text[end:]}"
    after = _find_next_line(text, table)
    before = text[:after] if text[:after].endswith("\n") else f"{text[:after]}\n"
    return f"{before}{' ' * table.start_mark.column}{entry}\n{text[after:]}"


def _edit_lines(text: str, old: Any, value: Sequence[str]) -> str:
    """Return the text with a list that has an entry a line: what stays keeps its line, new ones follow the last."""
    after = _find_next_line(text, old)
    added = [item for item in value if item not in _read_texts(old)]
    lines = "".join(f"{' ' * old.start_mark.column}- {_write_flow(item)}\n" for item in added)
    line_end = "\n" if added and not text[:after].endswith("\n") else ""
    text = f"{text[:after]}{line_end}{lines}{text[after:]}"
    for entry in reversed(old.value):
        if entry.value not in value:
            start = text.rfind("\n", 0, entry.start_mark.index) + 1
            text = text[:start] + text[_find_next_line(text, entry) :]
    return text


def _read_texts(node: Any) -> list[str]:
    return [entry.value for entry in node.value]


def _find_end(node: Any) -> int:
    """Return where the last value of a table or list ends; of an empty one, where its first would begin."""
    last = node
    while isinstance(last, yaml.CollectionNode) and last.value and (last is node or not last.flow_style):
        last = last.value[-1][1] if isinstance(last, yaml.MappingNode) else last.value[-1]
    return int(node.start_mark.index) + 1 if last is node else int(last.end_mark.index)


def _find_next_line(text: str, node: Any) -> int:
    """Return where the line after a value begins."""
    is_block = isinstance(node, yaml.CollectionNode) and not node.flow_style
    end = _find_end(node) if is_block else int(node.end_mark.index)
    line_end = text.find("\n", end)
    return line_end + 1 if line_end >= 0 else len(text)


def _write_flow(value: Any) -> str:
    """Return a value as it is written within a line."""
    line = yaml.dump([value], Dumper=_TextDumper, default_flow_style=True, sort_keys=False, width=10_000)
    return line.strip()[1:-1]
