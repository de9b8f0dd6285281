"""`cache list | export FILE [NAME …] | import FILE | remove NAME …`: manage cache entries. IO."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from entrypoints.cache.entries import COMPILED, KeptEntry, Unusable, is_in_use, list_entries
from entrypoints.cache.trust import choose_umask, find_writer, is_shared
from entrypoints.core.errors import HOST, OK, USAGE, EntrypointError
from entrypoints.core.folders import make_folder, remove_folder
from entrypoints.core.text import emit_text, format_one_line, print_message
from entrypoints.request.arguments import Arguments

Env = Mapping[str, str]
USAGE_TEXT = "cache list [--json] | export FILE|DIR|- [NAME …] | import FILE|DIR | remove NAME …"


def run_cache(arguments: Arguments, env: Env) -> int:
    """Run one `cache` command; return the exit code. Raises USAGE or HOST."""
    tokens = arguments.vllm
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


def _list_cache(root: str, rest: Sequence[str], env: Env) -> int:
    rows = [_make_cache_row(entry, env) for entry in list_entries(root)]
    if rest == ("--json",):
        import json

        emit_text(json.dumps(rows, indent=2, sort_keys=True) + "\n")
        return OK
    if rest:
        raise EntrypointError(USAGE, f"cache list: unknown argument {rest[0]!r}", USAGE_TEXT)
    for row in rows:
        last_used = time.strftime("%Y-%m-%d %H:%M", time.gmtime(row["used"])) if row["used"] else "never"
        name, made_for = format_one_line(row["name"]), format_one_line(str(row["for"]))
        emit_text(f"{name}  {row['state']}  {row['bytes'] / 1e6:.1f} MB  {last_used}  {made_for}\n")
    return OK


def _make_cache_row(entry: KeptEntry, env: Env) -> dict[str, Any]:
    manifest = entry.manifest
    factors = manifest.get("factors", {})
    state = "unreadable"
    if manifest:
        state = "ready" if manifest["ready"] else "unfinished"
    if not is_shared(env) and find_writer(entry.path):
        state = "not trusted"
    return {
        "name": os.path.basename(entry.path),
        "state": state,
        "in_use": is_in_use(entry.path),
        "bytes": manifest.get("bytes", 0),
        "used": manifest.get("used", 0),
        "for": factors.get("model", factors.get("device", "")),
        "factors": factors,
    }


def _export_cache(root: str, rest: Sequence[str], env: Env) -> int:
    from entrypoints.cache.artifact import export_entries, pack_layout

    target, entries = _require_target(rest), _choose_ready_entries(root, rest[1:], env)
    is_folder = not target.endswith(".tar") and target != "-"
    layout = f"{target}.{os.getpid()}" if is_folder else f"{root}/.export.{os.getpid()}"
    try:
        digest = export_entries(entries, layout)
        if is_folder:
            os.rename(layout, target)
        elif target == "-":
            pack_layout(layout, sys.stdout.buffer)
        else:
            _pack_into(target, layout)
    finally:
        remove_folder(layout)
    print_message(f"exported {len(entries)} entries to {target}: {digest}")
    return OK


def _pack_into(target: str, layout: str) -> None:
    from entrypoints.cache.artifact import pack_layout

    temporary = f"{target}.{os.getpid()}"
    try:
        with open(temporary, "wb") as file:
            pack_layout(layout, file)
        os.replace(temporary, target)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _require_target(rest: Sequence[str]) -> str:
    if not rest:
        raise EntrypointError(USAGE, "cache: missing argument", USAGE_TEXT)
    return rest[0]


def _choose_ready_entries(root: str, names: Sequence[str], env: Env) -> list[KeptEntry]:
    """Return all ready entries that no other user could have written, or the named ones. Raises USAGE."""
    rows = ((entry, _make_cache_row(entry, env)) for entry in list_entries(root))
    ready_entries = {row["name"]: entry for entry, row in rows if row["state"] == "ready"}
    unknown = [name for name in names if name not in ready_entries]
    if unknown or not ready_entries:
        message = f"no ready entry {unknown[0]!r}" if unknown else "no ready entries"
        hint = (
            f"ready entries: {', '.join(sorted(ready_entries))}"
            if ready_entries
            else "fill the cache with `warm --model MODEL`"
        )
        raise EntrypointError(USAGE, f"{root}/{COMPILED}: {message}", hint)
    return [ready_entries[name] for name in sorted(names or ready_entries)]


def _import_cache(root: str, rest: Sequence[str], env: Env) -> int:
    from entrypoints.cache.artifact import import_entries, unpack_layout

    source, layout = _require_target(rest), f"{root}/.import.{os.getpid()}"
    os.umask(choose_umask(env))
    try:
        if not os.path.isdir(source):
            make_folder(layout)
            unpack_layout(source, layout)
            source = layout
        for line in import_entries(source, root):
            print_message(line)
    finally:
        remove_folder(layout)
    return OK


def _remove_cache_entries(root: str, rest: Sequence[str], _: Env) -> int:
    _require_target(rest)
    entries = {os.path.basename(entry.path): entry.path for entry in list_entries(root)}
    for name in rest:
        if name not in entries:
            hint = f"entries: {', '.join(sorted(entries))}"
            raise EntrypointError(USAGE, f"{root}/{COMPILED}: no entry {name!r}", hint)
        if is_in_use(entries[name]):
            raise EntrypointError(HOST, f"{entries[name]}: in use by a server", "stop that server first")
        remove_folder(entries[name])
        print_message(f"removed {name}")
    return OK


_VERBS = {"list": _list_cache, "export": _export_cache, "import": _import_cache, "remove": _remove_cache_entries}
