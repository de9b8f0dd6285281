"""What `build` does: one row as ever, or many at once with a table at the end. IO."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from drydock.build import build as builder
from drydock.build.build import Pull
from drydock.build.build_job import DEFAULTS, BuildOptions, Job, choose_platform
from drydock.config.matrix import find_variant, read_matrix
from drydock.core.console import log, write_output
from drydock.core.errors import DrydockError, InputError
from drydock.core.files import format_json
from drydock.core.paths import cache_home
from drydock.core.project import Project
from drydock.model.record import dump_record
from drydock.model.variant import Variant
from drydock.projects import locking
from drydock.run import auto

if TYPE_CHECKING:
    from drydock.build.many import Outcome
    from drydock.ci.ci_rows import CiRow


class Which(NamedTuple):
    """Which rows to build."""

    targets: Sequence[str] = ()
    """Each may be several, with commas between."""
    root: str = ""
    """The recorded host that `auto` is chosen for."""
    all_locked: bool = False
    since: str | None = None
    """Rows whose inputs changed since this commit."""


class RowOptions(NamedTuple):
    """How rows are built."""

    options: BuildOptions = DEFAULTS
    builders: Sequence[str] = ()
    no_cache: bool = False
    locked: bool = False
    supplied: Sequence[str] = ()
    stand_ins: bool = False
    pull: Pull | None = None
    """What is asked for foundations that are not kept."""


def build_rows(project: Project, which: Which, how: RowOptions, *, json: bool) -> None:
    """Build what was asked for and print what came of it. Exits with the largest code of a row that failed."""
    words = _split_names(",".join(which.targets), "--target")
    _check_build_options(which, how, words)
    if len(words) == 1 and not (which.all_locked or which.since is not None) and len(how.builders) <= 1:
        _build_one_row(project, auto.resolve_id(project, words[0], which.root), how, json=json)
        return
    outcomes = _build_many_rows(project, which, how, words)
    write_output(
        format_json({"rows": [dump_record(outcome) for outcome in outcomes]})
        if json
        else format_build_outcomes(outcomes)
    )
    sys.exit(max((outcome.exit_code for outcome in outcomes), default=0))


def parse_builders(text: str) -> tuple[str, ...]:
    """Return the builders of --builder. Raises InputError."""
    return tuple(_split_names(text, "--builder"))


def make_foundation_pull(registry: str, trust_in: Sequence[str], *, insecure: bool) -> Pull | None:
    """Return what is asked for foundations; None if no option names any. Raises InputError."""
    if not (registry or insecure or any(trust_in)):
        return None
    from drydock.publish import foundations  # noqa: PLC0415 - it imports what pushes, signs and describes images

    return foundations.make_registry_pull(registry, trust_in, insecure=insecure)


def _split_names(text: str, option: str) -> list[str]:
    """Split at commas, each word once. Raises InputError for an empty one."""
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(words):
        raise InputError(f"{option} {text}: a name between commas is empty", hint=f"write {option} A,B")
    return list(dict.fromkeys(words))


def _check_build_options(which: Which, how: RowOptions, words: Sequence[str]) -> None:
    """Raise InputError for options that contradict each other."""
    ways = [*(["--target"] if words else []), *(["--all-locked"] if which.all_locked else [])]
    ways += ["--changed-since"] if which.since is not None else []
    if not ways:
        raise InputError("build requires --target", hint="./inv matrix lists the targets")
    if len(ways) > 1:
        raise InputError(f"{' and '.join(ways)} exclude each other", hint=f"leave out {' and '.join(ways[1:])}")
    if how.stand_ins and how.supplied:
        raise InputError("--supplied: stand-ins take no such files", hint="--context NAME=FOLDER replaces a stub")
    if how.supplied and (ways != ["--target"] or len(words) > 1):
        raise InputError("--supplied: names the files of one variant", hint="build that one by itself with --target")
    if which.root and auto.AUTO not in words:
        raise InputError("--root is the recorded host to choose a variant for", hint="add --target auto")


def _build_one_row(project: Project, variant: str, how: RowOptions, *, json: bool) -> None:
    (of,) = how.builders or (None,)
    built = builder.build_image(
        _prepare_row_job(project, variant, how),
        builder=of,
        no_cache=how.no_cache,
        may_pull=not how.options.offline,
        pull=how.pull,
    )
    write_output(format_json(dump_record(built)) if json else f"{built.image}\n{built.digest}\n")


def _prepare_row_job(project: Project, variant: str, how: RowOptions) -> Job:
    return locking.job_of(
        project, variant, how.options, locked=how.locked, supplied_folders=how.supplied, stand_ins=how.stand_ins
    )


def _build_many_rows(project: Project, which: Which, how: RowOptions, words: Sequence[str]) -> list[Outcome]:
    """Build rows; return what came of each, those that were left out last."""
    from drydock.build import many  # noqa: PLC0415 - it imports what resolves; one row needs none of it

    variants = read_matrix(project)
    left_out: list[Outcome] = []
    if words:
        names = [auto.resolve_id(project, word, which.root if word == auto.AUTO else "") for word in words]
        chosen_variants = [find_variant(variants, name) for name in names]
    else:
        chosen_variants, left_out = _select_locked_rows(project, variants, which)
    chosen_variants = list({variant.id: variant for variant in chosen_variants}.values())
    jobs: dict[str, Job] = {}
    outcomes: dict[str, Outcome] = {}
    for variant in chosen_variants:
        try:
            jobs[variant.id] = _prepare_row_job(project, variant.id, how)
        except DrydockError as error:
            outcomes[variant.id] = many.record_failure(variant.id, how.options.platform or variant.platforms[0], error)
    options = many.ManyOptions(how.builders, how.no_cache, may_pull=not how.options.offline, pull=how.pull)
    outcomes |= {outcome.variant: outcome for outcome in many.build_all([*jobs.values()], options)}
    return [*(outcomes[variant.id] for variant in chosen_variants), *left_out]


def _select_locked_rows(
    project: Project, variants: Sequence[Variant], which: Which
) -> tuple[list[Variant], list[Outcome]]:
    """Return the locked rows, all or those that changed, which fit the free disk; and why the others were left out."""
    from drydock.build.many import Outcome  # noqa: PLC0415 - as above
    from drydock.ci import changed  # noqa: PLC0415 - it imports what reads the repository's history
    from drydock.ci.ci_rows import list_ci_rows  # noqa: PLC0415 - as above

    built, left_out = list_ci_rows(project, variants)
    reasons = {row.variant: row.why for row in left_out}
    if which.since is not None:
        commit = changed.resolve_commit(project, which.since)
        changed_rows = {row.variant: row.why for row in changed.compare_with_commit(project, variants, commit).changed}
        for name, why in changed_rows.items():
            log(f"{name}: {why}")
        built, reasons = tuple(row for row in built if row.variant in changed_rows), {}
    reasons |= dict(_too_large(built, _measure_free_bytes()))
    variants_by_id = {variant.id: variant for variant in variants}
    return [variants_by_id[row.variant] for row in built if row.variant not in reasons], [
        Outcome(variant=name, platform=choose_platform(variants_by_id[name], None), state="left out", why=why)
        for name, why in sorted(reasons.items())
    ]


def _measure_free_bytes() -> int:
    """Return the bytes that are free for the cache, which may not exist yet."""
    home = cache_home()
    return shutil.disk_usage(next(folder for folder in (home, *home.parents) if folder.is_dir())).free


def _too_large(built: Iterable[CiRow], free: int) -> Iterator[tuple[str, str]]:
    """Yield each row that does not fit the free disk with the smaller ones, and why."""
    for row in sorted(built, key=lambda row: row.disk or free):
        if row.disk is None or row.disk > free:
            yield row.variant, f"disk: it needs {row.needs}, and {max(free, 0) / 1e9:.0f} GB are free for it"
        else:
            free -= row.disk


COLUMNS = ("row", "seconds", "cached", "digest", "")


def format_build_outcomes(outcomes: Sequence[Outcome]) -> str:
    """Return one line for each row, and below why rows failed or were left out."""
    cells = [COLUMNS, *(_make_outcome_cells(outcome) for outcome in outcomes if outcome.state != "left out")]
    widths = [max(len(line[place]) for line in cells) for place in range(len(COLUMNS))]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    lines = lines if len(lines) > 1 else ["nothing to build"]
    for state in ("failed", "left out"):
        reasons: dict[str, list[str]] = {}
        for outcome in (row for row in outcomes if row.state == state):
            reasons.setdefault(outcome.why, []).append(outcome.variant)
        if reasons:
            lines += ["", f"{state}:", *(f"  {', '.join(names)}: {why}" for why, names in reasons.items())]
    return "".join(f"{line}\n" for line in lines)


def _make_outcome_cells(outcome: Outcome) -> tuple[str, ...]:
    if outcome.state == "failed":
        return outcome.variant, f"{outcome.seconds:.1f}", "", "", "failed"
    return outcome.variant, f"{outcome.seconds:.1f}", outcome.cached, outcome.digest, outcome.recorded
