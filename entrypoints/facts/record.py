"""Writes and reads a recorded host: a JSON file from which any machine gets the same facts. IO.

It holds only what the probe read: files (as far as it read them), folders, and the output of commands. It holds no
environment, no mount table and no files of the user. It may come from anyone, so everything is checked when it is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from entrypoints.accelerators import import_probe
from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.folders import read_bounded
from entrypoints.core.parse import parse_untrusted_json
from entrypoints.core.records import Facts, to_json
from entrypoints.core.text import HOST_SECTION, extract_section
from entrypoints.facts.probes.common.system import MACHINE, MOUNTS, to_mounts
from entrypoints.facts.probes.common.tools import TIMEOUT
from entrypoints.host.commands import RECORD, Commands, to_answers
from entrypoints.host.host import Host
from entrypoints.host.source import Recorded

FILE = "host.json"
"""File name of a recorded host in its folder."""
SIZE_AT_MOST = 16 << 20
"""Largest size of host.json in bytes. The largest in tests/hosts has 0.2 MB."""
FILES_AT_MOST = 16_384
STEPS_AT_MOST = 32
"""Most folders in one path."""

_HINT = "record the host again: facts --record host.json"
_WRITTEN_BY = "expected a file that `facts --record host.json` or `report` wrote"
_TREE = ("proc", "sys")
"""Folders of a host that is recorded as a file tree: any of them."""


# --- writing --------------------------------------------------------------------------------------------------------


def write_recorded_host(
    host: Host, commands: Commands, facts: Facts, path: str, more: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Write a recorded host atomically and return the path of the file; `more` are files that no probe reads.

    If `path` does not end in .json, it is a new folder and the file is host.json in it.
    Raises USAGE if the path already exists, HOST if it cannot be written.
    """
    target = os.path.abspath(path)
    single = target.endswith(".json")
    if os.path.lexists(target) and (single or not os.path.isdir(target) or os.listdir(target)):
        raise EntrypointError(USAGE, f"--record {path}: already exists", "give the path of a new file")
    file = target if single else os.path.join(target, FILE)
    _run_recorded_commands(commands, facts)
    try:
        _write_new_file(file, format_recorded_host(host, commands, facts, more))
    except OSError as error:
        raise EntrypointError(
            HOST,
            f"--record {path}: {error.strerror} (errno {error.errno}), expected a writable path",
            "give a new file in a writable folder, such as /cache/host.json",
        ) from error
    return file


def _run_recorded_commands(commands: Commands, facts: Facts) -> None:
    """Run the commands that only a recording needs. One that fails is not recorded."""
    more = getattr(import_probe(facts.accelerator), "also_recorded", None)
    for argv in more(facts.devices, commands.answers) if more else ():
        if commands.run(argv, TIMEOUT).rc:
            del commands.answers[" ".join(argv)]


def format_recorded_host(
    host: Host, commands: Commands, facts: Facts, more: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return the text of host.json."""
    files = {**dict.fromkeys(host.present, ""), **host.texts, **more}
    folders = {path for path in files if any(child.startswith(f"{path}/") for child in files)}
    value = {
        "origin": host.source.origin,
        "machine": facts.processor.architecture,
        "mounts": to_json(facts.mounts),
        "files": {path: text for path, text in files.items() if path not in {*folders, MACHINE, MOUNTS, RECORD}},
        "links": {},
        "commands": to_json(commands.answers),
    }
    return dump_recorded_host(value)


def dump_recorded_host(value: Any) -> str:
    """Format a recorded host as JSON."""
    import json

    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _write_new_file(file: str, text: str) -> None:
    os.makedirs(os.path.dirname(file), exist_ok=True)
    temporary = f"{file}.{os.getpid()}"
    try:
        with open(temporary, "x", encoding="utf-8", errors="replace", newline="") as opened:
            opened.write(text)
        os.rename(temporary, file)
    except BaseException:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise


# --- reading --------------------------------------------------------------------------------------------------------


def open_host(root: str) -> Host:
    """Open the host that `--root` names: host.json, a folder with host.json, a file tree, or / for the running system.

    Raises USAGE if it is none of these, or host.json is invalid.
    """
    inside = os.path.join(root, FILE)
    if root and not os.path.isdir(root):
        return Host(source=read_record(root))
    if root and os.path.lexists(inside):
        return Host(source=read_record(inside))
    if root and not any(os.path.isdir(os.path.join(root, folder)) for folder in _TREE):
        raise EntrypointError(USAGE, f"--root {root}: no recorded host is in this folder", _WRITTEN_BY)
    return Host("" if root == "/" else root)


def read_record(path: str) -> Recorded:
    """Read a host.json. Raises USAGE."""
    try:
        data = read_bounded(path, SIZE_AT_MOST)
    except OSError as error:
        problem = f"--root {path}: {error.strerror} (errno {error.errno})"
        raise EntrypointError(USAGE, problem, _WRITTEN_BY) from error
    try:
        return parse_record(extract_section(data.decode(), HOST_SECTION))
    except ValueError as error:
        raise EntrypointError(USAGE, f"--root {path}: {error}", _HINT) from error


def parse_record(text: str) -> Recorded:
    """Parse the text of host.json. Raises ValueError, which names the key."""
    value = parse_untrusted_json(text)
    if not isinstance(value, dict):
        raise ValueError(f"found {type(value).__name__}, expected an object")  # noqa: TRY004 - as for any wrong value
    unknown, absent = sorted(value.keys() - _PARTS.keys()), sorted(_PARTS.keys() - value.keys())
    if unknown or absent:
        what = f"unknown key {unknown[0][:80]!r}" if unknown else f"key {absent[0]!r} is missing"
        raise ValueError(f"{what}, expected {', '.join(_PARTS)}")
    record_parts = {key: _read_part(key, read, value[key]) for key, read in _PARTS.items()}
    parts = {MOUNTS: record_parts["mounts"], RECORD: record_parts["commands"]}
    return Recorded({**record_parts["files"], MACHINE: record_parts["machine"] + "\n"}, parts, record_parts["origin"])


def _read_part(key: str, read: Callable[[Any], Any], value: Any) -> Any:
    try:
        _require_encodable(value)
        return read(value)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def _require_encodable(value: Any) -> None:
    """Raise ValueError for text with a lone surrogate: JSON can contain one, but it cannot be printed or written."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, dict):
        for key, item in value.items():
            _require_encodable(key)
            _require_encodable(item)


def _require_json_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"found {type(value).__name__}, expected text")  # noqa: TRY004 - as for any wrong value
    return value


def _require_machine(value: Any) -> str:
    machine = _require_json_text(value)
    if not machine.isprintable() or not machine.strip():
        raise ValueError(f"found {machine[:80]!r}, expected the output of `uname -m`")
    return machine


def _require_files(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > FILES_AT_MOST:
        raise ValueError(f"expected an object of at most {FILES_AT_MOST} paths and their texts")
    for path, text in value.items():
        steps = path[1:].split("/")
        if path[:1] != "/" or not {"", ".", ".."}.isdisjoint(steps) or not path.isprintable():
            raise ValueError(f"{path[:80]!r}: expected an absolute path without `.`, `..` or empty parts")
        if len(steps) > STEPS_AT_MOST:
            raise ValueError(f"{path[:80]!r}: expected at most {STEPS_AT_MOST} folders")
        if not isinstance(text, str):
            raise ValueError(f"{path[:80]!r}: found {type(text).__name__}, expected text")  # noqa: TRY004 - as above
    return value


def _require_no_links(value: Any) -> dict[str, str]:
    if value != {}:
        raise ValueError("expected {}: probes do not read symbolic links")
    return {}


_PARTS: dict[str, Callable[[Any], Any]] = {
    "origin": _require_json_text,
    "machine": _require_machine,
    "mounts": to_mounts,
    "files": _require_files,
    "links": _require_no_links,
    "commands": to_answers,
}
