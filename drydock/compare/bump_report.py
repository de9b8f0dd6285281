"""What a new version of vLLM changes for a row: for its users, on recorded hosts, and in facts that were read by hand.

It is the text of `bump`, and of the request that `ci propose` opens with it. IO: plans; nothing is started.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

from drydock.compare.comparison import judge_words
from drydock.compare.flags import Sides
from drydock.compare.host_plans import ChangedPlan, compare_plan
from drydock.compare.judgment import Judgment, Verdict
from drydock.compare.pasted_command import PastedCommand
from drydock.compare.verdict_text import list_default_lines, list_name_lines, list_plan_lines, shorten_name
from drydock.compare.version_changes import ChangedDefault, ChangedNames, changed_defaults, changed_lists
from drydock.compare.vllm_parser import VllmParser
from drydock.compare.vllm_version import ServedVersion, find_served_version
from drydock.config.stack_files import list_stack_files
from drydock.core.console import as_lines
from drydock.core.errors import DrydockError, InputError
from drydock.core.files import parse_any_json
from drydock.core.project import Project
from drydock.lock import lockfile, vllm_lists
from drydock.lock.named_sources import UNNAMED, SourcesCompared, VllmFiles, compare_sources, list_sources
from drydock.lock.recipes import recipes_lock
from drydock.model.locked import Lock
from drydock.model.variant import Variant
from drydock.run.recorded_plans import PlanQuestion, RecordedPlan, make_recorded_plans
from drydock.topology.size import list_recorded_machines

MODELS = ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-30B-A3B")
"""What is planned on each recorded host: a small model, and one with experts."""
NOT_STARTED = (
    "vLLM itself was not started: `plan --rehearse` in the built image lets it check a plan; in a checkout of drydock,"
    " `python -m tests.evidence.oracle IMAGE` asks its classes"
)
SHOWN = 6
"""Names in one line, such as models whose published command breaks alike."""


class HostQuestion(NamedTuple):
    """A model, planned on a recorded host."""

    host: Path
    row: str
    model: str


class RowsBefore(NamedTuple):
    """What is known of rows before they take a new version."""

    variant: Variant
    """The row that the user named."""
    locks: Mapping[str, Lock]
    served: ServedVersion | None
    problem: str
    """Why nothing is known of its vLLM."""
    questions: tuple[HostQuestion, ...]
    plans: tuple[RecordedPlan, ...]


class BumpReport(NamedTuple):
    """What a new version changes."""

    rows: Mapping[str, str]
    """Old row → new row."""
    title: str
    lists: tuple[ChangedNames, ...] = ()
    defaults: tuple[ChangedDefault, ...] = ()
    commands: Mapping[Judgment, tuple[str, ...]] = {}
    """What breaks → the commands with it."""
    sources: SourcesCompared | None = None
    recipes: str = ""
    """What newer published recipes change."""
    plans: tuple[ChangedPlan, ...] = ()
    refusals: tuple[str, ...] = ()
    """Examples of drydock's rules that one version refuses, and the other does not."""
    answers: tuple[Path, ...] = ()
    """The files in which the answers of the new version were written."""
    not_asked: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files with the answers, and those in which the version was written next to sources of facts."""
        return (*self.answers, *(self.sources.files if self.sources else ()))


def look_at_rows(project: Project, rows: Mapping[str, Variant], variant: Variant) -> RowsBefore:
    """Return what is known of rows: their locks, what their vLLM says of itself, their plans on recorded hosts."""
    locks = {row: lockfile.read_previous(lockfile.path_of_lock(project, row)) for row in rows}
    served, problem = _look_at_version(project, variant)
    machines = list_recorded_machines(project) if served else []
    questions = tuple(
        HostQuestion(machine.path, machine.variant.id, model)
        for machine in machines
        if machine.variant.id in rows
        for model in MODELS
    )
    plans = _answer_questions(project, questions, rows)
    return RowsBefore(variant, {row: lock for row, lock in locks.items() if lock}, served, problem, questions, plans)


def _look_at_version(project: Project, variant: Variant) -> tuple[ServedVersion | None, str]:
    try:
        return find_served_version(project, "--target", variant.id), ""
    except DrydockError as error:
        return None, error.problems[0]


def _answer_questions(
    project: Project, questions: Sequence[HostQuestion], variants: Mapping[str, Variant]
) -> tuple[RecordedPlan, ...]:
    words = ((question, ("--model", question.model)) for question in questions)
    return (
        *make_recorded_plans(
            project, [PlanQuestion(variants[question.row], question.host, model) for question, model in words]
        ),
    )


def make_report(
    project: Project,
    before: RowsBefore,
    new_rows: Mapping[str, Variant],
    served_words: Iterable[tuple[str, Sequence[str]]],
) -> BumpReport:
    """Return what the two versions say of themselves, and which sources of facts are others now.

    `new_rows` is old row → the row that has the new version. Sources that are the same get the new version.
    `served_words` are commands of the project's own, by name.
    """
    new_row = new_rows[before.variant.id]
    rows = {old: row.id for old, row in new_rows.items()}
    report = BumpReport(
        rows, f"{before.variant.id} ({before.variant.vllm.version}) → {new_row.id} ({new_row.vllm.version})"
    )
    served, problem = _look_at_version(project, new_row)
    try:
        report = report._replace(sources=_compare_row_sources(project, before, new_rows))
    except DrydockError as error:
        report = report._replace(not_asked=(f"sources of facts were not compared: {error.problems[0]}",))
    if not (before.served and served):
        return report._replace(not_asked=(*report.not_asked, *filter(None, (before.problem, problem))))
    old, new = before.served, served
    commands = [
        *list_recipe_commands(parse_any_json(recipes_lock.read_facts(project))["models"]),
        *((name, PastedCommand(tuple(words), {})) for name, words in served_words),
    ]
    assumed = [f"{side.title}: its lists are assumed, {side.assumed}" for side in (old, new) if side.assumed]
    return report._replace(
        lists=tuple(changed_lists(old, new)),
        defaults=tuple(changed_defaults(old.details, new.details, ())),
        commands=find_broken_commands(commands, old, new),
        not_asked=(*report.not_asked, *assumed, *_list_older_sources(report.sources), NOT_STARTED),
    )


def _compare_row_sources(
    project: Project, before: RowsBefore, new_rows: Mapping[str, Variant]
) -> SourcesCompared | None:
    """Compare the files of the old and the new vLLM where sources of facts name them. Raises DrydockError."""
    new_row = new_rows[before.variant.id]
    old_lock = before.locks.get(before.variant.id)
    new_lock = lockfile.read_previous(lockfile.path_of_lock(project, new_row.id))
    if not (old_lock and new_lock):
        raise InputError("a row is not locked")
    program = vllm_lists.read_program(project)
    old, new = (
        VllmFiles(program, vllm_lists.fetch_vllm(variant, lock))
        for variant, lock in ((before.variant, old_lock), (new_row, new_lock))
    )
    stacks = [path for row in new_rows.values() for path in list_stack_files(project, row)]
    versions = before.variant.vllm.version, new_row.vllm.version
    return compare_sources(project, list_sources(project, stacks), old, new, versions)


def _list_older_sources(sources: SourcesCompared | None) -> Iterator[str]:
    """Yield, for each version, the sources that were read in it and not compared."""
    places: dict[str, list[str]] = {}
    for older in sources.older if sources else ():
        place, _, version = older.partition(": ")
        places.setdefault(version, []).append(place)
    for version, listed in sorted(places.items()):
        yield f"sources of {version}, of which the files were not at hand: {_join_first_names(listed)}"


def compare_host_plans(
    project: Project, before: RowsBefore, new_rows: Mapping[str, Variant]
) -> tuple[ChangedPlan, ...]:
    """Return the plans of recorded hosts that differ from those before."""
    after = _answer_questions(project, before.questions, new_rows)
    changes = (
        compare_plan(f"{question.host.parent.name}: {question.model}", *plans)
        for question, *plans in zip(before.questions, before.plans, after, strict=True)
    )
    return tuple(change for change in changes if change.changes or change.old_problem != change.new_problem)


def list_recipe_commands(models: Mapping[str, Any]) -> Iterator[tuple[str, PastedCommand]]:
    """Yield the command of each published recipe, with the flags of all its features and devices."""
    for model, recipe in models.items():
        parts = (recipe, *recipe.get("features", {}).values(), *recipe.get("on", {}).values())
        words = [word for part in parts for flag in part.get("flags", {}).items() for word in _write_flag(*flag)]
        if words:
            yield model, PastedCommand((model, *words), {})


def _write_flag(name: str, value: Any) -> tuple[str, ...]:
    return (name,) if value is True else () if value is False else (name, str(value))


def find_broken_commands(
    commands: Iterable[tuple[str, PastedCommand]], old: ServedVersion, new: ServedVersion
) -> dict[Judgment, tuple[str, ...]]:
    """Return what the new version refuses, or a person must decide, with the commands that have it.

    What the old version does not take either is left out.
    """
    before, after = VllmParser(old), VllmParser(new)
    broken: dict[Judgment, list[str]] = {}
    for name, command in commands:
        earlier = set(_judge_command(command, Sides(old, old, before, before)))
        for judgment in _judge_command(command, Sides(old, new, before, after)):
            if judgment not in earlier:
                broken.setdefault(judgment, []).append(name)
    return {judgment: tuple(dict.fromkeys(names)) for judgment, names in broken.items()}


def _judge_command(command: PastedCommand, sides: Sides) -> Iterator[Judgment]:
    _, flags, extra = judge_words(command, sides)
    judgments = (*extra, *(judgment for flag in flags for judgment in flag.judgments))
    return (judgment for judgment in judgments if judgment.verdict >= Verdict.MANUAL)


def format_report(report: BumpReport) -> str:
    """Return a report as text, which is Markdown too."""
    sections = {
        "rows": [f"- `{old}` → `{new}`" for old, new in report.rows.items() if old != new],
        "commands of users that break": [*_list_command_lines(report.commands)],
        "flags, values and names": [line for change in report.lists for line in list_name_lines(change)],
        "defaults": [line for line in list_default_lines(report.defaults) if line][1:],
        "plans of recorded hosts": [*list_plan_lines(report.plans)],
        "recipes": report.recipes.splitlines(),
        "refusals": report.refusals,
        "sources to read again": [*_list_source_lines(report.sources)],
        "not asked": [f"- {line}" for line in report.not_asked],
    }
    lines = [f"# {report.title}"]
    for title, section in sections.items():
        is_prose = not section or section[0].startswith("- ")
        block = section if is_prose else [indent("\n".join(section), "    ")]  # upstream's texts, which may be Markdown
        lines += ["", f"## {title}", "", *(block or ["nothing"])]
    return as_lines(lines)


def _list_command_lines(commands: Mapping[Judgment, tuple[str, ...]]) -> Iterator[str]:
    for judgment, names in sorted(commands.items(), key=lambda item: (-item[0].verdict, item[0].name)):
        yield f"{judgment.verdict.word}: {shorten_name(judgment.name)}: {judgment.because}"
        if judgment.instead:
            yield f"  → {judgment.instead}"
        yield f"  {_join_first_names(names)}"


def _join_first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _list_source_lines(sources: SourcesCompared | None) -> Iterator[str]:
    if sources is None:
        return
    groups: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for change in sources.changes:
        groups.setdefault(change[1:], []).append(change.place)
    for (symbol, what, difference), places in sorted(groups.items(), key=lambda item: item[0][1] == UNNAMED):
        yield f"{symbol}: {what}"
        yield f"  read in {', '.join(places)}"
        yield from (f"    {line}".rstrip() for line in difference)
    yield from (f"not in the old version either: {line}" for line in sources.unknown)
    yield f"{sources.same} sources are the same; those that name a version name the new one now"
