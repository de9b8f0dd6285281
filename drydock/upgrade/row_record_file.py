"""images/<row>/upgrade.json of a project's own rows: what `upgrade` compares a newer drydock with. IO."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

from packaging.version import InvalidVersion, Version

from drydock.build import render
from drydock.build.build_job import ARCHITECTURES
from drydock.cli import version
from drydock.config import rows
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import read_settings
from drydock.config.strict_yaml import YamlDocument
from drydock.config.validation import validate_document
from drydock.core.console import log
from drydock.core.errors import DrydockError, HostError, InputError, StaleError
from drydock.core.files import format_json, parse_json_object, read_bounded
from drydock.core.project import Project
from drydock.lock import following, lock_diff, lockfile
from drydock.model.locked import Lock
from drydock.model.record import dump_record
from drydock.model.row_record import FILE, HostPlan, RowRecord, Upgraded
from drydock.model.variant import Variant
from drydock.run import entrypoint
from drydock.run.auto import PROCESSOR
from drydock.run.recorded_plans import PlanQuestion, RecordedPlan, make_recorded_plans
from drydock.topology.topology_file import explain_unreadable_host
from entrypoints.core.text import format_count

HOSTS = "hosts/*/host.json"
"""Recorded hosts of a project: facts --record writes one."""
SERVE = "serve"
"""File next to a recorded host with what `serve` gets there, as one types it."""
MODEL = "Qwen/Qwen3-0.6B"
"""What is planned where no such file says otherwise: vLLM's own default."""
_AT_MOST = 4 << 20
_WORDS_AT_MOST = 64 << 10
"""Bytes of a record, and of the file `serve`: a project is read before anyone has reviewed it."""
_PROSE = {"because", "passed", "published", "remediation", "source", "text", "title", "translations"}
"""Keys of a profile that only people read. Records of 0.1.0 still have the translations."""
_NAMES = ("id", "setting", "name", "model", "path", "folder")
"""Keys that may tell the entries of a list apart."""
_REFUSED = ("--root", "--json", "--html", "--diff")
"""Options of `plan` that `serve` does not have."""
_OFFLINE = {"HF_HUB_OFFLINE": "1", entrypoint.HUB_CACHES: ""}
"""Makes a plan the same on every machine: it may not depend on the models that one of them has."""


def own_rows(project: Project, variants: Sequence[Variant]) -> list[Variant]:
    """Return the rows that a project has of its own, or whose files it has; none without a drydock below."""
    if not project.below:
        return []
    below = {variant.id: variant for variant in read_matrix(project.lower)}
    return [variant for variant in variants if below.get(variant.id) != variant or has_files(project, variant.id)]


def has_files(project: Project, row: str) -> bool:
    """Return whether a project itself has files that drydock made for a row."""
    folder = project.root / "images" / row
    return any((folder / name).is_file() for name in ("lock.json", render.DOCKERFILE, FILE))


def parent_lock(project: Project, variant: Variant) -> Lock | None:
    """Return the lock that the layers below have of the row that a row inherits or changes; None if there is none."""
    if not project.below:
        return None
    return lockfile.read_previous(lockfile.path_of_lock(project.lower, variant.inherits or variant.id))


def describe_lock(project: Project, variant: Variant, before: Lock | None, after: Lock) -> str:
    """Return what a lock changes; of the first lock of a user's own row, what differs from the row it stands on."""
    parent = parent_lock(project, variant) if before is None else None
    return lock_diff.format_additions(parent, after) if parent else lock_diff.describe_changes(before, after)


# --- making and writing ---------------------------------------------------------------------------------------------


def make_row_record(project: Project, variant: Variant, lock: Lock) -> RowRecord:
    """Return the record of a row that is upgraded to this drydock. Raises InputError for a host without a plan."""
    parent = parent_lock(project, variant)
    return RowRecord(
        schema_=1,
        drydock=Upgraded(version=version.read_own_version(), commit=version.read_own_commit()),
        lock=lockfile.locked_sha256(lock),
        inherits=variant.inherits or "",
        follows=following.pins_of(parent) if parent else {},
        profile=flatten_profile(variant),
        plans=plan_on_hosts(project, variant),
    )


def write_row_files(project: Project, variant: Variant, lock: Lock, *, upgraded: bool = False) -> list[Path]:
    """Write a row's Dockerfile, and the record of a row of the project's own; return the files that changed.

    Raises what `render.write` raises, and InputError.
    """
    changed_paths = render.write_dockerfile(project, variant, lock)
    if variant in own_rows(project, [variant]):
        new = make_row_record(project, variant, lock)
        path = project.write(
            _name_of_record(variant.id),
            format_json(dump_record(new if upgraded else _keep_upgrade_fields(project, new, variant.id))),
        )
        changed_paths += [path] if path else []
        for host, plan in new.plans.items():
            if path and plan.error:
                log(f"{variant.id}: no plan on hosts/{host}: {plan.error}: {host}/{SERVE} may name another model")
    return changed_paths


def lock_and_render(
    project: Project,
    variant: Variant,
    errors: list[DrydockError],
    start_locks: Mapping[str, Lock] = MappingProxyType({}),
    *,
    upgraded: bool = False,
) -> list[Path]:
    """Lock a variant and write its Dockerfile, which needs no input that stays unresolved.

    `start_locks` has the pins to start from, see `resolve_and_write`; `upgraded` is as in
    `write_row_files`.
    """
    from drydock.lock import resolution  # noqa: PLC0415 - it imports what speaks to servers; few verbs pin anything

    lock_paths = resolution.resolve_and_write(project, [variant], start_locks=start_locks)
    lock = lockfile.read_lock(lockfile.path_of_lock(project, variant.id))
    if missing := lockfile.list_unresolved_inputs({variant.id: lock}):
        errors.append(lockfile.unresolved_error(missing))
    return [*lock_paths, *write_row_files(project, variant, lock, upgraded=upgraded)]


def write_rows(project: Project, locked: Sequence[tuple[Variant, Lock]]) -> list[Path]:
    """Write the files of rows, and say how many of drydock's own rows got some; return the files that changed."""
    changed_paths = [path for variant, lock in locked for path in write_row_files(project, variant, lock)]
    _say_additions(project, [variant for variant, _ in locked], changed_paths)
    return changed_paths


def _say_additions(project: Project, variants: Sequence[Variant], changed_paths: Sequence[Path]) -> None:
    """Say that the project's additions gave drydock's own rows files in the project, and how to limit that."""
    settings, own_ids = read_settings(project), rows.own_rows(project) if project.below else set()
    folders = {path.parent.name for path in changed_paths}
    ids = [variant.id for variant in variants if variant.id in folders - own_ids]
    if settings and not settings.additions.is_empty and ids:
        log(
            f"`additions` in drydock.yaml are for every image: {format_count(len(ids), 'row')} of drydock"
            f" {'has' if len(ids) == 1 else 'have'} files in images/ now."
            " `rows: [ID, …]` in drydock.yaml takes some of drydock's rows, and `rows: []` none;"
            " or write `additions` in a row of matrix.yaml, for that one only"
        )


def check_row_files(project: Project, variant: Variant, lock: Lock) -> None:
    """Compare a row's committed Dockerfile and record with what this drydock makes. Raises StaleError."""
    render.check_dockerfile(project, variant, lock)
    if variant not in own_rows(project, [variant]):
        return
    old = read_row_record(project, variant.id)
    if old != _keep_upgrade_fields(project, make_row_record(project, variant, lock), variant.id):
        problem = "outdated: differs from what `./inv render` generates" if old else "file not found"
        hint = "`./inv project upgrade` shows what changed, `./inv render` writes it"
        raise StaleError(f"{_name_of_record(variant.id)}: {problem}", hint=hint)


def _keep_upgrade_fields(project: Project, new: RowRecord, row: str) -> RowRecord:
    """Return the record with the old version and pins: only `upgrade` may move them, else it would not report them."""
    old = read_row_record(project, row)
    if old is None:
        return new
    kept_pins = {"follows": old.follows} if old.inherits == new.inherits else {}
    return new.model_copy(update={"drydock": old.drydock, **kept_pins})


def _name_of_record(row: str) -> str:
    return f"images/{row}/{FILE}"


# --- reading --------------------------------------------------------------------------------------------------------


def read_row_record(project: Project, row: str) -> RowRecord | None:
    """Return the record of a row; None if there is none. Raises InputError, also for one of a newer drydock."""
    path, name = project.root / _name_of_record(row), _name_of_record(row)
    if not path.is_file():
        return None
    try:
        data = parse_json_object(read_bounded(path, _AT_MOST), name)
        drydock_fields = data.get("drydock")
        _check_version(drydock_fields.get("version") if isinstance(drydock_fields, dict) else None, name)
        return validate_document(RowRecord, YamlDocument(name, data, {}))
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror}", hint=_hint_restore_record(name)) from error
    except InputError as error:
        raise InputError(*error.problems, hint=error.hint or _hint_restore_record(name)) from error


def _check_version(recorded_version: Any, name: str) -> None:
    """Raise InputError for a newer version than this drydock has, whose format may be another."""
    try:
        is_newer = Version(recorded_version) > Version(version.read_own_version())
    except (InvalidVersion, TypeError) as error:
        raise InputError(f"{name}: drydock.version: found {recorded_version!r:.60}, expected a version") from error
    if is_newer:
        text = f"{name}: the row is of drydock {recorded_version}, and this is drydock {version.read_own_version()}"
        raise InputError(text, hint=f"use drydock {recorded_version} or a newer one in this project")


def _hint_restore_record(name: str) -> str:
    return f"restore it with `git checkout {name}`; or remove it, and `./inv render` makes it again"


# --- profile --------------------------------------------------------------------------------------------------------


def flatten_profile(variant: Variant) -> dict[str, Any]:
    """Return what a program reads in a row's profile, by the path of each key."""
    return dict(_flatten_keys(dump_record(render.make_profile(variant))))


def is_prose(path: str) -> bool:
    """Tell whether only people read the value at a path of a profile."""
    return bool(_PROSE & {*path.split(".")})


def _flatten_keys(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each key that a program reads, if there is one.

    Entries of a list are named if they have names.
    """
    if isinstance(value, dict):
        for key, below in value.items():
            if key not in _PROSE:
                yield from _flatten_keys(below, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        key = _find_naming_key(value)
        for number, entry in enumerate(value):
            below = {name: item for name, item in entry.items() if name != key}
            yield from _flatten_keys(below, f"{path}.{entry[key] if key else number}")
    elif value not in (None, "", []):
        yield path, value


def _find_naming_key(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return the key whose values tell the entries of a list apart; empty if none does."""
    for key in _NAMES:
        names = [entry.get(key) for entry in entries]
        if all(isinstance(name, str) and name for name in names) and len({*names}) == len(names):
            return key
    return ""


# --- plans ----------------------------------------------------------------------------------------------------------


def plan_on_hosts(project: Project, variant: Variant) -> dict[str, HostPlan]:
    """Return what a row's entrypoint decides on each recorded host of the project that has its devices.

    A row for processors is planned on every host of its architecture. Raises InputError.
    """
    hosts = sorted(project.root.glob(HOSTS))
    questions = [_make_host_question(project, variant, host) for host in hosts]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        facts = [*pool.map(lambda question: _read_host_facts(project, question), questions)]
    usable = [
        (question, facts_or_error)
        for question, facts_or_error in zip(questions, facts, strict=True)
        if isinstance(facts_or_error, HostError) or _is_for_host(variant, facts_or_error)
    ]
    plans = make_recorded_plans(project, [question for question, _ in usable])
    return {
        question.host.parent.name: HostPlan(error=facts_or_error.problems[0])
        if isinstance(facts_or_error, HostError)
        else _make_host_plan(question, plan)
        for (question, facts_or_error), plan in zip(usable, plans, strict=True)
    }


def _make_host_question(project: Project, variant: Variant, host: Path) -> PlanQuestion:
    """Return what is asked of a host. Raises InputError for one that cannot be read."""
    name = host.relative_to(project.root)
    if problem := explain_unreadable_host(host):
        raise InputError(f"{name}: {problem}", hint="record it again: facts --record host.json; or remove the folder")
    words = _read_serve_words(host.with_name(SERVE), project)
    return PlanQuestion(variant, name, words, _OFFLINE, _make_path_variable(), project.root)


def _read_host_facts(project: Project, question: PlanQuestion) -> Any:
    """Return a host's facts, or the HostError that there are none. Raises InputError."""
    try:
        return entrypoint.answer_for_container(
            project,
            question.variant,
            ("facts", "--root", str(question.host)),
            question.container_env,
            _make_path_variable(),
            question.folder,
        )
    except HostError as error:
        return error
    except DrydockError as error:
        raise _name_host(question.host, error) from error


def _is_for_host(variant: Variant, facts: Mapping[str, Any]) -> bool:
    """Return whether a host has a row's architecture, and its devices if it needs any."""
    machine = facts["processor"]["architecture"]
    platform = ARCHITECTURES.get(machine, f"linux/{machine}")
    return platform in variant.platforms and bool(facts["devices"] or variant.accelerator == PROCESSOR)


def _make_host_plan(question: PlanQuestion, plan: RecordedPlan) -> HostPlan:
    if isinstance(plan.error, HostError):
        return HostPlan(error=plan.problem)
    if plan.error:
        raise _name_host(question.host, plan.error)
    wrong = {
        finding["id"]: finding["severity"]
        for finding in plan.document["findings"]
        if finding["severity"] in ("FAIL", "WARN")
    }
    return HostPlan(argv=plan.document["argv"], env=plan.list_variables(), findings=wrong)


def _name_host(host: Path, error: DrydockError) -> InputError:
    return InputError(*(f"{host}: {problem}" for problem in error.problems), hint=error.hint)


def _make_path_variable() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath)}


def list_served_words(project: Project) -> Iterator[tuple[str, list[str]]]:
    """Yield what `serve` gets on each recorded host of a project, by the host's folder. Raises InputError."""
    for host in sorted(project.root.glob(HOSTS)):
        yield f"hosts/{host.parent.name}", _read_serve_words(host.with_name(SERVE), project)


def _read_serve_words(path: Path, project: Project) -> list[str]:
    """Return what `serve` gets on a host. Raises InputError."""
    name = project.name_of(path)
    if not path.exists():
        return [MODEL]
    try:
        words = shlex.split(read_bounded(path, _WORDS_AT_MOST).decode(), comments=True)
    except OSError as error:
        raise InputError(f"{name}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{name}: {error}", hint="write what `serve` gets, such as a model and its flags") from error
    refused = [word for word in words if word.partition("=")[0] in _REFUSED]
    if refused or not words:
        raise InputError(
            f"{name}: found {refused[0] if refused else 'nothing'}, expected a model and flags of `serve`",
            hint=f"such as `{MODEL} --max-model-len 8192`",
        )
    return words
