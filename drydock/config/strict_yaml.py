"""Text of a YAML file → plain data and where each value stands. Pure, but for read_yaml.

A strict subset: no duplicate or non-text keys, no anchors, aliases, tags or merge keys, and no plain scalar that YAML
1.1 reads as something other than what it looks like (`no` is false, `012` is ten, `1:30` is ninety, `12.10` is 12.1).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from drydock.config import quick_yaml
from drydock.config.quick_yaml import KeyPath, Place, Unlike
from drydock.config.yaml_nodes import MAX_DEPTH, compose
from drydock.core.errors import InputError

MAX_BYTES = 8 << 20
"""A matrix of ten thousand variants is a quarter of this; more is a wrong file."""


class Document(NamedTuple):
    """A file's data, and the place of every value by its key path."""

    name: str
    data: Any
    places: Mapping[KeyPath, Place]

    def problem(self, path: KeyPath, message: str, at: KeyPath | None = None) -> str:
        """Return `message` after file and key path, and before line and column: those of `at` where it differs."""
        at = path if at is None else at
        place = next(self.places[at[:end]] for end in range(len(at), -1, -1) if at[:end] in self.places)
        return locate(self.name, path, f"{message} (line {place.line}, column {place.column})")


def locate(name: str, path: KeyPath, message: str) -> str:
    """Return "name: key.path: message"; a position in a list is written [2]."""
    keys = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")
    return f"{name}: {keys}: {message}" if keys else f"{name}: {message}"


def read_yaml(path: Path, name: str) -> Document:
    """Read a file; `name` stands for it in errors. Raises InputError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        return parse_yaml(data.decode("utf-8"), name)
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: byte {error.start} is not UTF-8", hint="save the file as UTF-8") from error


def parse_yaml(text: str, name: str) -> Document:
    """Parse one document; collects all problems. Raises InputError."""
    if len(text) > MAX_BYTES:
        raise InputError(f"{name}: larger than {MAX_BYTES} bytes", hint="is it the right file?")
    try:
        return Document(name, *quick_yaml.read(text, _plain, MAX_DEPTH))
    except Unlike:
        return _slowly(text, name)


def _slowly(text: str, name: str) -> Document:
    """Read what is wrong or out of the ordinary: PyYAML's own parser says what and where."""
    reader = _Reader(name)
    data = reader.read((), compose(text, name))
    if reader.problems:
        raise InputError(*reader.problems, hint=_HINT)
    return Document(name, data, reader.places)


_HINT = 'quote every value that is text, above all versions: python: "3.10"'


class _Kind(NamedTuple):
    """What YAML 1.1 makes of a plain scalar: only spellings that mean what they look like are taken."""

    pattern: re.Pattern[str]
    value: Callable[[str], Any]
    read_as: str
    write: str


_NEVER = re.compile(r"(?!)")
_KINDS = {
    "null": _Kind(re.compile(r"null|~|"), lambda _: None, "nothing", "null"),
    "bool": _Kind(re.compile(r"true|false"), lambda source: source == "true", "a truth value", "true or false"),
    "int": _Kind(re.compile(r"0|-?[1-9][0-9]{0,17}"), int, "a whole number", "it in plain decimals"),
    "float": _Kind(re.compile(r"-?[0-9]{1,17}\.[0-9]{1,17}"), float, "a number", "it in plain decimals"),
    "timestamp": _Kind(_NEVER, str, "a date", "text"),
    "merge": _Kind(_NEVER, str, "a merge key", "every key"),
    "value": _Kind(_NEVER, str, "a default value", "text"),
}
_TAG = "tag:yaml.org,2002:"
_STR = f"{_TAG}str"
_RESOLVERS: Mapping[str, Any] = yaml.SafeLoader.yaml_implicit_resolvers
_SURROGATE = re.compile("[\ud800-\udfff]")


@functools.lru_cache(maxsize=4096)
def _plain(source: str) -> Any:
    """Return what a word without quotes means. Raises Unlike for one that does not mean what it looks like."""
    tag = next((tag for tag, pattern in _RESOLVERS.get(source[:1], ()) if pattern.match(source)), _STR)
    if tag == _STR:
        return source
    kind = _KINDS[tag.removeprefix(_TAG)]
    if not kind.pattern.fullmatch(source):
        raise Unlike
    return kind.value(source)


class _Reader:
    """Turns nodes into data, and remembers places and problems."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.places: dict[KeyPath, Place] = {}
        self.problems: list[str] = []

    def read(self, path: KeyPath, node: yaml.Node | None, key: yaml.Node | None = None) -> Any:
        """Return a node's data; a mapping or sequence stands where its key does, which is what people look for."""
        if node is None:
            self.places[path] = Place(1, 1, None)
            return None
        source = node.value if isinstance(node, yaml.ScalarNode) else None
        mark = key.start_mark if key and source is None else node.start_mark
        self.places[path] = Place(mark.line + 1, mark.column + 1, source)
        if isinstance(node, yaml.MappingNode):
            return dict(self._items(path, node))
        if isinstance(node, yaml.SequenceNode):
            return [self.read((*path, index), item) for index, item in enumerate(node.value)]
        return self._scalar(path, node)

    def _items(self, path: KeyPath, node: yaml.MappingNode) -> Iterator[tuple[str, Any]]:
        first: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self._complain(path, key, "a key must be text, found a list or mapping")
            elif key.tag != _STR:
                self._complain(path, key, f'key {key.value!r} is not text to YAML; quote it: "{key.value}"')
            elif key.value in first:
                self._complain(path, key, f"duplicate key {key.value!r}, first on line {first[key.value]}")
            else:
                first[key.value] = line
                yield key.value, self.read((*path, key.value), value, key)

    def _scalar(self, path: KeyPath, node: yaml.Node) -> Any:
        source: str = node.value
        if node.tag == _STR:
            if _SURROGATE.search(source):
                self._complain(path, node, "half of a surrogate pair is not text")
            return source
        kind = _KINDS[node.tag.removeprefix(_TAG)]
        if kind.pattern.fullmatch(source):
            return kind.value(source)
        self._complain(
            path, node, f"found {source}, which YAML reads as {kind.read_as}; write {kind.write}, or quote it"
        )
        return None

    def _complain(self, path: KeyPath, node: yaml.Node, message: str) -> None:
        mark = node.start_mark
        self.problems.append(locate(self.name, path, f"{message} (line {mark.line + 1}, column {mark.column + 1})"))
