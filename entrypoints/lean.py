"""What nearly every module needs of typing, json, hashlib, signal and socket, without what importing them costs.

With all that they import in turn (re, enum, selectors, OpenSSL) they were half of the time until vLLM starts, and a
start needs little of them: no annotation is ever evaluated here, and the rest is in these modules' C halves. A type
checker sees the modules themselves; an interpreter without such a half uses the whole module.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
"""As typing's: type checkers take it for true."""

if TYPE_CHECKING:
    import signal as signals
    import socket as sockets
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from hashlib import sha256
    from json import loads
    from types import MappingProxyType
    from typing import Any, NamedTuple
else:
    from _collections_abc import Callable, Iterable, Iterator, Mapping, Sequence
    from _operator import itemgetter

    Any = object
    MappingProxyType = type(type.__dict__)

    try:
        import _signal as signals
        import _socket as sockets
    except ImportError:
        import signal as signals
        import socket as sockets

    try:
        from _sha2 import sha256  # its name since Python 3.12
    except ImportError:
        try:
            from _sha256 import sha256
        except ImportError:
            from hashlib import sha256

    class _Fields(type):
        """Makes a named tuple of a class, whose annotations are its fields."""

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            fields = tuple(body.get("__annotations__", ()))
            if not fields:  # NamedTuple itself, or a record with further methods
                return type.__new__(cls, name, bases, body)
            defaults = {field: body.pop(field) for field in fields if field in body}
            getters = {field: property(itemgetter(place)) for place, field in enumerate(fields)}
            own = {"__slots__": (), "__match_args__": fields, "_fields": fields, "_field_defaults": defaults}
            return type.__new__(cls, name, bases, {**body, **getters, **own})

    class NamedTuple(tuple, metaclass=_Fields):
        """As typing's, which compiles a method for each class and each annotation: 0.1 ms for every record."""

        __slots__ = ()

        def __new__(cls, *values: Any, **named: Any) -> NamedTuple:  # noqa: PYI034 -- Self came with 3.11
            """Make one of values by place, by name and by default. Raises TypeError."""
            fields = cls._fields
            if not named and len(values) == len(fields):
                return tuple.__new__(cls, values)
            given = {**cls._field_defaults, **dict(zip(fields, values, strict=False)), **named}
            twice = named.keys() & fields[: len(values)]
            if twice or len(values) > len(fields) or given.keys() != set(fields):
                found = f"{len(values)} values and {', '.join(named) or 'no names'}"
                raise TypeError(f"{cls.__name__}: found {found}, expected {', '.join(fields)}")
            return tuple.__new__(cls, [given[field] for field in fields])

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)

        def __repr__(self) -> str:
            return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, **changes: Any) -> NamedTuple:
            return type(self)(**{**self._asdict(), **changes})

    class _Decoder:
        """What json's scanner asks its decoder for: json.JSONDecoder's own defaults."""

        strict = True
        object_hook = object_pairs_hook = None
        parse_float, parse_int = float, int
        parse_constant = {name: float(name) for name in ("NaN", "Infinity", "-Infinity")}.__getitem__

    _BLANK = " \t\n\r"

    def loads(text: str) -> Any:
        """Return what a JSON text says, as json.loads does, which then explains what is wrong with one that is none."""
        try:
            import _json

            value, end = _json.make_scanner(_Decoder)(text, len(text) - len(text.lstrip(_BLANK)))
        except (ImportError, AttributeError, ValueError, StopIteration, SystemError):
            end = 0  # SystemError: the scanner takes its exception from json.decoder, which nobody has imported
        if end and not text[end:].strip(_BLANK):
            return value
        import json

        return json.loads(text)


def module(name: str) -> Any:
    """Return a module by its dotted name, as importlib.import_module does, which takes 1 ms to import."""
    __import__(name)
    return sys.modules[name]


__all__ = [
    "TYPE_CHECKING",
    "Any",
    "Callable",
    "Iterable",
    "Iterator",
    "Mapping",
    "MappingProxyType",
    "NamedTuple",
    "Sequence",
    "loads",
    "module",
    "sha256",
    "signals",
    "sockets",
]
