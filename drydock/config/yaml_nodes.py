"""Text of a YAML file → its nodes, or an error with its place. Pure."""

from __future__ import annotations

from typing import Any

import yaml

from drydock.core.errors import InputError

MAX_DEPTH = 32


def compose(text: str, name: str) -> yaml.Node | None:
    """Return the root node of one document, None for an empty one; `name` is the file's in errors.

    Raises InputError.
    """
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise InputError(f"{where}: {error.problem or error.context}", hint=_syntax_hint(str(error.problem))) from error
    except yaml.reader.ReaderError as error:
        raise InputError(f"{name}: character {error.position} ({error.character!r}) is not allowed in YAML") from error
    except (ValueError, OverflowError) as error:  # an escape or directive with a number that is out of range
        raise InputError(f"{name}: {error}") from error


def _syntax_hint(problem: str) -> str:
    return "indent with spaces, not tabs" if r"'\t'" in problem else ""


class _Refusal(yaml.MarkedYAMLError):
    """Valid YAML that is not allowed here."""

    def __init__(self, event: yaml.Event, problem: str) -> None:
        super().__init__(problem=problem)
        mark: Any = event.start_mark
        self.problem_mark = mark


class _Loader(yaml.SafeLoader):
    """Composes nodes; refuses what this project's files have no use for."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML's stubs leave it out
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
