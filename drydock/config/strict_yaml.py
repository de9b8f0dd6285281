"""Text of a YAML file → plain data, and the line and column of each value. Pure, except read_yaml.

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

from drydock.core.errors import InputError
from drydock.core.files import open_regular

KeyPath = tuple[str | int, ...]

MAX_BYTES = 8 << 20
"""A matrix of ten thousand variants is a quarter of this."""
MAX_DEPTH = 32
SYNTAX_HINT = "look at the indentation, the quotes and the colons of this line and the one above"


class Position(NamedTuple):
    """Line and column of a value, from 1, and its text; `source` is None for mappings and sequences."""

    line: int
    column: int
    source: str | None
    file: str = ""
    """The file, if the document is made of several."""
    before: Position | None = None
    """The place of the value that this one replaces, if a lower layer has one."""

    def within(self, file: str) -> Position:
        """Return the position in a file, unless it names one."""
        return self._replace(file=self.file or file)


class YamlDocument(NamedTuple):
    """A file's data, and the position of every value by its key path; no positions for what was not read as YAML."""

    name: str
    data: Any
    places: Mapping[KeyPath, Position]

    def problem(self, path: KeyPath, message: str, at: KeyPath | None = None) -> str:
        """Return "file: key.path: message (line, column)", with the position of `at` if it differs from `path`."""
        at = path if at is None else at
        places = (self.places[at[:end]] for end in range(len(at), -1, -1) if at[:end] in self.places)
        place = next(places, None)
        position = f" (line {place.line}, column {place.column})" if place else ""
        return locate_problem((place and place.file) or self.name, path, f"{message}{position}")


def locate_problem(name: str, path: KeyPath, message: str) -> str:
    """Return "name: key.path: message"; an index of a list is written [2]."""
    words = (key if isinstance(key, int) or key.isprintable() else ascii(key) for key in path)
    keys = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in words).lstrip(".")
    return f"{name}: {keys}: {message}" if keys else f"{name}: {message}"


def read_yaml(path: Path, name: str) -> YamlDocument:
    """Read a file; errors refer to it as `name`. Raises InputError."""
    try:
        with open_regular(path) as file:
            data = file.read(MAX_BYTES + 1)
        return parse_yaml(data.decode("utf-8"), name)
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{name}: byte {error.start} is not UTF-8 (line {line})", hint="save it as UTF-8") from error


@functools.lru_cache(maxsize=256)
def parse_yaml(text: str, name: str) -> YamlDocument:
    """Parse one document, which callers share and leave as it is. Raises InputError with all problems of its values."""
    return _parse_document(text, name, _Reader)


def parse_texts(text: str, name: str) -> YamlDocument:
    """Parse a document of others, who need not quote dates and versions: every value is the text that it looks like.

    Raises InputError as `parse_yaml` does, but for no value.
    """
    return _parse_document(text, name, _TextReader)


def parse_documents(text: str, name: str) -> list[YamlDocument]:
    """Parse all documents of a file of others. Values are texts, or None where nothing stands.

    Anchors, aliases, merge keys, tags and duplicate keys (the last one counts) are read as engines read them. A value
    that aliases name is one object, however often it stands there: who walks it counts its steps. The position of a
    block scalar is its first line of text. Raises InputError.
    """
    try:
        return _LooseReader(name, text).documents()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}: line {mark.line + 1}" if mark else name
        raise InputError(f"{where}: {getattr(error, 'problem', None) or 'not YAML'}") from error
    except (ValueError, OverflowError) as error:
        raise InputError(f"{name}: {error}") from error


def _parse_document(text: str, name: str, kind: type[_Reader]) -> YamlDocument:
    if len(text) > MAX_BYTES:
        raise InputError(f"{name}: larger than {MAX_BYTES} bytes", hint="is it the right file?")
    try:
        reader = kind(name, text)
        data = reader.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        hint = "" if type(error) is yaml.MarkedYAMLError else SYNTAX_HINT  # ours say themselves what to write
        if mark and text[mark.index : mark.index + 1] == "\t":
            hint = "indent with spaces, not tabs"
        raise InputError(f"{where}: {error.problem or error.context}", hint=hint) from error
    except yaml.reader.ReaderError as error:
        line = text.encode("utf-8", "replace").count(b"\n", 0, error.position) + 1  # libyaml counts bytes
        raise InputError(f"{name}: {error.reason} (line {line})", hint="remove the character") from error
    except (ValueError, OverflowError) as error:  # half of a surrogate pair, or a directive's number out of range
        raise InputError(f"{name}: {error}") from error
    if reader.problems:
        is_read_otherwise = any("YAML reads" in problem for problem in reader.problems)
        hint = 'quote every value that is text, above all versions: python: "3.10"' if is_read_otherwise else ""
        raise InputError(*reader.problems, hint=hint)
    return YamlDocument(name, data, reader.places)


class _Kind(NamedTuple):
    """How YAML 1.1 reads a plain scalar; only spellings that mean what they look like are accepted."""

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
_RESOLVERS: Mapping[str, Any] = yaml.SafeLoader.yaml_implicit_resolvers
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml is ten times as fast; PyYAML without it gives the same events."""


@functools.lru_cache(maxsize=4096)
def _read_plain_scalar(source: str) -> tuple[Any, str]:
    """Return the value of a word without quotes, and the problem with it, if any."""
    tag = next((tag for tag, pattern in _RESOLVERS.get(source[:1], ()) if pattern.match(source)), "")
    if not tag:
        return source, ""
    kind = _KINDS[tag.removeprefix(_TAG)]
    if kind.pattern.fullmatch(source):
        return kind.value(source), ""
    return None, f"found {source}, which YAML reads as {kind.read_as}; write {kind.write}, or quote it"


def _make_refusal(event: Any) -> yaml.MarkedYAMLError:
    """Return the error for valid YAML that this project does not allow."""
    problem = f"nested deeper than {MAX_DEPTH}"
    if event.anchor:
        problem = "anchors and aliases are not allowed; write it out"
    elif event.tag:
        problem = "tags are not allowed"
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


class _Reader:
    """Turns the parser's events into data, and collects positions and problems."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.next: Callable[[], Any] = _LOADER(text).get_event
        self.places: dict[KeyPath, Position] = {(): Position(1, 1, None)}
        self._anchors: dict[str, Any] = {}
        self.problems: list[str] = []

    def document(self) -> Any:
        """Return the data of the only document, None for an empty one."""
        self.next()  # the stream starts
        if type(self.next()) is yaml.StreamEndEvent:
            return None
        root = self.next()
        data = self._value((), root, root.start_mark)
        self.next()  # the document ends
        if type(event := self.next()) is not yaml.StreamEndEvent:
            raise yaml.MarkedYAMLError(
                problem="another document starts; a file holds one", problem_mark=event.start_mark
            )
        return data

    def _value(self, path: KeyPath, event: Any, mark: Any) -> Any:
        """Return the value that an event starts; a mapping or sequence has the position of its key, `mark`."""
        if event.anchor or event.tag or len(path) >= MAX_DEPTH:
            raise _make_refusal(event)
        if type(event) is yaml.ScalarEvent:
            mark = event.start_mark
            self.places[path] = Position(mark.line + 1, mark.column + 1, event.value)
            return self._scalar(path, event)
        self.places[path] = Position(mark.line + 1, mark.column + 1, None)
        return dict(self._items(path)) if type(event) is yaml.MappingStartEvent else list(self._entries(path))

    def _items(self, path: KeyPath) -> Iterator[tuple[str, Any]]:
        first: dict[str, int] = {}
        while type(event := self.next()) is not yaml.MappingEndEvent:
            mark = event.start_mark
            key = self._key(path, event, first)
            first.setdefault(key, mark.line + 1)
            yield key, self._value((*path, key), self.next(), mark)

    def _key(self, path: KeyPath, event: Any, first: Mapping[str, int]) -> str:
        """Return a key; note a problem if it is not text or is a duplicate."""
        if type(event) is not yaml.ScalarEvent:
            self._complain(path, event, "a key must be text, found a list or mapping")
            self._value((*path, ""), event, event.start_mark)
            return ""
        if event.anchor or event.tag:
            raise _make_refusal(event)
        key: str = event.value
        if key == "<<" and event.implicit[0]:
            self._complain(path, event, "keys of another table cannot be merged by <<; write them out")
        elif event.implicit[0] and _read_plain_scalar(key) != (key, ""):
            self._complain(path, event, f'key {key!r} is not text to YAML; quote it: "{key}"')
        elif key in first:
            self._complain(path, event, f"duplicate key {key!r}, first on line {first[key]}")
        return key

    def _entries(self, path: KeyPath) -> Iterator[Any]:
        index = 0
        while type(event := self.next()) is not yaml.SequenceEndEvent:
            yield self._value((*path, index), event, event.start_mark)
            index += 1

    def _scalar(self, path: KeyPath, event: Any) -> Any:
        if not event.implicit[0]:
            return event.value
        value, problem = _read_plain_scalar(event.value)
        if problem:
            self._complain(path, event, problem)
        return value

    def _complain(self, path: KeyPath, event: Any, message: str) -> None:
        mark = event.start_mark
        self.problems.append(
            locate_problem(self.name, path, f"{message} (line {mark.line + 1}, column {mark.column + 1})")
        )


class _TextReader(_Reader):
    """Takes every key and value as text, whatever YAML would read it as."""

    def _key(self, path: KeyPath, event: Any, first: Mapping[str, int]) -> str:
        if type(event) is yaml.ScalarEvent and not event.anchor and not event.tag and event.value not in first:
            return str(event.value)
        return super()._key(path, event, first)

    def _scalar(self, path: KeyPath, event: Any) -> Any:  # noqa: ARG002 - as in the class above
        return event.value


class _LooseReader(_Reader):
    """Reads what YAML allows, with texts for values."""

    DEEPEST = 2 * MAX_DEPTH
    """Kubernetes' own schemas have 40 levels."""

    def documents(self) -> list[YamlDocument]:
        """Return every document with data."""
        documents: list[YamlDocument] = []
        self.next()  # the stream starts
        while type(self.next()) is not yaml.StreamEndEvent:
            self.places, self._anchors = {(): Position(1, 1, None)}, {}
            root = self.next()
            data = self._value((), root, root.start_mark)
            documents += [YamlDocument(self.name, data, self.places)] if data is not None else []
            self.next()  # the document ends
        return documents

    def _value(self, path: KeyPath, event: Any, mark: Any) -> Any:
        if len(path) >= self.DEEPEST:
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {self.DEEPEST}", problem_mark=event.start_mark)
        is_scalar = type(event) is yaml.ScalarEvent
        mark = event.start_mark if is_scalar else mark
        line = mark.line + (2 if is_scalar and event.style in ("|", ">") else 1)
        self.places[path] = Position(line, mark.column + 1, event.value if is_scalar else None)
        if type(event) is yaml.AliasEvent:
            return self._anchors.get(event.anchor or "")
        if is_scalar:
            value: Any = None if event.implicit[0] and event.value in ("", "~", "null") else event.value
        elif type(event) is yaml.MappingStartEvent:
            value = self._mapping(path)
        else:
            value = list(self._entries(path))
        if event.anchor:
            self._anchors[event.anchor] = value
        return value

    def _mapping(self, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        merged: list[Any] = []
        while type(event := self.next()) is not yaml.MappingEndEvent:
            if type(event) is not yaml.ScalarEvent:  # a key that no file of ours has; {{ x }} of a template is one
                self._value((*path, ""), event, event.start_mark)
                self._value((*path, ""), self.next(), event.start_mark)
                continue
            value = self._value((*path, event.value), self.next(), event.start_mark)
            if event.value == "<<":
                merged += value if isinstance(value, list) else [value]
            else:
                values[event.value] = value
        for item in merged:
            values = {**item, **values} if isinstance(item, dict) else values
        return values
