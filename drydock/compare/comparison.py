"""What breaks for a command between two versions of vLLM: every part of it, judged by what each says of itself. IO.

Only reading the lists, the model and the plans does IO. The command is never executed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from drydock.compare.compared_variables import FAILS, OF_DRYDOCK, judge_variables, split_variables
from drydock.compare.flags import JudgedFlag, Sides, judge_flag, settings_of
from drydock.compare.host_plans import ChangedPlan, PlannedSide, compare_plans
from drydock.compare.judgment import AS_THE_RELEASE, Judgment, Verdict, soften_judgment, worst_of
from drydock.compare.pasted_command import PastedCommand
from drydock.compare.version_changes import ChangedDefault, ChangedNames, changed_defaults, changed_lists
from drydock.compare.vllm_parser import VllmParser, split_words
from drydock.compare.vllm_version import ServedVersion
from drydock.core.project import Project
from drydock.run.recorded_host import CONFIGURATIONS
from entrypoints.core.errors import EntrypointError
from entrypoints.model.hub import parse_hub
from entrypoints.model.read import Instead, ModelFacts, read_known_model, read_model
from entrypoints.plan.refusal import Refusal
from entrypoints.plan.vllm_limits import find_refusals
from entrypoints.request.flags import MODEL_NAME
from entrypoints.request.vllm_flags import UserFlags
from entrypoints.request.vllm_lists import VllmLists

WEIGHTS_AS_THEY_ARE = "auto"
NO_MODEL = ModelFacts("", False, "", "", None, None, "the command names no model")


class Comparison(NamedTuple):
    """What breaks for a command between two versions."""

    old: ServedVersion
    new: ServedVersion
    verdict: Verdict
    judgments: tuple[Judgment, ...]
    """The worst first."""
    defaults: tuple[ChangedDefault, ...]
    """What this command does not state, so that the new version's default counts."""
    lists: tuple[ChangedNames, ...]
    """Everything that changed, whether this command has it or not."""
    notes: tuple[str, ...]
    """What was not judged."""
    plans: tuple[ChangedPlan, ...]
    left_out: tuple[str, ...]
    """Flags without which the new row was planned."""


def compare_command(
    project: Project,
    command: PastedCommand,
    old: ServedVersion,
    new: ServedVersion,
    hosts: Sequence[Path],
    model_folder: str = "",
) -> Comparison:
    """Judge every part of a command, and compare the plans of both rows on recorded hosts. Raises InputError."""
    sides = Sides(old, new, VllmParser(old), VllmParser(new))
    judged = judge_parts(command, sides, lambda name: read_served_model(name, model_folder))
    model, flags, variables = judged.model, judged.flags, judged.variables
    names = {flag.new.name for flag in flags}
    judgments = sorted(
        (_soften_if_assumed(judgment, old, new) for judgment in judged.judgments), key=lambda item: -item.verdict
    )
    comparison = Comparison(
        old=old,
        new=new,
        verdict=worst_of(judgments),
        judgments=tuple(judgments),
        defaults=tuple(changed_defaults(old.details, new.details, {*names, *variables})),
        lists=tuple(changed_lists(old, new)),
        notes=tuple(_make_notes(command, judged.other_variables, old, new)),
        plans=(),
        left_out=(),
    )
    if not hosts or old.variant is None or new.variant is None:
        return comparison
    env = {name: value for name, value in variables.items() if "$" not in value}
    accepted = [flag for flag in flags if worst_of(flag.judgments) < Verdict.MANUAL]
    before = PlannedSide(old.variant, _planned_words(model, [flag for flag in flags if flag.old.flag]), env)
    after = PlannedSide(new.variant, _planned_words(model, accepted), env)
    left_out = tuple(flag.written for flag in flags if flag not in accepted)
    return comparison._replace(plans=tuple(compare_plans(project, hosts, before, after)), left_out=left_out)


class JudgedParts(NamedTuple):
    """Every part of a command, judged."""

    model: str
    facts: ModelFacts
    flags: list[JudgedFlag]
    variables: Mapping[str, str]
    """Those that a vLLM reads."""
    other_variables: tuple[str, ...]
    judgments: tuple[Judgment, ...]


def judge_parts(command: PastedCommand, sides: Sides, read: Callable[[str], ModelFacts]) -> JudgedParts:
    """Judge every part of a command; `read` returns what is known of a model by its name."""
    model, flags, extra = judge_words(command, sides)
    facts = read(model)
    variables, other_variables = split_variables(command.env, sides.old, sides.new)
    is_strict = FAILS in {flag.new.name for flag in flags}
    judgments = (
        *_judge_model(facts, model, flags, sides),
        *extra,
        *_with_refusals(flags, facts, sides),
        *judge_variables(variables, sides.old, sides.new, is_strict=is_strict),
    )
    return JudgedParts(model, facts, flags, variables, other_variables, judgments)


def judge_words(command: PastedCommand, sides: Sides) -> tuple[str, list[JudgedFlag], list[Judgment]]:
    """Return the model's name, what becomes of each flag, and judgments of words that are no flags."""
    before, groups = split_words(command.words)
    model = before[0] if before else ""
    has_model = bool(model) or any(group.head.replace("_", "-") == MODEL_NAME for group in groups)
    flags: list[JudgedFlag] = []
    for group in groups:
        flag = judge_flag(group, sides, is_drydocks=command.is_drydocks, has_model=has_model)
        other_words = sides.new_parser.understand(group).rest
        if not has_model and len(other_words) == 1:
            model, has_model = other_words[0], True
        if flag.new.name == MODEL_NAME and flag.new.values:
            model = model or flag.new.values[0]
        flags.append(flag)
    because = "the parser takes one word before the flags, the model"
    extra = [Judgment("word", f"{word:.60}", Verdict.BLOCKED, because) for word in before[1:]]
    return model, flags, extra


def _planned_words(model: str, flags: Sequence[JudgedFlag]) -> tuple[str, ...]:
    """Return the words for a plan: the model, and flags as they are written."""
    words: list[str] = ["--model", model] if model else []
    for flag in flags:
        head, values, is_joined = flag.group
        values = values[: len(values) - len(flag.new.rest)] if flag.new.rest == (model,) else values
        if MODEL_NAME not in (flag.new.name, flag.old.name):
            words += [f"{head}={values[0]}", *values[1:]] if is_joined and values else [head, *values]
    return tuple(words)


# --- the model, and what names something in a list -------------------------------------------------------------------


def read_served_model(name: str, folder: str, env: Mapping[str, str] = os.environ) -> ModelFacts:
    """Return what is known of a model; `folder` has its config.json if this machine has it elsewhere.

    A model that cannot be read is unknown, with the reason.
    """
    if not name or "$" in name:
        return NO_MODEL._replace(unknown=NO_MODEL.unknown if not name else f"{name} is a shell variable")
    instead = Instead(file=folder, known=str(CONFIGURATIONS), no_weights=True)
    try:
        facts = read_model(name, WEIGHTS_AS_THEY_ARE, parse_hub(env), instead=instead)
    except EntrypointError as error:
        return NO_MODEL._replace(name=name, unknown=error.message)
    return facts


@lru_cache(maxsize=256)
def read_recorded_model(name: str) -> ModelFacts:
    """Return what drydock has recorded of a model, by its name alone: no folder, cache or hub is read."""
    unknown = NO_MODEL._replace(name=name, unknown="drydock has recorded no such model")
    return (read_known_model(unknown, str(CONFIGURATIONS)) or unknown) if name else NO_MODEL


def _judge_model(facts: ModelFacts, model: str, flags: list[JudgedFlag], sides: Sides) -> Iterator[Judgment]:
    """Yield the judgment of the model: its architecture and its quantisation."""
    name = model or "the model"
    if not facts.architecture:
        hint = "--model FOLDER names a folder with its config.json"
        yield Judgment("model", name, Verdict.UNKNOWN, f"its architecture is not known: {facts.unknown}", hint)
        return
    problems = [item for item in _list_refusals(sides.new, facts, flags, is_new=True) if not _flag_of(item, flags)]
    before = {item.problem for item in _list_refusals(sides.old, facts, [], is_new=False)}
    for problem in problems:
        also = "; the old version refuses it too" if problem.problem in before else ""
        verdict = Verdict.BLOCKED if problem.certain else Verdict.UNKNOWN
        because = f"{problem.problem}: the new version has {problem.expected}{also}"
        because += "" if problem.certain else ", and falls back on the library transformers"
        yield Judgment("model", name, verdict, because)
    if not problems:
        method = f", {facts.quantization}" if facts.quantization else ""
        sides_with_it = "only the new version has" if before else "both versions have"
        yield Judgment("model", name, Verdict.SAFE, f"{sides_with_it} {facts.architecture}{method}")


def _list_refusals(
    version: ServedVersion, facts: ModelFacts, flags: list[JudgedFlag], *, is_new: bool
) -> list[Refusal]:
    """Return what a version's lists do not have of the model and of the flags' values."""
    settings = settings_of(flags, is_new=is_new)
    return [*find_refusals(VllmLists(version.lists), facts, UserFlags({}, {}, ()), settings, {})]


def _flag_of(refusal: Refusal, flags: list[JudgedFlag]) -> JudgedFlag | None:
    """Return the flag that names what a version does not have; None for the model."""
    first = refusal.problem.split()[0].rstrip(":")
    return next((flag for flag in flags if flag.new.name == first), None)


def _with_refusals(flags: list[JudgedFlag], facts: ModelFacts, sides: Sides) -> Iterator[Judgment]:
    """Yield the judgments of all flags, with what the new version's lists do not have."""
    refusals: Mapping[int, list[Refusal]] = _by_flag(_list_refusals(sides.new, facts, flags, is_new=True), flags)
    before = {item.problem for item in _list_refusals(sides.old, facts, flags, is_new=False)}
    for flag in flags:
        missing = refusals.get(id(flag), [])
        for refusal in missing:
            also = "; the old version refuses it too" if refusal.problem in before else ""
            because = f"{refusal.problem}: expected {refusal.expected}{also}"
            yield Judgment("flag", flag.written, Verdict.BLOCKED, because)
        if not missing:
            yield from flag.judgments


def _by_flag(refusals: Sequence[Refusal], flags: list[JudgedFlag]) -> dict[int, list[Refusal]]:
    refusals_by_flag: dict[int, list[Refusal]] = {}
    for refusal in refusals:
        flag = _flag_of(refusal, flags)
        if flag is not None and worst_of(flag.judgments) < Verdict.MANUAL:
            refusals_by_flag.setdefault(id(flag), []).append(refusal)
    return refusals_by_flag


def _soften_if_assumed(judgment: Judgment, old: ServedVersion, new: ServedVersion) -> Judgment:
    """Return a judgment as far as lists go that are only assumed."""
    if new.assumed:
        return soften_judgment(judgment, new.assumed)
    if old.assumed and judgment.verdict is Verdict.SAFE:
        return judgment._replace(verdict=Verdict.UNKNOWN, because=f"{judgment.because}, {AS_THE_RELEASE}")
    return judgment


def _make_notes(
    command: PastedCommand, other_variables: Sequence[str], old: ServedVersion, new: ServedVersion
) -> Iterator[str]:
    for option, version in (("--from", old), ("--to", new)):
        if version.assumed:
            yield f"{option} {version.name}: the lists are assumed, {version.assumed}"
    foreign = [name for name in other_variables if not name.startswith(OF_DRYDOCK)]
    if foreign:
        yield f"not vLLM's, and not judged: {', '.join(foreign)}"
    if len(foreign) < len(other_variables):
        yield f"drydock's own: {', '.join(name for name in other_variables if name.startswith(OF_DRYDOCK))}"
    yield from command.notes
