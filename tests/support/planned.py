"""Models and plans of the tests: what is decided for a published configuration on a machine, and that in short."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from drydock.config.matrix import find_variant  # noqa: E402
from drydock.config.project_choice import DRYDOCK  # noqa: E402
from drydock.lock.lockfile import path_of_lock, read_previous  # noqa: E402
from drydock.lock.vllm_lists import find_lists  # noqa: E402
from entrypoints.core.errors import REFUSED, EntrypointError  # noqa: E402
from entrypoints.core.parse import parse_id_list  # noqa: E402
from entrypoints.core.records import ServePlan  # noqa: E402
from entrypoints.model.config import parse_config  # noqa: E402
from entrypoints.model.parameters import estimate_weights  # noqa: E402
from entrypoints.model.read import ModelFacts, parse_model  # noqa: E402
from entrypoints.model.weights import Weights  # noqa: E402
from entrypoints.plan.plan import make_serve_plan  # noqa: E402
from entrypoints.plan.recipe_file import RecipeFacts, read_facts  # noqa: E402
from entrypoints.plan.recipes import choose_recipe  # noqa: E402 - after the path is set
from entrypoints.request.flags import DATA, EXPERT, LENGTH, LOCAL, PIPELINE, TENSOR  # noqa: E402
from entrypoints.request.intents import NONE, Intents  # noqa: E402
from entrypoints.request.recipes import RecipeChoice  # noqa: E402
from entrypoints.request.vllm_flags import parse_user_flags  # noqa: E402
from entrypoints.request.vllm_lists import NOT_KNOWN, VllmLists  # noqa: E402
from tests.support.hosts import expect  # noqa: E402
from tests.support.machines import Machine  # noqa: E402

HERE = ROOT / "tests" / "models"
KNOWN = ROOT / "drydock" / "run" / "configurations.json"
BFLOAT16 = 2


# --- models ---------------------------------------------------------------------------------------------------------


@cache
def models(folder: Path = HERE) -> dict[str, ModelFacts]:
    """Return every model by its hub id."""
    return {name: _model(name, body) for name, body in configurations(folder).items()}


@cache
def configurations(folder: Path = HERE) -> dict[str, dict[str, Any]]:
    """Return the published configurations by hub id."""
    path = KNOWN if folder == HERE else folder / "configurations.json"
    bodies: dict[str, dict[str, Any]] = json.loads(path.read_text())
    return bodies


def _model(name: str, body: dict[str, Any]) -> ModelFacts:
    """Read a published configuration. Raises ValueError for one that is not understood."""
    config = parse_config(body["config"])
    model = parse_model(name, config, name)._replace(shortened=body.get("shortened", ""))
    if model.problem:
        raise ValueError(model.problem)
    if model.geometry is None:
        return model
    weights = _published(body["parameters"]) if body["parameters"] else estimate_weights(config, model.geometry)
    return model._replace(weights=weights, estimated=not body["parameters"])


def _published(parameters: int) -> Weights:
    return Weights(BFLOAT16 * parameters, parameters, 0)


# --- plans ----------------------------------------------------------------------------------------------------------


class Spread(NamedTuple):
    """How a plan spreads a model over devices."""

    tensor: int
    pipeline: int
    data: int
    """Engines on one host."""
    experts: bool
    length: str
    """--max-model-len where the plan sets it, else empty."""
    because: str
    """Why this tensor-parallel size."""
    idle: int = 0
    """Cores that the plan leaves to further servers, where a server runs one engine."""

    def short(self) -> str:
        """Return the ranks in short, such as `tp4 dp2 ep`."""
        parts = [f"tp{self.tensor}", f"pp{self.pipeline}" * (self.pipeline > 1), f"dp{self.data}" * (self.data > 1)]
        return " ".join(filter(None, [*parts, "ep" * self.experts]))


def plan(
    machine: Machine,
    model: ModelFacts,
    words: tuple[str, ...] = (),
    intents: Intents = NONE,
    env: Mapping[str, str] = MappingProxyType({}),
) -> ServePlan:
    """Plan as the machine's own accelerator does. Raises EntrypointError."""
    return make_serve_plan(
        machine.profile, machine.facts, model, parse_user_flags((model.name, *words), env, (), intents)
    )


def plan_in_row(machine: Machine, model: ModelFacts, words: tuple[str, ...] = (), intents: Intents = NONE) -> ServePlan:
    """Plan as the machine's own row does, with what is known of its vLLM and the model's published recipe.

    Raises EntrypointError, also for what a list does not confirm: a table has no room for a warning.
    """
    planned = plan_with_recipe(machine, model, words, intents)
    texts = machine.profile["findings"]
    doubt = next((item for item in planned.findings if "unconfirmed" in texts.get(item.id, {}).get("about", ())), None)
    if doubt:
        raise EntrypointError(REFUSED, f"{doubt.found}: {doubt.text}")
    return planned


def plan_with_recipe(
    machine: Machine, model: ModelFacts, words: tuple[str, ...] = (), intents: Intents = NONE, *, recipes: bool = True
) -> ServePlan:
    """Plan as the machine's own row does, with the published recipe of the model. Raises EntrypointError."""
    user_flags = parse_user_flags((model.name, *words), {}, (), intents)._replace(
        vllm=lists_of_row(machine.profile["variant"])
    )
    if model.name not in _RECIPES:
        _RECIPES[model.name] = read_facts(str(ROOT / "templates/recipes.json"), model)
    facts = _RECIPES[model.name]
    choice = RecipeChoice(off=not recipes)
    recipe = choose_recipe(machine.profile, machine.facts, model, user_flags, facts, choice)
    return make_serve_plan(machine.profile, machine.facts, model, user_flags._replace(recipe=recipe))


_RECIPES: dict[str, RecipeFacts] = {}
"""Model → its published recipe: a table asks thousands of times, and each search of the file takes 3 ms."""


@cache
def lists_of_row(variant_id: str) -> VllmLists:
    """Return what is known of a row's vLLM before its image is built."""
    variant = find_variant(expect.VARIANTS, variant_id)
    vllm_lists = find_lists(DRYDOCK, variant, read_previous(path_of_lock(DRYDOCK, variant_id)), variant.platforms[0])
    return VllmLists(vllm_lists.lists, vllm_lists.assumed) if vllm_lists else NOT_KNOWN


def spread(planned: ServePlan) -> Spread:
    """Return how a plan spreads its model."""
    reasons = {reason.setting: reason for reason in planned.reasons}

    def ranks(name: str) -> int:
        return int(reasons[name].value) if name in reasons else 1

    engines = ranks(LOCAL) if LOCAL in reasons else ranks(DATA)
    length = reasons[LENGTH].value if LENGTH in reasons else ""
    because = reasons[TENSOR].because if TENSOR in reasons else ""
    experts = EXPERT in reasons and reasons[EXPERT].value == "true"
    idle_texts = (finding.found for finding in planned.findings if finding.id == "NRN-004")
    idle = sum(len(parse_id_list(text.split()[1])) for text in idle_texts)
    return Spread(ranks(TENSOR), ranks(PIPELINE), engines, experts, length, because, idle)


def intents_of(values: Mapping[str, Any]) -> Intents:
    """Return the goals that a record names."""
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return Intents(**fields)


@cache
def host(name: str, row: str = "") -> Machine:
    """Return a recorded host, as it is; with the row of the tests' plans, or another one."""
    profile = expect.profile_in(row) if row else expect.profile_of(name)
    return Machine(profile, expect.read(name, profile))


def table(columns: list[str], rows: Iterable[list[str]]) -> str:
    """Format a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
