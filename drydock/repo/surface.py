"""What users rely on, and version numbers promise: verbs, options, exit codes, findings, keys of files, labels.

docs/reference/surface.json has that of the last release: `./inv release` compares and writes it. Pure, but for files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from invoke.collection import Collection

from drydock.build import render
from drydock.build.job import STAND_IN
from drydock.core import errors
from drydock.core.errors import DrydockError, InputError
from drydock.core.files import dumps, parse_json
from drydock.core.paths import ROOT
from drydock.model.topology_findings import FINDINGS
from drydock.model.variant import Variant
from drydock.repo import schema
from entrypoints.core import errors as image_errors
from entrypoints.request import arguments

FILE = Path("docs", "reference", "surface.json")
OWN = ("bench", "ci", "docs", "lint", "release", "requirements", "schema", "test")
"""Tasks that develop drydock, and that an installed drydock does not have."""
INTERNAL = ("profile",)
"""Files that are read by the drydock that wrote them."""
REQUIRED = "required"
_DEEPEST = 12
"""Keys below each other. A type that contains itself would go on for ever."""

Surface = Mapping[str, Mapping[str, str]]
"""Kind → name → what it takes: words with commas between."""


class SurfaceChanges(NamedTuple):
    """How a surface differs from an earlier one. Each is a kind and a name."""

    added: tuple[tuple[str, str], ...]
    broken: tuple[tuple[str, str], ...]
    """What is gone, or means something else."""


def present(tasks: Collection, variants: Sequence[Variant]) -> dict[str, dict[str, str]]:
    """Return the surface of this drydock."""
    own_errors: list[type[DrydockError]] = [DrydockError, *_below(DrydockError)]
    labels = {name for variant in variants for name in render.labels(variant) if name not in variant.additions.labels}
    found = {
        "tasks": _tasks(tasks),
        "verbs of an image": _verbs(),
        "exit codes": {f"{each.code} {each.__name__}": "" for each in own_errors},
        "exit codes of an image": {
            f"{code} {name}": ""
            for name, code in vars(image_errors).items()
            if name.isupper() and isinstance(code, int)
        },
        "findings": dict.fromkeys([*_findings(variants), *FINDINGS], ""),
        "labels": dict.fromkeys([*labels, STAND_IN], ""),
        "keys": _keys(),
    }
    return {kind: dict(sorted(names.items())) for kind, names in found.items()}


def compare(old: Surface, new: Surface) -> SurfaceChanges:
    """Return what a surface adds to an earlier one, and what it breaks.

    Something is broken if it is gone, takes less than before, or is required now.
    """
    before = {(kind, name): _words(text) for kind, names in old.items() for name, text in names.items()}
    after = {(kind, name): _words(text) for kind, names in new.items() for name, text in names.items()}
    added = after.keys() - before.keys()
    broken = {each for each, words in before.items() if each not in after or not _accepts(after[each], words)}
    broken |= {
        (kind, name) for kind, name in added if REQUIRED in after[kind, name] and (kind, _parent(name)) in before
    }
    return SurfaceChanges(tuple(sorted(added - broken)), tuple(sorted(broken)))


def _words(text: str) -> frozenset[str]:
    return frozenset(filter(None, text.split(", ")))


def _accepts(now: frozenset[str], before: frozenset[str]) -> bool:
    return before - {REQUIRED} <= now and (REQUIRED in before or REQUIRED not in now)


def _parent(name: str) -> str:
    """Return what a name is below: the task of an option, the key above a key."""
    return re.sub(r"(\.| )[^. ]+$", "", name)


def unnamed(broken: Iterable[tuple[str, str]], text: str) -> list[str]:
    """Return what is broken and not named in a text: a changelog's."""
    return [f"{kind}: {name}" for kind, name in broken if not re.search(_word(kind, name), text)]


def _word(kind: str, name: str) -> str:
    """Return an expression for the word that must name something: the option, the last key, the number."""
    number, _, _ = name.partition(" ")
    last = re.split(r"[. ]", re.sub(r"(\.\*|\[\])+(?= |$)", "", name))[-1].strip('"')
    return rf"(?<![\w.-]){re.escape(number if kind.startswith('exit codes') else last)}(?![\w-]|\.\d)"


def read_recorded(root: Path = ROOT) -> tuple[str, Surface]:
    """Return the release whose surface is recorded, and that surface. Raises InputError."""
    try:
        data = parse_json((root / FILE).read_bytes(), str(FILE))
        return str(data["release"]), data["surface"]
    except (OSError, KeyError) as error:
        raise InputError(f"{FILE}: cannot be read: {error}", hint=f"git checkout {FILE}") from error


def text(release: str, surface: Surface) -> str:
    """Return what is recorded."""
    return dumps({"release": release, "surface": surface})


# --- what there is ----------------------------------------------------------------------------------------------------


def _tasks(tasks: Collection) -> dict[str, str]:
    """Return each task of an installed drydock and each of its options, with what an option takes."""
    found: dict[str, str] = {}
    for context in tasks.to_contexts():
        name = min((str(context.name), *context.aliases), key=len).replace(".", " ")
        if name.split()[0] in OWN:
            continue
        positional = {argument.name for argument in context.positional_args}
        found[name] = ""
        for flag, argument in context.flags.items():
            if flag.startswith("--"):
                takes = "values" if argument.kind is list else "a value" if argument.takes_value else "nothing"
                found[f"{name} {flag}"] = f"{takes}, {REQUIRED}" if argument.name in positional else takes
    return found


def _verbs() -> dict[str, str]:
    flags = arguments.FLAGS.items()
    takes = ("nothing", "a value", "two values")
    options = {f"{verb} {name}": takes[len(option.value.split())] for name, option in flags for verb in option.verbs}
    return dict.fromkeys(arguments.VERBS, "") | options


def _below(parent: type[DrydockError]) -> Iterator[type[DrydockError]]:
    """Yield the errors of core/errors.py that are a kind of another one."""
    for each in parent.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each
        yield from _below(each)


def _findings(variants: Iterable[Variant]) -> set[str]:
    return {number for each in variants for number in (*each.findings, *(check.id for check in each.checks))}


def _keys() -> dict[str, str]:
    """Return each key of each file, with its types."""
    found: dict[str, set[str]] = {}
    for name, record in schema.schemas().items():
        file = Path(name).name.partition(".")[0]
        if file not in INTERNAL:
            whole = json.loads(record)
            for key, kind in _below_key(whole, whole.get("$defs", {}), file):
                found.setdefault(key, set()).add(kind)
    return {key: ", ".join(sorted(kinds)) for key, kinds in found.items()}


def _below_key(node: Mapping[str, Any], known: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Yield a key and those below it, each with one of its types; a value that a key may have is named, too."""
    alternatives = [*_alternatives(node, known)]
    yield from ((path, "value" if "enum" in each else str(each.get("type", "any"))) for each in alternatives)
    if path.count(".") > _DEEPEST:
        return
    for each in alternatives:
        yield from ((f"{path} {json.dumps(value)}", "") for value in each.get("enum", ()))
        yield from ((f"{path}.{key}", REQUIRED) for key in each.get("required", ()))
        for key, value in each.get("properties", {}).items():
            yield from _below_key(value, known, f"{path}.{key}")
        for value in (each.get("additionalProperties"), *each.get("patternProperties", {}).values()):
            if isinstance(value, dict):
                yield from _below_key(value, known, f"{path}.*")
        for value in (each.get("items"), *each.get("prefixItems", ())):
            if isinstance(value, dict):
                yield from _below_key(value, known, f"{path}[]")


def _alternatives(node: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the types that a value may have."""
    if "$ref" in node:
        yield from _alternatives(known[node["$ref"].rpartition("/")[2]], known)
    elif "const" in node:
        yield {"type": node.get("type", "any"), "enum": [node["const"]]}
    elif choices := node.get("anyOf") or node.get("oneOf"):
        for each in choices:
            yield from _alternatives(each, known)
    else:
        yield node
