"""Reads and writes lock.json, which pins everything that goes into an image, and detects stale locks. IO.

resolution.py makes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from drydock.config.strict_yaml import YamlDocument
from drydock.config.validation import validate_document
from drydock.core.console import log
from drydock.core.errors import InputError, StaleError, UnresolvedError
from drydock.core.files import compute_checksum, format_json, parse_any_json, refuse_duplicate_keys, write_atomically
from drydock.core.project import Project
from drydock.lock import staleness
from drydock.model.locked import Lock, LockedWheel
from drydock.model.record import dump_record
from drydock.model.variant import Variant

COMPATIBILITY_VERSION = 20
"""The exporter of BuildKit v0.15 to v0.31, which have no other; later versions can reproduce it.
Source: BuildKit's docs/build-repro.md."""
RELOCK = "run `./inv lock`"
OPERATORS = "only an operator has"
"""How a lock says that an input is in no registry and no index."""


def path_of_lock(project: Project, variant: str) -> Path:
    """Return the path of a variant's lock."""
    return project / name_of(variant)


def name_of(variant: str) -> str:
    """Return the name of a variant's lock in a project."""
    return f"images/{variant}/lock.json"


def read_lock(path: Path) -> Lock:
    """Read a lock. Raises StaleError if it is missing, invalid or edited by hand."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise StaleError(f"{path}: lock not found", hint=RELOCK) from error
    except (OSError, UnicodeDecodeError) as error:
        raise StaleError(f"{path}: invalid lock: {error}", hint=_hint_restore_lock(str(path))) from error
    return parse_lock(text, str(path))


def parse_lock(text: str, name: str) -> Lock:
    """Parse a lock's text; errors refer to it as `name`. Raises StaleError."""
    try:
        data = parse_any_json(text, object_pairs_hook=refuse_duplicate_keys)
        lock = validate_document(Lock, YamlDocument(name, _leave_out_images(data), {}))
    except json.JSONDecodeError as error:
        raise StaleError(
            f"{name}:{error.lineno}:{error.colno}: invalid JSON: {error.msg}", hint=_hint_restore_lock(name)
        ) from error
    except InputError as error:
        raise StaleError(*error.problems, hint=_hint_restore_lock(name)) from error
    except (KeyError, ValueError) as error:
        raise StaleError(f"{name}: invalid lock: {error}", hint=_hint_restore_lock(name)) from error
    expected = _content_sha256(data)
    if lock.content_sha256 != expected:
        raise StaleError(
            f"{name}: content_sha256 is {lock.content_sha256}, expected {expected}: it was edited by hand",
            hint=_hint_restore_lock(name),
        )
    return lock


def _leave_out_images(data: Any) -> Any:
    """Leave out the digests of images, which locks had until drydock 0.2.0; image_record.py reads them there."""
    platforms = data.get("platforms") if isinstance(data, dict) else None
    if not isinstance(platforms, dict):
        return data
    pins = {
        name: {key: value for key, value in platform.items() if key != "image"}
        if isinstance(platform, dict)
        else platform
        for name, platform in platforms.items()
    }
    return {**data, "platforms": pins}


def write_lock(path: Path, lock: Lock) -> bool:
    """Write a lock atomically, with the checksum of its content; return whether the file changed."""
    return write_atomically(path, _dump_sealed_lock(lock))


def write_own(project: Project, lock: Lock) -> Path | None:
    """Write a variant's lock into the project, unless it or a lower layer has the same; return the file."""
    return project.write(name_of(lock.variant), _dump_sealed_lock(lock))


def _dump_sealed_lock(lock: Lock) -> str:
    return format_json(dump_record(lock.model_copy(update={"content_sha256": content_sha256(lock)})))


def content_sha256(lock: Lock) -> str:
    """Return the checksum of a lock's content."""
    return _content_sha256(dump_record(lock))


def _content_sha256(data: Mapping[str, Any]) -> str:
    return compute_checksum({key: value for key, value in data.items() if key != "content_sha256"})


def locked_sha256(lock: Lock) -> str:
    """Return the checksum of a lock that a project's upgrade.json has: that of the form of before drydock 0.2.0."""
    content = dump_record(lock)
    platforms = {name: {**pins, "image": None} for name, pins in content["platforms"].items()}
    return _content_sha256({**content, "platforms": platforms})


def collect_lock_inputs(variant: Variant) -> dict[str, Any]:
    """Return what resolving depends on, without what is only displayed or used for serving."""
    return {
        "python": variant.python,
        "requirements": list(variant.requirements),
        "overrides": [override.requirement for override in variant.overrides],
        "exclude": [exclusion.name for exclusion in variant.exclude],
        "layers": [dump_record(layer) for layer in variant.layers],
        "base": {name: value for name, value in dump_record(variant.base).items() if name != "written_to"},
        "platforms": list(variant.platforms),
        "epoch": variant.epoch,
        "build_requirements": list(variant.build_requirements),
        "sources": [dump_record(source) for source in variant.sources],
        "supplied": {item.name: list(item.patterns) for item in variant.supplied},
        "elsewhere": [list(item.packages) for item in variant.elsewhere],
    }


def check_lock_inputs(variant: Variant, lock: Lock) -> None:
    """Raise StaleError if the lock was made from other inputs than the variant's (`read_lock` detects manual edits)."""
    if lock.variant == variant.id and lock.inputs_sha256 == compute_checksum(collect_lock_inputs(variant)):
        return
    changes = staleness.list_stale_inputs(variant, lock) or (
        f"images/{variant.id}/lock.json: the variant's inputs have changed since",
    )
    raise StaleError(*changes, hint=f"run `./inv lock --target {variant.id}`")


HINTED = 3
"""Locks that a hint names one by one."""


def read_current(project: Project, variants: Iterable[Variant]) -> list[tuple[Variant, Lock]]:
    """Return each variant with its lock. Raises one StaleError with the problems of all locks."""
    current: list[tuple[Variant, Lock]] = []
    stale: dict[str, tuple[str, ...]] = {}
    for variant in variants:
        try:
            lock = read_lock(path_of_lock(project, variant.id))
            check_lock_inputs(variant, lock)
            current.append((variant, lock))
        except StaleError as error:
            stale[variant.id] = error.problems
    if stale:
        commands = [f"`./inv lock --target {name}`" for name in stale]
        hint = f"run {' and '.join(commands)}" if len(stale) <= HINTED else "run `./inv lock`"
        raise StaleError(*(line for of in stale.values() for line in of), hint=hint)
    return current


def read_previous(path: Path) -> Lock | None:
    """Return the lock whose pins are kept; None, after logging why, if there is none or it is damaged."""
    try:
        return read_lock(path) if path.is_file() else None
    except StaleError as error:
        log(f"{error.problems[0]}: nothing of it is kept")
        return None


def list_lock_problems(project: Project, variant: Variant) -> tuple[str, ...]:
    """Return what makes a variant's lock stale; nothing for one that is current."""
    try:
        check_lock_inputs(variant, read_lock(path_of_lock(project, variant.id)))
    except StaleError as error:
        return error.problems
    return ()


def _hint_restore_lock(name: str) -> str:
    return f"restore it with `git checkout {name}`, or make a new one with `./inv lock`"


def assign_wheels_to_layers(variant: Variant, wheels: Sequence[LockedWheel]) -> dict[str, tuple[LockedWheel, ...]]:
    """Assign wheels to the variant's layers: to the layer that names them, otherwise to the one that names none."""
    layer_by_name = {name: layer.name for layer in variant.layers for name in layer.distributions}
    rest = next((layer.name for layer in variant.layers if not layer.distributions), "")
    return {
        layer.name: tuple(wheel for wheel in wheels if layer_by_name.get(wheel.name, rest) == layer.name)
        for layer in variant.layers
    }


# --- what stays unresolved ---


def list_unresolved_inputs(locks: Mapping[str, Lock]) -> dict[str, dict[str, dict[str, str]]]:
    """Return variant → platform → context → why it is not pinned."""
    contexts = {
        name: {platform: dict(pinned.unresolved) for platform, pinned in lock.platforms.items() if pinned.unresolved}
        for name, lock in locks.items()
    }
    return {name: platforms for name, platforms in contexts.items() if platforms}


def unresolved_error(missing: Mapping[str, Mapping[str, Mapping[str, str]]]) -> UnresolvedError:
    """Return the error that names every unresolved input."""
    lines = [
        f"{name}: {platform}: {context} is unresolved: {reason}"
        for name, platforms in missing.items()
        for platform, contexts in platforms.items()
        for context, reason in contexts.items()
    ]
    return UnresolvedError(*lines, hint=f"what could be pinned is; {_way_out(lines)}")


def _way_out(lines: Iterable[str]) -> str:
    """Return what to do about unresolved inputs: some only an operator has, others only a network."""
    supply = "pass the vendor's files with --supplied FOLDER" if any(OPERATORS in line for line in lines) else ""
    reached = "run it where the servers can be reached, or name mirrors in mirrors.yaml"
    return f"{supply}; for the others {reached}" if supply else reached
