"""Text of a YAML file → its data and places by libyaml, where nothing about it is out of the ordinary. Pure.

libyaml (PyYAML's C parser) is ten times as fast as PyYAML's own parser, takes a little more, and words its errors
differently. So what is wrong, and whatever the two might read differently, is left to the slow reader: it decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import yaml

KeyPath = tuple[str | int, ...]

_ODD = re.compile("[^\n\x20-\x7e\xa1-\u2027\u2030-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]|[|>][-+0-9]*#")
"""What the two parsers differ on: tabs, line ends other than \\n, marks of byte order, a comment right after an
indicator of a block scalar."""


class Place(NamedTuple):
    """Where a value stands, from 1, and how it is written: `source` is None for mappings and sequences."""

    line: int
    column: int
    source: str | None


class Unlike(Exception):  # noqa: N818 (no error: the slow reader takes over)
    """The text is wrong, or not ordinary."""


def read(text: str, plain: Callable[[str], Any], depth: int) -> tuple[Any, dict[KeyPath, Place]]:
    """Return a document's data and the place of each value by its key path.

    `plain` turns a word without quotes into its value. Raises Unlike.
    """
    if not yaml.__with_libyaml__ or not text.endswith("\n") or _ODD.search(text):
        raise Unlike
    try:
        return _Reader(text, plain, depth).document()
    except (yaml.YAMLError, ValueError) as error:
        raise Unlike from error


class _Reader:
    """Turns libyaml's events into data as they come."""

    def __init__(self, text: str, plain: Callable[[str], Any], depth: int) -> None:
        parser: Any = yaml.CSafeLoader(text)
        self.next = parser.get_event
        self.plain = plain
        self.depth = depth
        self.places: dict[KeyPath, Place] = {}

    def document(self) -> tuple[Any, dict[KeyPath, Place]]:
        self._expect(yaml.StreamStartEvent)
        self._expect(yaml.DocumentStartEvent)
        root = self.next()
        data = self.value((), root, root.start_mark, flow=False)
        self._expect(yaml.DocumentEndEvent)
        self._expect(yaml.StreamEndEvent)
        return data, self.places

    def value(self, path: KeyPath, event: Any, mark: Any, *, flow: bool) -> Any:
        """Return the value that an event begins; a mapping or sequence stands where its key does, at `mark`."""
        kind = type(event)
        if len(path) >= self.depth or event.anchor or event.tag:
            raise Unlike
        if kind is yaml.ScalarEvent:
            mark = event.start_mark
            self.places[path] = Place(mark.line + 1, mark.column + 1, event.value)
            return self.scalar(event, flow)
        self.places[path] = Place(mark.line + 1, mark.column + 1, None)
        return self.mapping(path, event) if kind is yaml.MappingStartEvent else self.sequence(path, event)

    def mapping(self, path: KeyPath, start: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while type(event := self.next()) is not yaml.MappingEndEvent:
            if type(event) is not yaml.ScalarEvent or event.anchor or event.tag or len(path) + 1 >= self.depth:
                raise Unlike
            key = self.scalar(event, start.flow_style)
            if type(key) is not str or key in found:
                raise Unlike
            found[key] = None
            found[key] = self.value((*path, key), self.next(), event.start_mark, flow=start.flow_style)
        return found

    def sequence(self, path: KeyPath, start: Any) -> list[Any]:
        found: list[Any] = []
        while type(event := self.next()) is not yaml.SequenceEndEvent:
            found.append(self.value((*path, len(found)), event, event.start_mark, flow=start.flow_style))
        return found

    def scalar(self, event: Any, flow: bool) -> Any:
        text = event.value
        if not event.implicit[0]:
            return text
        if flow and ("?" in text or text.endswith(":")):
            raise Unlike  # PyYAML's own parser ends the word elsewhere
        return self.plain(text)

    def _expect(self, kind: type[yaml.Event]) -> None:
        if type(self.next()) is not kind:
            raise Unlike
