"""The facts of a model's recipe, out of recipes.json next to the profile. IO.

The file is the image's own, or a newer one that was mounted over it. One that another user could have written is not
read. It has a line for each model, so that a start parses one line of 300.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from entrypoints.cache.trust import find_replacer, find_writer
from entrypoints.core.folders import read_bounded
from entrypoints.core.parse import parse_untrusted_json
from entrypoints.model.read import ModelFacts

RECIPES_FILE = "recipes.json"
LARGEST = 8 << 20
"""Bytes of the file; that of 2026-08-21 has 209 kB."""


class RecipeFacts(NamedTuple):
    """What the file says of a model."""

    model: str = ""
    """Its hub id; empty if there is no recipe."""
    facts: Mapping[str, Any] = {}
    date: str = ""
    """Day of the file, where the recipe has none of its own."""
    problem: str = ""
    """Why the file was not read."""


NOTHING = RecipeFacts()


def read_facts(path: str, model: ModelFacts) -> RecipeFacts:
    """Return what recipes.json says of a model; nothing without the file, or without a recipe."""
    try:
        status = os.stat(path)
    except OSError:
        return NOTHING
    problem = find_writer(path) or find_replacer(os.path.dirname(os.path.abspath(path)))
    if problem:
        return RecipeFacts(problem=problem)
    try:
        text = read_bounded(path, LARGEST).decode() if status.st_size else "{}"
        return _find_model(text, model)
    except (OSError, ValueError) as error:
        return RecipeFacts(problem=f"{path}: {getattr(error, 'strerror', None) or error}")


def _find_model(text: str, model: ModelFacts) -> RecipeFacts:
    """Return the facts of a model out of the file. Raises ValueError for a file of another form."""
    head, lines, rest = text.partition('"models":{\n')
    if not lines:
        table = parse_untrusted_json(text)
        models = table.get("models", {}) if isinstance(table, dict) else None
        if not isinstance(models, dict):
            raise ValueError("expected what `./inv recipes` writes")
        names = _match_names(model, models)
        return _as_facts(names, models[names[0]] if len(names) == 1 else {}, str(table.get("date", "")))
    names = _match_names(model, re.findall(r'^"([^"\n]{1,200})": ', rest, re.MULTILINE))
    if len(names) != 1:
        return NOTHING
    start = rest.index(f'"{names[0]}": ')
    line = rest[start : rest.index("\n", start)].rstrip(",")
    date = re.search(r'"date":"([0-9]{4}-[0-9]{2}-[0-9]{2})"', head)
    return _as_facts(names, parse_untrusted_json(f"{{{line}}}")[names[0]], date[1] if date else "")


def _as_facts(names: list[str], facts: Any, date: str) -> RecipeFacts:
    if len(names) != 1:
        return NOTHING
    if not isinstance(facts, dict):
        raise ValueError(f"{names[0]}: expected an object")  # noqa: TRY004 - one error for whatever is wrong in a file
    return RecipeFacts(names[0], facts, date)


def _match_names(model: ModelFacts, names: Any) -> list[str]:
    """Return the models that a name means: the hub id, or for a folder the only one with its name."""
    name = model.short.rstrip("/")
    if "/" not in name and (model.local or "://" in model.name):
        return [candidate for candidate in names if candidate.rpartition("/")[2] == model.short]
    return [candidate for candidate in names if candidate == name]
