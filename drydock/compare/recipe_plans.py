"""Which plans of recorded hosts change with a newer commit of vLLM's published recipes. IO."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from drydock.core.console import log
from drydock.core.differences import find_differences
from drydock.core.project import Project
from drydock.run import recorded_host
from drydock.run.recorded_plans import PlanQuestion, make_recorded_plans
from drydock.topology.size import Recorded

Plan = Mapping[str, str]
"""Flag or variable → value, or the error that there is no plan."""
NO_RECIPE = "--no-recipe"
MOST_PLANS = 60
"""Plans that are compared, before and after: each takes 0.1 to 0.3 s, and other recipes can change thousands."""


class PlanChange(NamedTuple):
    """A setting of a plan that a newer recipe changes; empty where a plan lacks it."""

    model: str
    host: str
    setting: str
    old: str
    new: str


class RecipesUpdate(NamedTuple):
    """What `./inv recipes` did."""

    files: tuple[Path, ...]
    commit: str
    date: str
    models: tuple[str, ...]
    """Models whose recipes changed."""
    plans: tuple[PlanChange, ...]
    skipped: Mapping[str, str]


def list_recipe_questions(recorded: Iterable[Recorded], models: Iterable[str]) -> list[tuple[Recorded, str]]:
    """Return which models are planned on which hosts: those that drydock knows the configuration of."""
    known_models = json.loads(
        recorded_host.CONFIGURATIONS.read_bytes()
    )  # as published: some have Infinity, which no JSON has
    changed_models = [model for model in models if model in known_models][:MOST_PLANS]
    hosts = [*recorded]
    count = min(len(hosts), max(1, MOST_PLANS // max(1, len(changed_models))))  # hosts of each model
    most = len(changed_models) * len(hosts)
    if most > MOST_PLANS:
        log(f"{most} plans could change; {len(changed_models) * count} of them are compared")
    return [
        (hosts[(number + place * len(hosts) // count) % len(hosts)], model)
        for number, model in enumerate(changed_models)
        for place in range(count)
    ]


def make_recipe_plans(project: Project, questions: Iterable[tuple[Recorded, str]], *more: str) -> list[Plan]:
    """Return the plan of each model on its host, with more flags."""
    plans = make_recorded_plans(
        project, [PlanQuestion(host.variant, host.path, ("--model", model, *more)) for host, model in questions]
    )
    return [
        {"no plan": plan.problem}
        if plan.error
        else {reason["setting"]: reason["value"] for reason in plan.document["reasons"]}
        for plan in plans
    ]


def compare_recipe_plans(
    questions: Iterable[tuple[Recorded, str]], old: Iterable[Plan], new: Iterable[Plan]
) -> Iterator[PlanChange]:
    """Yield each setting that differs between old and new plans."""
    for (host, model), before, after in zip(questions, old, new, strict=True):
        for setting, first, second in sorted(find_differences(before, after)):
            if not ("/compiled/" in (first or "") and "/compiled/" in (second or "")):  # the cache's own key
                yield PlanChange(model, host.name, setting, first or "", second or "")


def format_update(update: RecipesUpdate, project: Project) -> str:
    """Return what changed, as text: files, models, and a line for each setting of a plan."""
    lines = [f"{project.name_of(path)}: written" for path in update.files] or ["the recipes are up to date"]
    lines += [f"{name}: left out: {why}" for name, why in update.skipped.items()]
    if update.models:
        lines.append(f"recipes changed for {len(update.models)} models: {_join_first_names(update.models)}")
    title = ""
    for change in update.plans:
        if title != (title := f"{change.model} on {change.host}"):
            lines.append(title)
        lines.append(f"  {change.setting} {change.old or '(not set)'} → {change.new or '(not set)'}")
    if update.models and not update.plans:
        lines.append("no plan of a recorded host changes")
    return "\n".join(lines) + "\n"


def _join_first_names(names: tuple[str, ...], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")
