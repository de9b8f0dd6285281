"""Text of a YAML file → its nodes, or an error with its place. Pure.

libyaml (PyYAML's C parser) is ten times as fast as PyYAML's own parser, takes a little more, and words its errors
differently. So it reads what both read alike; whatever it refuses, or might read otherwise, the Python parser decides.
"""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.composer import Composer

from drydock.errors import InputError

MAX_DEPTH = 32

_ODD = re.compile("[^\n\x20-\x7e\xa1-\u2027\u2030-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]|[|>][-+0-9]*#")
"""What the two parsers differ on: tabs, line ends other than \\n, marks of byte order, a comment right after an
indicator of a block scalar."""


def compose(text: str, name: str) -> yaml.Node | None:
    """Return the root node of one document, None for an empty one; `name` is the file's in errors.

    Raises InputError.
    """
    if _Quick is not None and text.endswith("\n") and not _ODD.search(text):
        try:
            return _compose(_Quick, text)
        except (yaml.YAMLError, ValueError):
            pass  # what is wrong, and where, the Python parser says below
    return _in_words(text, name)


def _in_words(text: str, name: str) -> yaml.Node | None:
    """Parse text into nodes, turning every way PyYAML can fail into one error with its place."""
    try:
        return _compose(_Loader, text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise InputError(f"{where}: {error.problem or error.context}", hint=_syntax_hint(str(error.problem))) from error
    except yaml.reader.ReaderError as error:
        raise InputError(f"{name}: character {error.position} ({error.character!r}) is not allowed in YAML") from error
    except (ValueError, OverflowError) as error:  # an escape or directive with a number that is out of range
        raise InputError(f"{name}: {error}") from error


def _compose(loader_type: Any, text: str) -> yaml.Node | None:
    loader = loader_type(text)
    try:
        node: yaml.Node | None = loader.get_single_node()
        return node
    finally:
        loader.dispose()


def _syntax_hint(problem: str) -> str:
    return "indent with spaces, not tabs" if r"'\t'" in problem else ""


class _Refusal(yaml.MarkedYAMLError):
    """Valid YAML that is not allowed here."""

    def __init__(self, event: Any, problem: str) -> None:
        super().__init__(problem=problem)
        mark: Any = event.start_mark
        self.problem_mark = mark


class _Strict(Composer):
    """Composes nodes; refuses what this project's files have no use for."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[attr-defined]  # of the parser that it is combined with
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _Refusal(event, f"nested deeper than {MAX_DEPTH}")
        if getattr(event, "anchor", None):
            raise _Refusal(event, "anchors and aliases are not allowed; write it out")
        if getattr(event, "tag", None):
            raise _Refusal(event, "tags are not allowed")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Loader(_Strict, yaml.SafeLoader):
    """PyYAML's own parser: slow, and its errors are what people see."""


def _see_that_both_read(node: yaml.ScalarNode) -> None:
    """Refuse a plain scalar within [] or {} that PyYAML's own parser ends elsewhere."""
    if "?" in node.value or node.value.endswith(":"):
        raise _Refusal(node, "left to the other parser")


def _quick() -> Any:
    """Return the same upon libyaml; None where PyYAML was built without it."""
    if not yaml.__with_libyaml__:
        return None

    class Quick(_Strict, yaml.CSafeLoader):
        def __init__(self, text: str) -> None:
            yaml.CSafeLoader.__init__(self, text)
            Composer.__init__(self)

        def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
            node = super().compose_node(parent, index)
            if isinstance(node, yaml.ScalarNode) and not node.style and getattr(parent, "flow_style", False):
                _see_that_both_read(node)
            return node

    return Quick


_Quick = _quick()
