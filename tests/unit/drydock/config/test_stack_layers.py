"""Stacks are laid over one another as documents, and each value keeps the place where it is written."""

from __future__ import annotations

from pathlib import Path

from drydock.config.project_layers import merge_layers
from drydock.config.stack_files import StackFile
from drydock.config.stack_layers import merge_stack_files
from drydock.config.strict_yaml import YamlDocument, parse_yaml
from drydock.config.validation import validate_document
from drydock.model.variant import Stack

OLD = """\
summary: old
env: {A: {value: 1, because: a, source: s}, B: {value: 2, because: b, source: s}}
requirements: [one, two]
trim: [{distribution: x, because: r, drop: [a.so]}]
packages: [p]
"""
NEW = """\
env: {B: {value: 3, because: c, source: s}}
requirements: [three]
trim: [{distribution: y, because: r, drop: [a.so]}]
packages: [q]
"""


def stack_file(name: str, text: str, *adds: str) -> StackFile:
    document = parse_yaml(text, name)
    return StackFile("cpu", validate_document(Stack, document), document, Path(name), "", frozenset(adds))


def merged() -> YamlDocument:
    return merge_stack_files([stack_file("old.yaml", OLD), stack_file("new.yaml", NEW, "packages")])


def test_tables_are_merged_some_lists_are_added_and_all_else_is_replaced() -> None:
    stack = validate_document(Stack, merged())

    assert {name: setting.value for name, setting in stack.env.items()} == {"A": 1, "B": 3}
    assert stack.requirements == ("three",)
    assert [trim.distribution for trim in stack.trim] == ["x", "y"]
    assert stack.packages == ("p", "q")
    assert stack.summary == "old"


def test_each_value_has_its_file_and_what_it_replaced() -> None:
    places = merged().places

    assert (places["env", "A"].file, places["env", "A"].before) == ("old.yaml", None)
    replaced = places["env", "B", "value"].before
    assert (places["env", "B", "value"].file, replaced and (replaced.file, replaced.line)) == (
        "new.yaml",
        ("old.yaml", 2),
    )
    assert [places["trim", number].file for number in range(2)] == ["old.yaml", "new.yaml"]


def test_a_problem_names_the_file_and_line_of_the_value() -> None:
    assert merged().problem(("packages", 1), "unknown") == "new.yaml: packages[1]: unknown (line 4, column 12)"


def test_what_is_merged_in_two_steps_keeps_all_that_it_replaced() -> None:
    first, second, third = (parse_yaml(f"key: {number}\n", f"{number}.yaml") for number in (1, 2, 3))
    place = merge_layers([first, merge_layers([second, third])]).places["key",]

    files = []
    while place:
        files.append(place.file or "3.yaml")
        place = place.before  # type: ignore[assignment]
    assert files == ["3.yaml", "2.yaml", "1.yaml"]
