"""Which settings a published recipe gives a model on this host. Pure.

A recipe is stronger than a decision and weaker than the project's own settings, a recommendation and the user. It sets
flags and variables for kernels, caches and parsers. Of the parallelism it sets a tensor-parallel size that it names for
this card, and lengths and memory only where it names the hardware: drydock knows the devices that it was handed, and a
recipe does not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.parse import parse_version_numbers
from entrypoints.core.records import Facts, Notice, Value
from entrypoints.model.read import ModelFacts
from entrypoints.plan.recipe_cards import GENERATION_OF, USUAL_GENERATIONS, Card, find_card
from entrypoints.plan.recipe_file import RecipeFacts
from entrypoints.plan.vllm_limits import find_flag_refusals
from entrypoints.request.flags import (
    AUTO_TOOLS,
    DATA,
    NODES,
    PIPELINE,
    REASONING_PARSER,
    REMOTE_CODE,
    TENSOR,
    TOOL_PARSER,
)
from entrypoints.request.recipe_limits import (
    VALUE,
    WORTH_SAYING,
    draft_model,
    nest_value,
    parse_recipe_json,
    refuse_flag,
    refuse_variable,
)
from entrypoints.request.recipes import FEATURE, NOTHING_PUBLISHED, Recipe, RecipeChoice
from entrypoints.request.roles import SERVE
from entrypoints.request.vllm_flags import UserFlags
from entrypoints.request.vllm_lists import VllmLists

_ALWAYS_ON = ("tool_calling", "reasoning")
_PARSERS = (TOOL_PARSER, AUTO_TOOLS, REASONING_PARSER)
SPLIT = (TENSOR, PIPELINE, DATA, NODES)
"""Options that split a server over devices and machines."""
SWITCHED_OFF: Mapping[tuple[str, str], str] = {
    ("--enable-prefix-caching", "false"): "true: vLLM's usual choice: what prompts begin with alike, such as a chat "
    "so far, is computed once",
    ("--enable-chunked-prefill", "false"): "true: vLLM's usual choice: while a long prompt is computed in parts, other "
    "answers go on",
    ("--enable-flashinfer-autotune", "false"): "true: vLLM's usual choice: FlashInfer's fastest kernels are found by "
    "measuring at the start",
    ("--enforce-eager", "true"): "false: vLLM's default: captured graphs make short steps faster",
    ("--disable-custom-all-reduce", "true"): "false: vLLM's default: its own all-reduce is faster where links join the "
    "cards",
    ("--mm-processor-cache-gb", "0"): "4: vLLM's default: a picture or a video that comes again is not prepared again",
}
"""What a recipe switches off that vLLM has on: flag and value → what is lost (vLLM 0.33: config/cache.py, scheduler.py,
model.py, parallel.py, multimodal.py; a usual choice is made at the start, by model and device)."""
_GENERATES = {"--runner": ("auto", "generate"), "--convert": ("auto", "none")}


class Case(NamedTuple):
    """A recipe on a host."""

    facts: Mapping[str, Any]
    card: Card | None
    user_flags: UserFlags
    features: tuple[str, ...]
    """Names of the features that are used."""


class Settings(NamedTuple):
    """Flags and variables, and what was left out with the reason."""

    flags: dict[str, str | bool]
    env: dict[str, str]
    left_out: dict[str, str]


def choose_recipe(
    profile: Mapping[str, Any],
    facts: Facts,
    model: ModelFacts,
    user_flags: UserFlags,
    published: RecipeFacts,
    choice: RecipeChoice,
) -> Recipe:
    """Return what the recipe of a model sets here. Raises USAGE for a feature that it has not."""
    if choice.off:
        return NOTHING_PUBLISHED
    _check_features(published, choice, model)
    if published.problem:
        return Recipe(notices=(make_notice("PLAN-160", published.problem, "a file of this user or of root"),))
    if not published.facts:
        return NOTHING_PUBLISHED
    date = _read_plain_word(published.facts.get("date")) or _read_plain_word(published.date) or "an unknown day"
    name = f"{_read_plain_word(published.facts.get('recipe')) or published.model} of {date}"
    unusable = _find_obstacle(profile, facts, published, user_flags)
    if unusable:
        return Recipe(name, notices=(unusable,))
    card = find_card(profile["accelerator"], facts)
    case = Case(
        published.facts, card, user_flags, (*_usual_features(published.facts, model, user_flags), *choice.features)
    )
    collected = _collect_recipe_settings(case)
    _add_tensor_size(collected, case, facts)
    settings = _within_vllm(collected, user_flags.vllm)
    level = _describe_verification(case)
    flags = {
        flag: Value(value, f"recipe {name}, {level}", _list_losses(flag, value))
        for flag, value in _as_flags(settings.flags, user_flags).items()
    }
    env = {variable: Value(value, f"recipe {name}, {level}") for variable, value in settings.env.items()}
    return Recipe(name, flags, env, tuple(_find_recipe_notices(case, model, name, settings)))


# --- whether it is for this host ------------------------------------------------------------------------------------


def _check_features(published: RecipeFacts, choice: RecipeChoice, model: ModelFacts) -> None:
    """Raise USAGE for a named feature that the recipe has not."""
    features = sorted(_read_subtable(published.facts, "features"))
    for name in choice.features:
        if name not in features:
            problem = (
                f"the recipe {published.model} has no such feature"
                if published.model
                else f"no recipe for {model.name}"
            )
            hint = f"it has {', '.join(features)}" if features else "leave the flag out"
            raise EntrypointError(USAGE, f"{FEATURE} {name}: {problem}", hint)


def _find_obstacle(
    profile: Mapping[str, Any], facts: Facts, published: RecipeFacts, user_flags: UserFlags
) -> Notice | None:
    """Return why the whole recipe is not for this image or this hardware."""
    least_vllm = _read_plain_word(published.facts.get("least_vllm"))
    # a branch's name has no version and counts as newest
    least, mine = parse_version_numbers(least_vllm), parse_version_numbers(profile["vllm"])
    nightly = bool(published.facts.get("nightly"))
    if mine and ((nightly and not least) or mine < least):
        expected = f"vLLM {least_vllm or 'of its main branch'}{' or a nightly build' * nightly}"
        rows = _rows_with(user_flags.vllm, least, nightly=nightly)
        return make_notice("PLAN-161", f"vLLM {profile['vllm']}", expected, recipe=published.model, rows=rows)
    card = find_card(profile["accelerator"], facts)
    only = _read_plain_words(published.facts, "only_on")
    excluded = card and card.name in _read_plain_words(published.facts, "unsupported")
    if excluded or (only and (card is None or card.name not in only)):
        card_name = card.name if card else "hardware that recipes do not name"
        expected = f"one of {', '.join(only)}" if only else "other hardware"
        return make_notice("PLAN-162", card_name, expected, recipe=published.model)
    return None


def _rows_with(lists: VllmLists, least: tuple[int, ...], *, nightly: bool) -> str:
    """Return the rows of this accelerator with such a vLLM, as options; how to find one if they are not known."""
    versions = lists.lists.get("versions", {})
    rows = [row for row, version in sorted(versions.items()) if least and parse_version_numbers(version) >= least]
    rows = rows or [row for row in sorted(versions) if nightly and "nightly" in row]
    if rows:
        return f"--target {' or '.join(rows)}"
    return "no row of this accelerator has it" if versions else "a row of ./inv matrix with it"


def _describe_verification(case: Case) -> str:
    if case.card and case.card.name in _read_plain_words(case.facts, "verified"):
        return f"verified on {case.card.name}"
    return "not verified on this card" if case.card else "not verified on this hardware"


def _is_written_for(case: Case) -> bool:
    """Tell whether the flags for kernels were written for this kind of hardware; parsers are the model's anywhere."""
    if case.card is None:
        return False
    hardware_names = {*_read_plain_words(case.facts, "verified"), *_read_subtable(case.facts, "on")}
    if case.card.name in hardware_names:
        return True
    generations = {GENERATION_OF.get(name, name) for name in hardware_names} or {*USUAL_GENERATIONS}
    return not case.card.restricted and (case.card.generation in generations or case.card.brand in hardware_names)


def _usual_features(facts: Mapping[str, Any], model: ModelFacts, user_flags: UserFlags) -> tuple[str, ...]:
    """Return the features that need not be named, of a server that writes text."""
    if model.pooling or any((user_flags.flag(name) or "auto") not in values for name, values in _GENERATES.items()):
        return ()
    features = _read_subtable(facts, "features")
    return tuple(name for name in _ALWAYS_ON if name in features and not _read_subtable(features, name).get("named"))


# --- what it sets ---------------------------------------------------------------------------------------------------


def _collect_recipe_settings(case: Case) -> Settings:
    """Return what the parts for this hardware set; a later one wins, and each is held to the limits of recipes."""
    settings = Settings({}, {}, {})
    if _is_written_for(case):
        _add_part(settings, case.facts, on_hardware=False)
        for part in _parts_of(case, _read_subtable(case.facts, "on")):
            _add_part(settings, part, on_hardware=True)
    elif case.facts.get("flags") or case.facts.get("env"):
        settings.left_out["flags and variables for kernels"] = "written for other hardware"
    features = _read_subtable(case.facts, "features")
    for name in case.features:
        feature = _read_subtable(features, name)
        particular = [*_parts_of(case, _read_subtable(feature, "on"))][-1:]
        opt_in = bool(feature.get("named"))
        _add_part(settings, *(particular or [feature]), on_hardware=bool(particular), opt_in=opt_in)
        if particular == [{}]:
            settings.left_out[name] = "the recipe does not have it on this hardware"
    _drop_unwanted(settings, case.user_flags)
    return settings


def _add_tensor_size(settings: Settings, case: Case, facts: Facts) -> None:
    """Add the tensor-parallel size that the recipe names for this card, or for all cards if this one is verified.

    A user who sets any size of the server has decided how it is split.
    """
    if case.user_flags.role.name != SERVE or any(name in case.user_flags.flags for name in SPLIT):
        return
    size, count = read_tensor_size(case.facts, case.card), len(facts.devices) or len(facts.nodes)
    if size > count:
        settings.left_out[TENSOR] = f"the recipe names {size} devices, and this machine has {count}"
    elif size == count:  # with fewer, one engine would leave the other devices idle: drydock spreads over all
        settings.flags[TENSOR] = str(size)


def read_tensor_size(published: Mapping[str, Any], card: Card | None) -> int:
    """Return the tensor-parallel size that a recipe names for a card, or for all if this is verified; 0 for none."""
    if card is None:
        return 0
    sizes, is_verified = published.get("tp"), card.name in _read_plain_words(published, "verified")
    size = sizes if is_verified else 0
    if isinstance(sizes, dict):
        size = sizes.get(card.name, sizes.get("default") if is_verified else 0)
    return size if isinstance(size, int) and size > 0 else 0


def _parts_of(case: Case, on: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the parts for the host's generation, or else its brand, and for its card; the most particular last."""
    if case.card is None:
        return
    general = next((name for name in (case.card.generation, case.card.brand) if name in on), None)
    for name in (general, case.card.name):
        if name in on:
            yield _read_subtable(on, str(name))


def _add_part(settings: Settings, part: Mapping[str, Any], *, on_hardware: bool, opt_in: bool = False) -> None:
    for name, value in _read_subtable(part, "flags").items():
        right = isinstance(value, str | bool)
        problem = refuse_flag(name, value, on_hardware=on_hardware, opt_in=opt_in) if right else VALUE
        if problem:
            settings.left_out[name] = problem
        else:
            settings.flags[name] = value
    for name, value in _read_subtable(part, "env").items():
        problem = refuse_variable(name, value, on_hardware=on_hardware) if isinstance(value, str) else VALUE
        if problem:
            settings.left_out[name] = problem
        else:
            settings.env[name] = value


def _drop_unwanted(settings: Settings, user_flags: UserFlags) -> None:
    """Drop parsers of tool calls that the user does not want, or names otherwise."""
    if not user_flags.intents.tools or user_flags.flag(AUTO_TOOLS) == "False":
        for name in (TOOL_PARSER, AUTO_TOOLS):
            settings.flags.pop(name, None)
    if TOOL_PARSER in user_flags.flags:
        settings.flags.pop(AUTO_TOOLS, None)


def _within_vllm(settings: Settings, lists: VllmLists) -> Settings:
    """Return the settings that this vLLM has, as far as its lists are known."""
    flags, env, left_out = {}, {}, dict(settings.left_out)
    for name, value in settings.flags.items():
        refusal = next(find_flag_refusals(lists, name.partition(".")[0], value, dotted="." in name), "")
        if refusal:
            left_out[name] = refusal
        else:
            flags[name] = value
    if TOOL_PARSER in left_out:
        flags.pop(AUTO_TOOLS, None)
    variables = lists.own_or_assumed("variables")
    for name, value in settings.env.items():
        if variables is not None and name.startswith("VLLM_") and name not in variables:
            left_out[name] = "this vLLM does not read it"
        else:
            env[name] = value
    return Settings(flags, env, left_out)


def _as_flags(flags: Mapping[str, str | bool], user_flags: UserFlags) -> dict[str, str | bool]:
    """Return flags with `--flag.key` as one JSON value, without those of which the user sets a part."""
    mine = {name.partition(".")[0] for name in user_flags.flags}
    whole: dict[str, str | bool] = {name: value for name, value in flags.items() if "." not in name}
    for name, value in flags.items():
        base, dot, key = name.partition(".")
        if dot:
            table = parse_recipe_json(str(whole.get(base, "{}"))) or {}
            text = value if isinstance(value, str) else json.dumps(value)
            whole[base] = json.dumps(_merge_recipe_tables(table, nest_value(key, text)), sort_keys=True)
    dotted = {name.partition(".")[0] for name in user_flags.flags if "." in name}
    tables = {name.partition(".")[0] for name in flags if "." in name}
    return {name: value for name, value in whole.items() if name not in dotted | (tables & mine)}


def _list_losses(flag: str, value: str | bool) -> tuple[str, ...]:
    """Return what is lost if a recipe switches something off."""
    text = str(value).lower() if isinstance(value, bool) else value
    return tuple(loss for switch, loss in SWITCHED_OFF.items() if switch == (flag, text))


def _merge_recipe_tables(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return two tables as one, key by key."""
    merged_table = dict(below)
    for key, value in above.items():
        old = merged_table.get(key)
        merged_table[key] = (
            _merge_recipe_tables(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return merged_table


# --- what is said ---------------------------------------------------------------------------------------------------


def _find_recipe_notices(case: Case, model: ModelFacts, name: str, settings: Settings) -> Iterator[Notice]:
    architectures = case.user_flags.vllm.names("architectures")
    if case.facts.get("needs_code") and not case.user_flags.flags.get(REMOTE_CODE):
        if architectures is None or model.architecture in architectures:
            yield make_notice("PLAN-164", f"{REMOTE_CODE} in the recipe", "vLLM's own code of the model", recipe=name)
        else:
            recipe_problem = f"{REMOTE_CODE} in the recipe, and no {model.architecture or 'architecture'} in this vLLM"
            yield make_notice("PLAN-165", recipe_problem, REMOTE_CODE, recipe=name)
    recorded = {key: str(why) for key, why in _read_subtable(case.facts, "left_out").items() if why in WORTH_SAYING}
    left_out = recorded | {key: why for key, why in settings.left_out.items() if why not in _SILENT}
    if left_out:
        recipe_problem = "; ".join(f"{_read_plain_word(key) or '…'}: {why}" for key, why in sorted(left_out.items()))
        yield make_notice("PLAN-163", recipe_problem, "the recipe's other settings", recipe=name)
    draft = draft_model(settings.flags)
    if draft:
        yield make_notice("PLAN-166", draft, "a model that you trust", recipe=name)


_SILENT = ("drydock decides the parallelism", "drydock decides lengths and memory")


def _read_plain_word(value: Any) -> str:
    """Return a name or a date for a line of text; empty for anything else."""
    return value if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_./+ -]{1,200}", value) else ""


def _read_plain_words(table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key)
    return tuple(filter(None, map(_read_plain_word, value))) if isinstance(value, list) else ()


def _read_subtable(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = table.get(key)
    return value if isinstance(value, dict) else {}
