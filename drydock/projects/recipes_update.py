"""`./inv recipes`: takes a newer commit of the recipes, and shows which plans of recorded hosts change. IO."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from drydock.core.console import log
from drydock.core.differences import find_differences
from drydock.core.errors import StaleError
from drydock.core.files import parse_any_json
from drydock.core.project import Project
from drydock.inputs.store import default_store
from drydock.lock.recipes import recipe_files, recipes_lock
from drydock.lock.recipes.recipe_texts import Recipes
from drydock.run import recorded_host
from drydock.run.recorded_plans import PlanQuestion, make_recorded_plans
from drydock.topology.init import find_hosts
from drydock.topology.size import Recorded, list_recorded_machines

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


class Update(NamedTuple):
    """What `./inv recipes` did."""

    files: tuple[Path, ...]
    commit: str
    date: str
    models: tuple[str, ...]
    """Models whose recipes changed."""
    plans: tuple[PlanChange, ...]
    skipped: Mapping[str, str]


def update_recipes(project: Project, address: str = "", hosts: str = "") -> Update:
    """Read recipes, write their facts and lock, and compare plans; `address` is that of `--from`.

    Raises InputError and FetchError; then nothing is written.
    """
    project.check_writable(recipes_lock.LOCK)
    recipes = read_source(project, address)
    models, skipped = recipes_lock.make_facts(recipes)
    try:
        old_models: Mapping[str, Any] = parse_any_json(recipes_lock.read_facts(project)).get("models", {})
        is_readable = True
    except StaleError as error:  # then plans are compared with those without any recipe
        log(str(error))
        old_models, is_readable = {}, False
    changed = sorted(
        (name for name in {*models, *old_models} if models.get(name) != old_models.get(name)),
        key=lambda name: (name not in models, name),
    )
    if hosts:
        find_hosts(Path(hosts))  # an error before anything is written
    questions = _list_questions(list_recorded_machines(project, hosts), changed) if is_readable else []
    old = _make_recipe_plans(project, questions)
    files = recipes_lock.write_recipes(project, recipes)
    if not is_readable:  # until now nothing could be planned, nor a row be chosen for a host
        questions = _list_questions(list_recorded_machines(project, hosts), changed)
        old = _make_recipe_plans(project, questions, NO_RECIPE)
    new = _make_recipe_plans(project, questions)
    return Update(
        (*files,), recipes.commit, recipes.date, (*changed,), (*_compare_plans(questions, old, new),), skipped
    )


def read_source(project: Project, address: str = "") -> Recipes:
    """Read the recipes that `--from` or drydock.yaml names, or the newest of vLLM's. Raises InputError, FetchError."""
    repository = recipes_lock.repository_of(project)
    if not address and "://" not in repository:
        project.check_writers([], [project.root / repository])
        return recipe_files.read_folder(project.root / repository)._replace(repository=repository)
    if address:
        return recipe_files.read_named(address, repository, default_store(), os.environ)
    return recipe_files.read_newest(repository, default_store(), os.environ)


def _list_questions(recorded: Iterable[Recorded], models: Iterable[str]) -> list[tuple[Recorded, str]]:
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


def _make_recipe_plans(project: Project, questions: Iterable[tuple[Recorded, str]], *more: str) -> list[Plan]:
    plans = make_recorded_plans(
        project, [PlanQuestion(host.variant, host.path, ("--model", model, *more)) for host, model in questions]
    )
    return [
        {"no plan": plan.problem}
        if plan.error
        else {reason["setting"]: reason["value"] for reason in plan.document["reasons"]}
        for plan in plans
    ]


def _compare_plans(
    questions: Iterable[tuple[Recorded, str]], old: Iterable[Plan], new: Iterable[Plan]
) -> Iterator[PlanChange]:
    for (host, model), before, after in zip(questions, old, new, strict=True):
        for setting, first, second in sorted(find_differences(before, after)):
            if not ("/compiled/" in (first or "") and "/compiled/" in (second or "")):  # the cache's own key
                yield PlanChange(model, host.name, setting, first or "", second or "")


def dump_recipes_update(update: Update, project: Project) -> dict[str, Any]:
    """Return the update as plain values."""
    files = [project.name_of(path) for path in update.files]
    return {**update._asdict(), "files": files, "plans": [change._asdict() for change in update.plans]}


def format_update(update: Update, project: Project) -> str:
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
