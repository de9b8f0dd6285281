"""What users rely on, and version numbers promise: verbs, options, exit codes, findings, keys of files, labels.

tests/surface.json has that of the last release: `./inv release` compares and writes it. Pure, but for files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from drydock.build import render
from drydock.build.build_job import STAND_IN
from drydock.cli.verb_table import COMMANDS
from drydock.config.topology_finding_file import read_topology_findings
from drydock.core.errors import DrydockError, InputError
from drydock.core.files import format_json, parse_json_object
from drydock.core.paths import ROOT
from drydock.core.verb_options import NO_DEFAULT, list_fields
from drydock.model.variant import Variant
from drydock.pages import schema
from entrypoints.core import errors
from entrypoints.request import arguments

FILE = Path("tests", "surface.json")
OWN = ("bench", "ci", "docs", "generate", "lint", "release", "requirements", "schema", "test")
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


def collect_surface(variants: Sequence[Variant]) -> dict[str, dict[str, str]]:
    """Return the surface of this drydock."""
    own_errors: list[type[DrydockError]] = [DrydockError, *_list_error_classes(DrydockError)]
    labels = {
        name
        for variant in variants
        for name in render.make_image_labels(variant)
        if name not in variant.additions.labels
    }
    surface = {
        "tasks": _collect_tasks(),
        "verbs of an image": _collect_verbs(),
        "exit codes": {f"{error_class.code} {error_class.__name__}": "" for error_class in own_errors},
        "exit codes of an image": {
            f"{code} {name}": "" for name, code in vars(errors).items() if name.isupper() and isinstance(code, int)
        },
        "findings": dict.fromkeys([*_collect_finding_ids(variants), *read_topology_findings()], ""),
        "labels": dict.fromkeys([*labels, STAND_IN], ""),
        "keys": _collect_file_keys(),
    }
    return {kind: dict(sorted(names.items())) for kind, names in surface.items()}


def compare_surfaces(old: Surface, new: Surface) -> SurfaceChanges:
    """Return what a surface adds to an earlier one, and what it breaks.

    Something is broken if it is gone, takes less than before, or is required now.
    """
    before = {(kind, name): _split_surface_words(text) for kind, names in old.items() for name, text in names.items()}
    after = {(kind, name): _split_surface_words(text) for kind, names in new.items() for name, text in names.items()}
    added = after.keys() - before.keys()
    broken = {key for key, words in before.items() if key not in after or not _is_compatible(after[key], words)}
    broken |= {
        (kind, name) for kind, name in added if REQUIRED in after[kind, name] and (kind, _name_parent(name)) in before
    }
    return SurfaceChanges(tuple(sorted(added - broken)), tuple(sorted(broken)))


def _split_surface_words(text: str) -> frozenset[str]:
    return frozenset(filter(None, text.split(", ")))


def _is_compatible(now: frozenset[str], before: frozenset[str]) -> bool:
    return before - {REQUIRED} <= now and (REQUIRED in before or REQUIRED not in now)


def _name_parent(name: str) -> str:
    """Return what a name is below: the task of an option, the key above a key."""
    return re.sub(r"(\.| )[^. ]+$", "", name)


def find_unnamed_changes(broken: Iterable[tuple[str, str]], text: str) -> list[str]:
    """Return what is broken and not named in a text: a changelog's."""
    return [f"{kind}: {name}" for kind, name in broken if not re.search(_make_word_pattern(kind, name), text)]


def _make_word_pattern(kind: str, name: str) -> str:
    """Return an expression for the word that must name something: the option, the last key, the number."""
    number, _, _ = name.partition(" ")
    last = re.split(r"[. ]", re.sub(r"(\.\*|\[\])+(?= |$)", "", name))[-1].strip('"')
    return rf"(?<![\w.-]){re.escape(number if kind.startswith('exit codes') else last)}(?![\w-]|\.\d)"


def read_recorded(root: Path = ROOT) -> tuple[str, Surface]:
    """Return the release whose surface is recorded, and that surface. Raises InputError."""
    try:
        data = parse_json_object((root / FILE).read_bytes(), str(FILE))
        return str(data["release"]), data["surface"]
    except (OSError, KeyError) as error:
        raise InputError(f"{FILE}: cannot be read: {error}", hint=f"git checkout {FILE}") from error


def format_surface(release: str, surface: Surface) -> str:
    """Return what is recorded."""
    return format_json({"release": release, "surface": surface})


# --- what there is ----------------------------------------------------------------------------------------------------


def _collect_tasks() -> dict[str, str]:
    """Return each task of an installed drydock and each of its options, with what an option takes."""
    option_kinds: dict[str, str] = {}
    for name, verb in ((name, verb) for verbs in COMMANDS.values() for name, verb in verbs.items()):
        if name.split()[0] in OWN:
            continue
        option_kinds[name] = ""
        for field in list_fields(verb.record).values():
            takes = {list: "values", bool: "nothing"}.get(field.kind, "a value")
            required = f", {REQUIRED}" if field.default is NO_DEFAULT else ""
            option_kinds[f"{name} --{field.option}"] = f"{takes}{required}"
    return option_kinds


def _collect_verbs() -> dict[str, str]:
    flags = arguments.FLAGS.items()
    takes = ("nothing", "a value", "two values")
    options = {f"{verb} {name}": takes[len(option.value.split())] for name, option in flags for verb in option.verbs}
    return dict.fromkeys(arguments.VERBS, "") | options


def _list_error_classes(parent: type[DrydockError]) -> Iterator[type[DrydockError]]:
    """Yield the errors of core/errors.py that are a kind of another one."""
    for subclass in parent.__subclasses__():
        if subclass.__module__ == DrydockError.__module__:
            yield subclass
        yield from _list_error_classes(subclass)


def _collect_finding_ids(variants: Iterable[Variant]) -> set[str]:
    return {number for variant in variants for number in (*variant.findings, *(check.id for check in variant.checks))}


def _collect_file_keys() -> dict[str, str]:
    """Return each key of each file, with its types."""
    kinds_by_key: dict[str, set[str]] = {}
    for name, record in schema.make_schemas().items():
        file = Path(name).name.partition(".")[0]
        if file not in INTERNAL:
            whole = json.loads(record)
            for key, kind in _below_key(whole, whole.get("$defs", {}), file):
                kinds_by_key.setdefault(key, set()).add(kind)
    return {key: ", ".join(sorted(kinds)) for key, kinds in kinds_by_key.items()}


def _below_key(node: Mapping[str, Any], definitions: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Yield a key and those below it, each with one of its types; a value that a key may have is named, too."""
    alternatives = [*_list_alternatives(node, definitions)]
    yield from (
        (path, "value" if "enum" in alternative else str(alternative.get("type", "any")))
        for alternative in alternatives
    )
    if path.count(".") > _DEEPEST:
        return
    for alternative in alternatives:
        yield from ((f"{path} {json.dumps(value)}", "") for value in alternative.get("enum", ()))
        yield from ((f"{path}.{key}", REQUIRED) for key in alternative.get("required", ()))
        for key, value in alternative.get("properties", {}).items():
            yield from _below_key(value, definitions, f"{path}.{key}")
        for value in (alternative.get("additionalProperties"), *alternative.get("patternProperties", {}).values()):
            if isinstance(value, dict):
                yield from _below_key(value, definitions, f"{path}.*")
        for value in (alternative.get("items"), *alternative.get("prefixItems", ())):
            if isinstance(value, dict):
                yield from _below_key(value, definitions, f"{path}[]")


def _list_alternatives(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the types that a value may have."""
    if "$ref" in node:
        yield from _list_alternatives(definitions[node["$ref"].rpartition("/")[2]], definitions)
    elif "const" in node:
        yield {"type": node.get("type", "any"), "enum": [node["const"]]}
    elif choices := node.get("anyOf") or node.get("oneOf"):
        for choice in choices:
            yield from _list_alternatives(choice, definitions)
    else:
        yield node
