"""What each version of vLLM says of itself: templates/vllm/DISTRIBUTION-VERSION.json, which rows share. IO.

The model types of the library transformers, without which vLLM reads no config.json, are read in the same way.
`lock` reads the files of a locked wheel, once for each version, with the program that also reads an installed vLLM
while an image is built (templates/tools/read_vllm.py). Nothing of vLLM is imported or executed, and nothing is read
before its hash was checked. A vLLM that is compiled from source, or that comes with a base image, has no locked wheel:
until its image is built, the list of the release with its version is assumed. Of an adopted base, its layers may have
been read (base_lists.py).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from packaging.version import Version

from drydock.config.matrix import read_matrix
from drydock.core.console import log
from drydock.core.errors import FetchError, InputError, StaleError
from drydock.core.files import format_compact_json, format_json, parse_any_json
from drydock.core.process import call_limited
from drydock.core.project import Project
from drydock.inputs.store import Store, default_store
from drydock.lock import base_lists
from drydock.lock.lockfile import path_of_lock, read_previous
from drydock.lock.vllm_details import VllmDetails
from drydock.lock.vllm_details_reader import read_details
from drydock.model.locked import Lock, LockedPlatform, LockedWheel
from drydock.model.record import Record, dump_record
from drydock.model.variant import Variant

FOLDER = "templates/vllm"
PROGRAM = "templates/tools/read_vllm.py"
FILE = base_lists.FILE
"""What an image has of it, next to its profile."""
RELEASE = "vllm"
"""Distribution of vLLM's own releases."""
VERSION_LISTS = ("flags", "variables", "architectures")
"""Lists that tell one version from the next: of two that follow each other, 3 to 10 % of the entries differ."""
TRANSFORMERS = "transformers"
"""Distribution of the library that reads config.json."""


class VllmLists(Record):
    """templates/vllm/DISTRIBUTION-VERSION.json: what one version of vLLM says of itself."""

    distribution: str
    version: str
    files: Mapping[str, str]
    """SHA-256 → name of each file in which exactly this was read."""
    lists: Mapping[str, Any]
    """Name of a list → its entries, as read_vllm.py describes them."""


class StoredDetails(Record):
    """templates/vllm/details/DISTRIBUTION-VERSION.json: what `compare` knows of one version in addition."""

    files: Mapping[str, str]
    """SHA-256 → name of the file in which this was read."""
    details: VllmDetails


class ReadVersion(NamedTuple):
    """What was read of a row's vLLM, or of the release that it is assumed to be like."""

    record: VllmLists
    assumed: str
    """Why these lists are those of a release and not of the row's own vLLM; empty if they are its own."""


class KnownLists(NamedTuple):
    """What is known of a row's vLLM before its image is built."""

    lists: Mapping[str, Any]
    assumed: str
    """Why these lists are those of a release and not of the row's own vLLM; empty if they are its own."""


def lists_path(project: Project, distribution: str, version: str) -> Path:
    """Return the path of the lists of a version."""
    return project / f"{FOLDER}/{distribution}-{version}.json"


def locked_vllm(variant: Variant, lock: Lock) -> dict[str, LockedWheel]:
    """Return platform → the locked wheel that contains the package vllm; without platforms that lock none."""
    return _locked_wheels(lock, variant.vllm.distribution)


def _locked_wheels(lock: Lock, distribution: str) -> dict[str, LockedWheel]:
    return {
        platform: wheel
        for platform, pins in lock.platforms.items()
        for layer in pins.layers.values()
        for wheel in layer
        if wheel.name == distribution
    }


def details_path(project: Project, distribution: str, version: str) -> Path:
    """Return the path of the details of a version."""
    return project / f"{FOLDER}/details/{distribution}-{version}.json"


def find_version(project: Project, variant: Variant, lock: Lock | None, platform: str) -> ReadVersion | None:
    """Return what was read of a row's vLLM, or of its release; None if neither was. Raises StaleError for damage."""
    wheel = locked_vllm(variant, lock).get(platform) if lock else None
    if wheel:
        wheel_record = read_lists(lists_path(project, wheel.name, wheel.version))
        if wheel_record and wheel.sha256 in wheel_record.files and _is_built_in(variant, wheel_record.lists):
            return ReadVersion(wheel_record, "")
    release = read_lists(lists_path(project, RELEASE, variant.vllm.version))
    if release is None:
        return None
    return ReadVersion(release, f"of vLLM's release {release.version}: {variant.vllm.origin}")


def find_lists(project: Project, variant: Variant, lock: Lock | None, platform: str) -> KnownLists | None:
    """Return what is known of a row's vLLM; None if nothing is. Raises StaleError for a damaged file."""
    if of_base := base_lists.read_base_lists(project, variant):
        return KnownLists(of_base.lists, of_base.assumed)
    version = find_version(project, variant, lock, platform)
    if version is None:
        return None
    program = read_program(project)
    if lock and not version.assumed:
        lists = program.join_lists({**version.record.lists, **_lists_of_library(project, lock, platform)})
        return KnownLists(_with_packages(lists, variant, lock.platforms[platform], program.OPTIONAL), "")
    shared = choose_assumed(version.record.lists)
    shared["later_architectures"] = _find_later_architectures(project, version.record)
    if variant.base.kind == "debian":  # other bases have a vendor's build of what a row excludes
        excluded = {item.name for item in variant.exclude}.intersection(program.OPTIONAL)
        shared["excluded_packages"] = sorted(excluded)
    return KnownLists(program.join_lists({**shared, "processors": _newest_processors(project)}), version.assumed)


def _lists_of_library(project: Project, lock: Lock, platform: str) -> Mapping[str, Any]:
    """Return the lists of the locked transformers; empty if none is locked, or it was not read."""
    wheel = _locked_wheels(lock, TRANSFORMERS).get(platform)
    known = read_lists(lists_path(project, wheel.name, wheel.version)) if wheel else None
    return known.lists if known and wheel and wheel.sha256 in known.files else {}


def choose_assumed(lists: Mapping[str, Any]) -> dict[str, Any]:
    """Return those lists of a release that hold for a vLLM that adds to it."""
    assumed = {name: lists[name] for name in NEVER_EXTENDED if name in lists}
    return assumed | {f"{name}_of_release": lists[name] for name in OFTEN_EXTENDED if name in lists}


def _find_later_architectures(project: Project, record: VllmLists) -> dict[str, str]:
    """Return architecture → the first release that was read and has it, of those with a newer minor version.

    Forks and plugins take over what a later patch of their release has: vLLM-GCU 0.8.0 serves Qwen3-MoE of 0.8.5.
    """
    minor = Version(record.version).release[:2]
    first: dict[str, str] = {}
    for later in sorted(list_every(project), key=lambda later: Version(later.version)):
        if Version(later.version) > Version(record.version):
            names = {*later.lists.get("architectures", ())} - {*record.lists.get("architectures", ())}
            first = {**dict.fromkeys(sorted(names), later.version), **first}
    return {name: version for name, version in first.items() if Version(version).release[:2] > minor}


@lru_cache(maxsize=4)
def _newest_processors(project: Project) -> Mapping[str, Any]:
    """Return what the newest transformers that was read needs, which is assumed where none is locked."""
    paths = project.glob(f"{FOLDER}/{TRANSFORMERS}-*.json")
    records = [record for path in paths if (record := read_lists(path))]
    newest = max(records, key=lambda record: Version(record.version), default=None)
    return newest.lists.get("processors", {}) if newest else {}


NEVER_EXTENDED = (
    *("architectures", "removed_architectures", "tool_parsers", "reasoning_parsers", "platforms", "float16_refused"),
    *("imports", "constructor_packages", "latent_types", "platform_quantisations"),
    "pooling_architectures",
    *("drafted_types", "drafting_methods", "drafting_targets", "own_drafting_methods"),
)
"""Lists of a release that are assumed for a fork, and for a vLLM with a plugin. To the others these often add."""
OFTEN_EXTENDED = ("flags", "variables", "keys", "ranges")
"""Lists to which forks add. What a recipe sets is left out if the release does not have it."""
PLATFORM_NAMES = {"habana": "hpu"}
"""Accelerator → vLLM's name of its platform, where that differs."""


def _is_built_in(variant: Variant, lists: Mapping[str, Any]) -> bool:
    """Return whether vLLM serves on this accelerator without a plugin, which could add to its lists."""
    return PLATFORM_NAMES.get(variant.accelerator, variant.accelerator) in lists.get("platforms", ("cuda", "cpu"))


def _with_packages(
    lists: Mapping[str, Any], variant: Variant, pins: LockedPlatform, optional: Collection[str]
) -> Mapping[str, Any]:
    """Add which optional packages the image has, if all of its packages are locked."""
    if variant.base.kind != "debian" or variant.builds or variant.supplied:
        return lists
    names = {wheel.name for wheels in pins.layers.values() for wheel in wheels}
    return {**lists, "packages": sorted(names.intersection(optional))}


@lru_cache(maxsize=64)
def _parse_lists(path: Path, content: bytes) -> VllmLists:
    try:
        return VllmLists.model_validate(parse_any_json(content))
    except ValueError as error:
        raise StaleError(
            f"{path}: invalid lists of vLLM: {error}", hint="remove the file and run ./inv lock"
        ) from error


def read_lists(path: Path) -> VllmLists | None:
    """Read the lists of a version; None without a file. Raises StaleError for a damaged one."""
    return _parse_lists(path, path.read_bytes()) if path.is_file() else None


def read_stored_details(project: Project, record: VllmLists) -> VllmDetails | None:
    """Read the details of a version; None without a file, or with one of other files. Raises StaleError."""
    path = details_path(project, record.distribution, record.version)
    if not path.is_file():
        return None
    try:
        stored = StoredDetails.model_validate(parse_any_json(path.read_bytes()))
    except ValueError as error:
        raise StaleError(
            f"{path}: invalid details of vLLM: {error}", hint="remove the file and run ./inv lock"
        ) from error
    return stored.details if stored.files.keys() & record.files.keys() else None


def update_lists(
    project: Project, variant: Variant, lock: Lock, env: Mapping[str, str] = os.environ, store: Store | None = None
) -> list[Path]:
    """Read what a row's vLLM says of itself, unless it was read before; return the files that changed.

    What cannot be fetched is left out, and is said: then nothing is checked against lists.
    """
    if not variant.serves or variant.is_adopted:  # its lists may not depend on what this machine can reach
        return []
    store = store or default_store(env)
    wheels = locked_vllm(variant, lock)
    read_from = (*wheels.items(), *_locked_wheels(lock, TRANSFORMERS).items())
    try:
        changed = [_update_from_wheel(project, variant, platform, wheel, store, env) for platform, wheel in read_from]
        if len(wheels) < len(lock.platforms):
            changed.append(_update_from_release(project, variant, store, env))
    except (FetchError, InputError) as error:
        log(f"{variant.id}: vLLM's own lists were not read: {error.problems[0]}")
        return []
    return [path for path in changed if path]


def _update_from_wheel(
    project: Project, variant: Variant, platform: str, wheel: LockedWheel, store: Store, env: Mapping[str, str]
) -> Path | None:
    path = lists_path(project, wheel.name, wheel.version)
    old_record = read_lists(path)
    is_read = details_path(project, wheel.name, wheel.version).is_file() or wheel.name == TRANSFORMERS
    if old_record and wheel.sha256 in old_record.files and is_read:
        return None
    file = _fetch_wheel(variant, platform, wheel, store, env)
    if wheel.name == TRANSFORMERS:
        return _write_lists(project, wheel, _read_file(project, "read_library", file))
    return write_version(project, wheel, file)


def _fetch_wheel(variant: Variant, platform: str, wheel: LockedWheel, store: Store, env: Mapping[str, str]) -> Path:
    from drydock.inputs.wheels import fetch_wheels, find_image_environment  # noqa: PLC0415 - reading lists needs no server

    target = find_image_environment(variant.python, platform, variant.base)
    fetch_wheels([wheel], target, store, env, variant.indexes)
    return store.path(wheel.sha256)


def fetch_vllm(variant: Variant, lock: Lock, env: Mapping[str, str] = os.environ, store: Store | None = None) -> Path:
    """Return the file of a row's vLLM: its locked wheel, or else the source distribution of its release.

    Raises FetchError and InputError.
    """
    store = store or default_store(env)
    for platform, wheel in locked_vllm(variant, lock).items():
        return _fetch_wheel(variant, platform, wheel, store, env)
    return store.path(_fetch_release(variant, store, env).sha256)


def _update_from_release(project: Project, variant: Variant, store: Store, env: Mapping[str, str]) -> Path | None:
    """Read the source distribution of the release, whose lists are assumed."""
    version = variant.vllm.version
    if all(path(project, RELEASE, version).is_file() for path in (lists_path, details_path)):
        return None
    sdist = _fetch_release(variant, store, env)
    return write_version(project, sdist, store.path(sdist.sha256))


def _fetch_release(variant: Variant, store: Store, env: Mapping[str, str]) -> LockedWheel:
    from drydock.inputs.wheels import fetch_sdists, find_image_environment, resolve_sdist  # noqa: PLC0415 - as above

    target = find_image_environment("3.12", variant.platforms[0], variant.base)
    sdist = resolve_sdist(f"{RELEASE}=={variant.vllm.version}", target, store, env)
    fetch_sdists([sdist], target, store, env)
    return sdist


def write_version(project: Project, file: LockedWheel, path: Path) -> Path | None:
    """Write what a file says of its version; another file in which the same was read is added to it.

    Return the file with the lists, or else with the details, if it changed.
    """
    program = read_program(project)
    details = call_limited(lambda: dump_record(read_details(program, path)), f"{file.filename}: cannot be read")
    stored = StoredDetails(files={file.sha256: file.filename}, details=VllmDetails.model_validate(details))
    content = stored.model_dump(mode="json", exclude_defaults=True)
    changed = project.write(f"{FOLDER}/details/{file.name}-{file.version}.json", dump_by_line(content))
    return _write_lists(project, file, _read_file(project, "read_package", path)) or changed


def _read_file(project: Project, function: str, path: Path) -> dict[str, Any]:
    """Return what a function of the program reads in a wheel or a source distribution. Raises InputError."""
    program = read_program(project)
    lists: dict[str, Any] = call_limited(lambda: getattr(program, function)(path), f"{path}: cannot be read")
    return lists


def _write_lists(project: Project, file: LockedWheel, lists: Mapping[str, Any]) -> Path | None:
    before = read_lists(lists_path(project, file.name, file.version))
    same = before is not None and before.lists == lists
    files = {**(before.files if before and same else {}), file.sha256: file.filename}
    if before and not same:
        log(
            f"{file.filename}: says something else of itself than {', '.join(before.files.values())}, which it replaces"
        )
    record = VllmLists(distribution=file.name, version=file.version, files=files, lists=lists)
    return project.write(f"{FOLDER}/{file.name}-{file.version}.json", format_json(dump_record(record)))


def dump_by_line(content: Mapping[str, Any]) -> str:
    """Return JSON with a line for each flag, class and variable: a difference shows which, and no file is long."""
    details = ",\n".join(
        f"{format_compact_json(name)}:{_split_lines(items)}" for name, items in sorted(content["details"].items())
    )
    return f'{{"files":{format_compact_json(content["files"])},\n"details":{{\n{details}\n}}}}\n'


def _split_lines(items: Any) -> str:
    if isinstance(items, dict):
        return (
            "{\n"
            + ",\n".join(
                f"{format_compact_json(name)}:{format_compact_json(value)}" for name, value in sorted(items.items())
            )
            + "\n}"
        )
    return (
        "[\n" + ",\n".join(map(format_compact_json, items)) + "\n]"
        if isinstance(items, list)
        else format_compact_json(items)
    )


def read_program(project: Project) -> ModuleType:
    """Return the program that reads vLLM's files, as a module: the same one that runs while an image is built."""
    spec = importlib.util.spec_from_file_location("read_vllm", project / PROGRAM)
    if spec is None or spec.loader is None:
        raise InputError(f"{PROGRAM}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


COMPARED = (
    *("architectures", "quantisations", "packages", "tool_parsers", "reasoning_parsers", "load_formats", "executors"),
    *("connectors", "model_types"),
)
"""Lists of which another row may have an entry that a row lacks."""


def find_other_rows(project: Project, variant: Variant, known_lists: KnownLists) -> dict[str, dict[str, list[str]]]:
    """Return list → entry that a row does not have → rows of the accelerator that have it."""
    rows: dict[str, dict[str, list[str]]] = {}
    for row, lists in _lists_of_rows(project, variant.accelerator).items():
        for kind in COMPARED if row != variant.id else ():
            known_names = {*known_lists.lists.get(kind, ())}
            for name in sorted(_usable(kind, lists) - _usable(kind, known_lists.lists)):
                # A list without packages does not tell whether the row has what is missing here.
                if name not in known_names or "packages" in lists:
                    rows.setdefault(kind, {}).setdefault(name, []).append(row)
    return rows


def _usable(kind: str, lists: Mapping[str, Any]) -> set[str]:
    """Return the entries of a list, without architectures that require a package which the image lacks."""
    if kind == "model_types":
        return {*lists.get("config_types", ()), *lists.get("transformers_types", ())}
    missing = {
        architecture
        for architecture, packages in lists.get("required_packages", {}).items()
        if {*packages} - {*lists.get("packages", packages)} or {*packages} & {*lists.get("excluded_packages", ())}
    }
    return {*lists.get(kind, ())} - missing


def find_versions(project: Project, variant: Variant) -> dict[str, str]:
    """Return row → version of vLLM, of the rows of the same accelerator that serve."""
    rows = (row for row in read_matrix(project) if row.accelerator == variant.accelerator and row.serves)
    return {row.id: row.vllm.version for row in rows}


@lru_cache(maxsize=16)
def _lists_of_rows(project: Project, accelerator: str) -> Mapping[str, Mapping[str, Any]]:
    """Return row → lists, of an accelerator. Read once: `size` and topologies plan for hundreds of hosts."""
    rows: dict[str, Mapping[str, Any]] = {}
    for variant in read_matrix(project):
        if variant.accelerator == accelerator and variant.serves:
            lock = read_previous(path_of_lock(project, variant.id))
            lists = find_lists(project, variant, lock, variant.platforms[0])
            rows |= {variant.id: lists.lists} if lists else {}
    return rows


def list_every(project: Project) -> Iterable[VllmLists]:
    """Return the lists of all versions that were read."""
    paths = (path for path in project.glob(f"{FOLDER}/*.json") if not path.name.startswith(f"{TRANSFORMERS}-"))
    return (lists for path in paths if (lists := read_lists(path)))


def find_nearest_release(project: Project, lists: Mapping[str, Any]) -> tuple[str, float]:
    """Return the version whose lists are most like these, and the share that both have, from 0 to 1."""

    def measure_likeness(known: VllmLists) -> float:
        pairs = [({*lists.get(kind, ())}, {*known.lists.get(kind, ())}) for kind in VERSION_LISTS]
        return sum(len(ours & theirs) / max(1, len(ours | theirs)) for ours, theirs in pairs) / len(pairs)

    shares = {known.version: measure_likeness(known) for known in list_every(project)}
    nearest = max(shares, key=lambda version: shares[version])
    return nearest, shares[nearest]
