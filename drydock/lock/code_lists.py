"""Which cards a row's libraries have code for: templates/vllm/code/DISTRIBUTION-VERSION.json, which rows share. IO.

`lock` reads them of the locked wheels' files, once for each wheel: of those that the store lacks in ranges, without
storing them, so that their hash is not compared. What is read makes no image and no part of one; it only warns, and
refuses to plan for a card that a library has no code for. For an adopted base its layers say it (base_lists.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field

from drydock.config.matrix import read_matrix
from drydock.core.console import log
from drydock.core.errors import FetchError, InputError, StaleError
from drydock.core.files import format_json, parse_any_json
from drydock.core.project import Project
from drydock.inputs.device_code import DeviceCode
from drydock.inputs.store import Store, default_store
from drydock.lock import base_lists, lockfile
from drydock.model.locked import Lock, LockedImageBase, LockedPlatform, LockedWheel
from drydock.model.names import RelativePath
from drydock.model.record import Record, dump_record
from drydock.model.variant import Variant
from entrypoints.checks.code_for_cards import describe_code, find_missing_code
from entrypoints.checks.findings import is_condition_met

FOLDER = "templates/vllm/code"
ACCELERATORS = ("cuda", "rocm")
"""Those whose libraries have code for one architecture or another in their files."""
LIBRARIES = re.compile(
    r"deep-(?:ep|gemm)|(?:vllm-)?flash-?attn(?:-\d)?|flashinfer-.+|lmcache|nixl(?:-.+)?|torch|vllm|xformers"
)
"""Distributions that are read. NVIDIA's own libraries have code for every card of their CUDA."""
LOADED = re.compile(r"vllm/_C[^/]*\.so|torch/lib/libtorch_(?:cuda|hip)\.so")
"""Files whose code every start uses. Of the others vLLM chooses those that fit the card."""
BUILT_FOR = {"TORCH_CUDA_ARCH_LIST": "sm_", "PYTORCH_ROCM_ARCH": ""}
"""Variable of a build → what its architectures begin with."""
CARDS = {
    ("cuda", "linux/amd64"): ("7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0"),
    ("cuda", "linux/arm64"): ("7.0", "7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"),
    ("rocm", "linux/amd64"): (
        *("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1101", "gfx1150", "gfx1151", "gfx1200", "gfx1201"),
    ),
}
"""Accelerator and platform → cards of which the rows are checked. Orin (8.7), Thor (11.0) and GB10 (12.1) are Arm only.

Sources: NVIDIA, CUDA GPU compute capability, from Volta on; vLLM installation manual, AMD ROCm, requirements.
"""
OF_CARDS = ("derived.architectures", "versions.compute_capability")
"""Beginnings of the names of facts that say what a card is."""
NEEDED = ("torch", "vllm")
"""Libraries of which all must be known before a check counts as wrong to refuse a card."""


class WheelCode(Record):
    """The code for cards in a wheel."""

    filename: str
    files: Mapping[RelativePath, DeviceCode]
    """Path → its code, of the files that have some."""


class StoredCode(Record):
    """templates/vllm/code/DISTRIBUTION-VERSION.json: what the wheels of a version have code for."""

    wheels: Mapping[str, WheelCode] = Field(max_length=1000)
    """SHA-256 → what was read of this file."""


Files = Mapping[str, DeviceCode]
Libraries = Mapping[str, Files]
"""Library with its version, such as torch 2.14.0 → its files that have code."""


def code_path(project: Project, wheel: LockedWheel) -> Path:
    """Return the path of what the wheels of a version have code for."""
    return project / f"{FOLDER}/{wheel.name}-{wheel.version}.json"


def list_libraries(pins: LockedPlatform) -> list[LockedWheel]:
    """Return the locked wheels whose code is read."""
    return [wheel for layer in pins.layers.values() for wheel in layer if LIBRARIES.fullmatch(wheel.name)]


def find_pinned_code(project: Project, row: str, pins: LockedPlatform) -> Libraries:
    """Return what is known of the libraries that are pinned, or of the base of an adopted row.

    Raises StaleError for a damaged file.
    """
    libraries: dict[str, Files] = {}
    for wheel in list_libraries(pins):
        stored = read_stored(code_path(project, wheel)).wheels.get(wheel.sha256)
        libraries |= {f"{wheel.name} {wheel.version}": stored.files} if stored else {}
    path = project / base_lists.name_file(row)
    of_base = base_lists.parse_base_lists(path) if isinstance(pins.base, LockedImageBase) and path.is_file() else None
    return {**of_base.code, **libraries} if of_base and of_base.digest == pins.base.digest else libraries


def find_libraries(project: Project, variant: Variant, lock: Lock | None, platform: str) -> Libraries:
    """Return what is known of a row's libraries; empty if nothing is. Raises StaleError for a damaged file."""
    pins = lock.platforms.get(platform) if lock else None
    return {**(find_pinned_code(project, variant.id, pins) if pins else {}), **_list_built(variant)}


def _list_built(variant: Variant) -> dict[str, Files]:
    """Return the architectures for which a row compiles vLLM, by the variable that its build sets."""
    built: dict[str, Files] = {}
    for build in variant.builds:
        for name, beginning in BUILT_FOR.items():
            words = re.findall(r"[^ ;]+", str(build.env[name].value)) if name in build.env else []
            names = [f"{beginning}{word.partition('+')[0].replace('.', '')}" for word in words]
            names += [name.replace("sm_", "compute_") for name, word in zip(names, words, strict=True) if "+" in word]
            if names and LIBRARIES.fullmatch(build.distribution):
                code = DeviceCode(containers=1, counts=dict.fromkeys(names, 1))
                built[f"{build.distribution} {build.version}"] = {name: code}
    return built


def choose_loaded(libraries: Libraries) -> dict[str, dict[str, list[str]]]:
    """Return library → file that every start loads → its architectures, as the entrypoint judges a card by them."""
    loaded = {
        library: {path: sorted(files[path].counts) for path in files if LOADED.fullmatch(path) or path in BUILT_FOR}
        for library, files in libraries.items()
    }
    return {library: files for library, files in loaded.items() if files}


@lru_cache(maxsize=16)
def list_rows_code(project: Project, accelerator: str) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Return row → platform → what its loaded files have code for. Read once: `size` plans for hundreds of hosts."""
    rows = (row for row in read_matrix(project) if row.accelerator == accelerator and accelerator in ACCELERATORS)
    code: dict[str, dict[str, Any]] = {}
    for row in rows:
        lock = lockfile.read_previous(lockfile.path_of_lock(project, row.id))
        code[row.id] = {name: choose_loaded(find_libraries(project, row, lock, name)) for name in row.platforms}
    return code


def read_stored(path: Path) -> StoredCode:
    """Read what the wheels of a version have code for; nothing without a file. Raises StaleError for a damaged one."""
    if not path.is_file():
        return StoredCode(wheels={})
    try:
        return StoredCode.model_validate(parse_any_json(path.read_bytes()))
    except ValueError as error:
        hint = "remove the file and run ./inv lock"
        raise StaleError(f"{path}: invalid list of code for cards: {error}", hint=hint) from error


def update_code(
    project: Project, variant: Variant, lock: Lock, env: Mapping[str, str] = os.environ, store: Store | None = None
) -> list[Path]:
    """Read what a row's libraries have code for, unless it was read before; return the files that changed.

    What cannot be read is left out, and is said: then no card is refused for want of code.
    """
    if variant.accelerator not in ACCELERATORS or variant.is_adopted:
        return []
    from drydock.inputs.wheels import find_image_environment, read_code  # noqa: PLC0415 - a check needs no server

    changed: list[Path | None] = []
    for platform, pins in lock.platforms.items():
        for wheel in list_libraries(pins):
            if wheel.sha256 in read_stored(code_path(project, wheel)).wheels:
                continue
            try:
                target = find_image_environment(variant.python, platform, variant.base)
                code = read_code(wheel, target, store or default_store(env), env, variant.indexes)
            except (FetchError, InputError) as error:
                log(f"{variant.id}: which cards {wheel.name} has code for was not read: {error.problems[0]}")
            else:
                changed.append(_write_code(project, wheel, code))
    return [path for path in changed if path]


def _write_code(project: Project, wheel: LockedWheel, files: Files) -> Path | None:
    known = read_stored(code_path(project, wheel)).wheels
    wheels = {**known, wheel.sha256: WheelCode(filename=wheel.filename, files=files)}
    stored = dump_record(StoredCode(wheels=dict(sorted(wheels.items()))))
    return project.write(f"{FOLDER}/{wheel.name}-{wheel.version}.json", format_json(stored))


# --- what contradicts it --------------------------------------------------------------------------------------------


def list_contradictions(project: Project, variant: Variant) -> Iterator[str]:
    """Yield what a row, and the checks of its stack, say of cards, and its libraries' files do not."""
    lock = lockfile.read_previous(lockfile.path_of_lock(project, variant.id))
    for platform in variant.platforms if lock else ():
        code = choose_loaded(find_libraries(project, variant, lock, platform))
        for card in variant.cards:
            if missing := find_missing_code(card, code):
                yield f"matrix.yaml: variants.{variant.id}: cards: {card}: {_explain_missing(missing, code)}"
        for card in CARDS.get((variant.accelerator, platform), ()):
            refusing, missing = _find_refusing(variant, platform, card), find_missing_code(card, code)
            where = f"{variant.id} ({platform})"
            if missing and not refusing:
                yield f"{where}: no check of its stack refuses {card}: {_explain_missing(missing, code)}"
            elif refusing and not missing and len(code) >= len(NEEDED):
                yield f"{where}: {refusing} refuses {card}, for which {' and '.join(sorted(code))} have code"


def _explain_missing(missing: Collection[str], code: Mapping[str, Mapping[str, list[str]]]) -> str:
    return "; ".join(f"{library} has code for {describe_code(code[library])} only" for library in missing)


def _find_refusing(variant: Variant, platform: str, card: str) -> str:
    """Return the id of a check of cards that is FAIL on a machine with this one; empty without one."""
    from drydock.inputs.wheels import MACHINES  # noqa: PLC0415 - as above

    versions = {"compute_capability": card, "compute_capability_highest": card}
    machine = {"architecture": MACHINES[platform]}
    values = {"versions": versions, "derived": {"architectures": [card]}, "processor": machine}
    for check in variant.checks:
        if check.severity != "FAIL" or not check.fact.startswith(OF_CARDS):
            continue
        condition = check.model_dump(mode="json")
        applies = all(is_condition_met(when, values) for when in condition["when"])
        if applies and is_condition_met(condition, values) is False:
            return check.id
    return ""
