"""`cache list | export FILE [NAME …] | import FILE | remove NAME …`: manage cache entries. IO."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from entrypoints.cache.entries import COMPILED, KeptEntry, Unusable, is_in_use, listed
from entrypoints.cache.trust import is_shared, umask, writer
from entrypoints.core.errors import HOST, OK, USAGE, EntrypointError
from entrypoints.core.folders import make, remove
from entrypoints.core.text import emit, one_line, tell

Env = Mapping[str, str]
USAGE_TEXT = "cache list [--json] | export FILE|DIR|- [NAME …] | import FILE|DIR | remove NAME …"


def run(tokens: Sequence[str], env: Env) -> int:
    """Run one `cache` command; return the exit code. Raises USAGE or HOST."""
    root = env.get("DRYDOCK_CACHE_DIR") or "/cache"
    verb, rest = tokens[0] if tokens else "list", tuple(tokens[1:])
    if verb not in _VERBS:
        raise EntrypointError(USAGE, f"cache: unknown command {verb!r}", USAGE_TEXT)
    try:
        return _VERBS[verb](root, rest, env)
    except Unusable as error:
        raise EntrypointError(HOST, f"{root}: {error}") from error
    except OSError as error:
        raise EntrypointError(HOST, f"{error.filename or root}: {error.strerror or error}") from error


def _list(root: str, rest: Sequence[str], env: Env) -> int:
    found = [_row(entry, env) for entry in listed(root)]
    if rest == ("--json",):
        import json

        emit(json.dumps(found, indent=2, sort_keys=True) + "\n")
        return OK
    if rest:
        raise EntrypointError(USAGE, f"cache list: unknown argument {rest[0]!r}", USAGE_TEXT)
    for row in found:
        used = time.strftime("%Y-%m-%d %H:%M", time.gmtime(row["used"])) if row["used"] else "never"
        name, made_for = one_line(row["name"]), one_line(str(row["for"]))
        emit(f"{name}  {row['state']}  {row['bytes'] / 1e6:.1f} MB  {used}  {made_for}\n")
    return OK


def _row(entry: KeptEntry, env: Env) -> dict[str, Any]:
    kept = entry.kept
    factors = kept.get("factors", {})
    state = "unreadable"
    if kept:
        state = "ready" if kept["ready"] else "unfinished"
    if not is_shared(env) and writer(entry.path):
        state = "not trusted"
    return {
        "name": os.path.basename(entry.path),
        "state": state,
        "in_use": is_in_use(entry.path),
        "bytes": kept.get("bytes", 0),
        "used": kept.get("used", 0),
        "for": factors.get("model", factors.get("device", "")),
        "factors": factors,
    }


def _export(root: str, rest: Sequence[str], env: Env) -> int:
    from entrypoints.cache.artifact import export, pack

    target, entries = _target(rest), _ready(root, rest[1:], env)
    is_folder = not target.endswith(".tar") and target != "-"
    layout = f"{target}.{os.getpid()}" if is_folder else f"{root}/.export.{os.getpid()}"
    try:
        digest = export(entries, layout)
        if is_folder:
            os.rename(layout, target)
        elif target == "-":
            pack(layout, sys.stdout.buffer)
        else:
            _pack_into(target, layout)
    finally:
        remove(layout)
    _say(f"exported {len(entries)} entries to {target}: {digest}")
    return OK


def _pack_into(target: str, layout: str) -> None:
    from entrypoints.cache.artifact import pack

    temporary = f"{target}.{os.getpid()}"
    try:
        with open(temporary, "wb") as file:
            pack(layout, file)
        os.replace(temporary, target)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _target(rest: Sequence[str]) -> str:
    if not rest:
        raise EntrypointError(USAGE, "cache: missing argument", USAGE_TEXT)
    return rest[0]


def _ready(root: str, names: Sequence[str], env: Env) -> list[KeptEntry]:
    """Return all ready entries that no other user could have written, or the named ones. Raises USAGE."""
    rows = ((entry, _row(entry, env)) for entry in listed(root))
    found = {row["name"]: entry for entry, row in rows if row["state"] == "ready"}
    unknown = [name for name in names if name not in found]
    if unknown or not found:
        message = f"no ready entry {unknown[0]!r}" if unknown else "no ready entries"
        hint = f"ready entries: {', '.join(sorted(found))}" if found else "fill the cache with `warm --model MODEL`"
        raise EntrypointError(USAGE, f"{root}/{COMPILED}: {message}", hint)
    return [found[name] for name in sorted(names or found)]


def _import(root: str, rest: Sequence[str], env: Env) -> int:
    from entrypoints.cache.artifact import imported, unpack

    source, layout = _target(rest), f"{root}/.import.{os.getpid()}"
    os.umask(umask(env))
    if os.path.isdir(source):
        _say_all(imported(source, root))
        return OK
    try:
        make(layout)
        unpack(source, layout)
        _say_all(imported(layout, root))
    finally:
        remove(layout)
    return OK


def _remove(root: str, rest: Sequence[str], _: Env) -> int:
    _target(rest)
    entries = {os.path.basename(entry.path): entry.path for entry in listed(root)}
    for name in rest:
        if name not in entries:
            hint = f"entries: {', '.join(sorted(entries))}"
            raise EntrypointError(USAGE, f"{root}/{COMPILED}: no entry {name!r}", hint)
        if is_in_use(entries[name]):
            raise EntrypointError(HOST, f"{entries[name]}: in use by a server", "stop that server first")
        remove(entries[name])
        _say(f"removed {name}")
    return OK


def _say_all(lines: Iterable[str]) -> None:
    for line in lines:
        _say(line)


def _say(text: str) -> None:
    tell(f"drydock: {text}")


_VERBS = {"list": _list, "export": _export, "import": _import, "remove": _remove}
