"""templates/recipes.lock.json and templates/recipes.json: the recipes that images get, as facts of one commit. IO.

The lock has the hash of the facts, so that an edit by hand is found; `./inv recipes` writes both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drydock.config.project_choice import read_settings
from drydock.config.strict_yaml import YamlDocument
from drydock.config.validation import validate_document
from drydock.core.errors import InputError, StaleError
from drydock.core.files import format_compact_json, format_json, parse_any_json, read_bounded
from drydock.core.project import Project
from drydock.lock.recipes.parse_recipe import parse_recipe
from drydock.lock.recipes.recipe_texts import LICENCE, UPSTREAM, Recipes
from drydock.model.published_recipes import RecipesLock
from drydock.model.record import dump_record

LOCK, FACTS = "templates/recipes.lock.json", "templates/recipes.json"
FILE = "recipes.json"
"""What an image has of it, next to its profile."""
LARGEST_FACTS = 8 << 20
NONE = "none"
"""Value of `recipes` in drydock.yaml with which a project's images have none."""
_RENEW = "run `./inv recipes`"


def make_facts(recipes: Recipes) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return model id → facts, and the files that are no recipes with the reason.

    Of several recipes for one checkpoint, its own counts.
    """
    models: dict[str, dict[str, Any]] = {}
    skipped: dict[str, str] = {}
    for name, content in recipes.texts.items():
        try:
            entries = parse_recipe(content.decode("utf-8"), name)
        except UnicodeDecodeError:
            skipped[name] = "not UTF-8"
            continue
        except InputError as error:
            skipped[name] = error.problems[0].removeprefix(f"{name}: ")[:200]
            continue
        for model, facts in entries.items():
            if model not in models or facts["recipe"] == model:
                models[model] = facts
    return models, skipped


def write_recipes(project: Project, recipes: Recipes) -> list[Path]:
    """Write the facts and the lock of some recipes; return the files that changed. Raises InputError without any."""
    models, skipped = make_facts(recipes)
    if not models:
        problems = [f"{name}: {why}" for name, why in [*skipped.items()][:5]]
        hint = "expected models/ORG/NAME.yaml as in https://github.com/vllm-project/recipes"
        raise InputError(f"{recipes.repository}: found no recipes", *problems, hint=hint)
    date = recipes.date or max(facts.get("date", "") for facts in models.values())
    text = _facts_text({"repository": recipes.repository, "commit": recipes.commit, "date": date}, models)
    lock = RecipesLock(
        schema_=1,
        repository=recipes.repository,
        commit=recipes.commit,
        date=date,
        licence=LICENCE if recipes.repository == UPSTREAM else "",
        facts_sha256=hashlib.sha256(text.encode()).hexdigest(),
        verified=not recipes.unverified,
        reason=recipes.unverified,
        skipped=skipped,
    )
    return project.write_together({FACTS: text, LOCK: format_json(dump_record(lock))})


def _facts_text(origin: Mapping[str, str], models: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the facts as JSON with a line for each model, so that a change can be read."""
    lines = ",\n".join(
        f"{format_compact_json(name)}: {format_compact_json(facts)}" for name, facts in sorted(models.items())
    )
    head = format_compact_json({"schema": 1, **origin})[:-1]
    return f'{head},"models":{{\n{lines}\n}}}}\n'


def read_lock(project: Project) -> RecipesLock | None:
    """Return which recipes the project's images get; None if none. Raises StaleError and InputError."""
    settings = read_settings(project)
    recipes_setting = settings.recipes if settings else ""
    path = project / LOCK
    if recipes_setting == NONE or not path.is_file():
        return None
    try:
        lock = validate_document(RecipesLock, YamlDocument(LOCK, parse_any_json(path.read_bytes()), {}))
    except (ValueError, OSError) as error:
        raise StaleError(f"{LOCK}: invalid lock: {error}", hint=_RENEW) from error
    if recipes_setting and lock.repository != recipes_setting:
        raise StaleError(f"{LOCK}: recipes of {lock.repository}, but drydock.yaml names {recipes_setting}", hint=_RENEW)
    return lock


def read_facts(project: Project) -> str:
    """Return the text of the recipes that the project's images get; an empty object if none. Raises StaleError."""
    lock = read_lock(project)
    if lock is None:
        return "{}\n"
    try:
        content = read_bounded(project / FACTS, LARGEST_FACTS)
    except OSError as error:
        raise StaleError(f"{FACTS}: {error.strerror or error}", hint=_RENEW) from error
    if hashlib.sha256(content).hexdigest() != lock.facts_sha256:
        raise StaleError(f"{FACTS}: not what {LOCK} says: it was edited by hand", hint=_RENEW)
    return content.decode()


def repository_of(project: Project) -> str:
    """Return the repository or folder that the project takes recipes from."""
    settings = read_settings(project)
    recipes_setting = settings.recipes if settings else ""
    return UPSTREAM if recipes_setting in ("", NONE) else recipes_setting
