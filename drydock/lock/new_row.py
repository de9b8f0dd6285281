"""The row of a newer minor version of vLLM: stacks that inherit the old ones, and a line of matrix.yaml. Pure.

The old row stays, with its stacks and its lock, so that anyone can build it again. Its aliases, `default` and `cards`
move to the new row.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from drydock.config.config_checks import VLLM_IN_ID
from drydock.config.rows import list_rows
from drydock.config.strict_yaml import YamlDocument
from drydock.core.errors import InputError
from drydock.core.yaml_writer import write_yaml

MOVED = ("default", "aliases", "cards")
"""Keys of a row that only one row may have: the newest."""
SCHEMA = "# yaml-language-server:"
_COLUMNS = 120


def choose_new_ids(ids: Iterable[str], version: str) -> dict[str, str]:
    """Return old id → new id of each row whose id names another version than this one."""
    new_ids = {}
    for row in ids:
        match = VLLM_IN_ID.search(row)
        if match and not f"{version}.".startswith(f"{match[1]}."):
            new_ids[row] = f"{row[: match.start(1)]}{shorten_version(version, match[1])}{row[match.end(1) :]}"
    return new_ids


def find_version(row: str) -> str:
    """Return the version of vLLM that the id of a row names; empty if it names none."""
    match = VLLM_IN_ID.search(row)
    return match[1] if match else ""


def shorten_version(version: str, like: str) -> str:
    """Return as many numbers of a version as another text has: 0.33 of 0.33.0, like 0.32."""
    return ".".join(version.split(".")[: like.count(".") + 1])


def rename_stack(stack: str, old: str, new: str) -> str:
    """Return the name of the stack of a new version: cpu-0.33 for cpu-0.32; versions are as ids have them."""
    name, count = re.subn(rf"(?<![\d.]){re.escape(old)}(?![\d.])", new, stack)
    return name if count else f"{stack}-vllm{new}"


def retell_summary(summary: str, old: str, new: str, moved_pins: Mapping[str, tuple[str, str]]) -> str:
    """Return a summary that names the new versions of vLLM and PyTorch."""
    changes = {f"vLLM {old}": f"vLLM {new}"}
    if "torch" in moved_pins:
        before, after = (".".join(version.split(".")[:2]) for version in moved_pins["torch"])
        changes[f"PyTorch {before}"] = f"PyTorch {after}"
    for before, after in changes.items():
        summary = re.sub(rf"{re.escape(before)}(?!\d|\.\d)(?:\.0\b)?", after, summary)
    return summary


def write_heir(text: str, parent: str, summary: str, keys: Iterable[str], more: Mapping[str, Any]) -> str:
    """Return a stack that inherits the one of the version before, and says only what differs.

    `text` is the stack before with the new version, of which the line for editors and these keys are taken.
    """
    lines = text.splitlines(keepends=True)
    heading = f"{lines[0]}\n" if lines[0].startswith(SCHEMA) else ""
    parts = ["".join(lines[slice(*_find_key(lines, key))]) for key in keys]
    return "".join(
        (heading, f"inherits: {parent}\n", _write_summary(summary), *parts, write_yaml(more) if more else "")
    )


def copy_stack(text: str, summary: str, stacks: Mapping[str, str], new_ids: Mapping[str, str]) -> str:
    """Return the text of a stack that inherits one of `stacks`, for the new version."""
    lines = text.splitlines(keepends=True)
    lines[slice(*_find_key(lines, "summary"))] = [_write_summary(summary)]
    text = "".join(lines)
    for before, after in {**stacks, **new_ids}.items():
        text = re.sub(rf"(?<![\w.-]){re.escape(before)}(?![\w.-])", after, text)
    return text


def _find_key(lines: list[str], key: str) -> tuple[int, int]:
    """Return the first line of a key of a stack, and the one after its last; counted from 0."""
    start = next(number for number, line in enumerate(lines) if re.match(rf"{re.escape(key)}\s*:", line))
    end = start + 1
    while end < len(lines) and not re.match(r"[\w#\n]", lines[end]):
        end += 1
    return start, end


def _write_summary(summary: str) -> str:
    if len(line := f"summary: {summary}") <= _COLUMNS and ": " not in summary:
        return f"{line}\n"
    return f"summary: >-\n{textwrap.fill(summary, _COLUMNS, initial_indent='  ', subsequent_indent='  ')}\n"


def add_rows(text: str, document: YamlDocument, new_ids: Mapping[str, str], stacks: Mapping[str, str]) -> str:
    """Return matrix.yaml with a row before each old one, to which the old one's MOVED keys go.

    `stacks` is old → new stack. A row without a version in its id takes the new stack itself. Raises InputError.
    """
    lines, rows = text.splitlines(keepends=True), list_rows(document)
    existing_rows = [row for row in new_ids.values() if row in rows]
    if existing_rows:
        raise InputError(
            *(document.problem(("variants", row), "is there already") for row in existing_rows),
            hint=f"`./inv bump --target {existing_rows[0]}` locks it again",
        )
    changed = [name for name, row in rows.items() if name in new_ids or row.get("stack") in stacks]
    for name in reversed(changed):  # from the end, so that the places of the others stay
        start, end = _find_entry(lines, document, name)
        indent = lines[start][: -len(lines[start].lstrip())]
        new = {**rows[name], "stack": stacks.get(rows[name]["stack"], rows[name]["stack"])}
        if name not in new_ids:
            lines[start:end] = [_write_entry(indent, name, new)]
            continue
        old = {key: value for key, value in rows[name].items() if key not in MOVED}
        lines[start:end] = [_write_entry(indent, new_ids[name], new), _write_entry(indent, name, old)]
    return "".join(lines)


def _find_entry(lines: list[str], document: YamlDocument, name: str) -> tuple[int, int]:
    """Return the first line of a row, and the one after its last; counted from 0."""
    place = document.places[("variants", name)]
    start = place.line - 1
    while not re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*:", lines[start]):  # the value may begin below its key
        start -= 1
    indent = len(lines[start]) - len(lines[start].lstrip())
    end = start + 1
    while end < len(lines) and lines[end].strip() and len(lines[end]) - len(lines[end].lstrip()) > indent:
        end += 1
    return start, end


def _write_entry(indent: str, name: str, row: Mapping[str, Any]) -> str:
    """Return a row as matrix.yaml has it: in a line if it fits."""
    flow = yaml.safe_dump(row, default_flow_style=True, sort_keys=False, width=10_000).strip()
    flow = re.sub(r"'([\w.-]*)'", r'"\1"', flow)
    if len(f"{indent}{name}: {flow}") <= _COLUMNS:
        return f"{indent}{name}: {flow}\n"
    begin = f"{indent}  "
    wrapped = textwrap.fill(
        flow,
        _COLUMNS,
        initial_indent=begin,
        subsequent_indent=f"{begin} ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{indent}{name}:\n{wrapped}\n"
