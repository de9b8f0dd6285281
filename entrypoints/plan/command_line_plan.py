"""The words of a command line → facts, model and plan, which `serve`, `warm`, `plan` and `bench` need. IO."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from entrypoints.cache.plan import make_hub_environment
from entrypoints.checks.causes import read_profile_with_failures
from entrypoints.core.errors import MODEL, EntrypointError
from entrypoints.core.language import translate_text
from entrypoints.core.records import Facts, ServePlan
from entrypoints.core.settings_precedence import ORDER
from entrypoints.core.text import print_message
from entrypoints.facts.derived import make_idle
from entrypoints.facts.facts import probe_host
from entrypoints.facts.image_files import list_dist_folders, locate_image_file, read_vllm_lists
from entrypoints.model.bucket import ReadBucket, read_bucket
from entrypoints.model.hub import Hub, parse_hub
from entrypoints.model.read import Instead, ModelFacts, read_model, with_draft
from entrypoints.model.revision import read_revision
from entrypoints.model.template import own_template
from entrypoints.plan.plan import make_serve_plan
from entrypoints.plan.recipe_attempts import apply_recipe
from entrypoints.plan.recipe_file import NOTHING, RECIPES_FILE, read_facts
from entrypoints.request.access import ADMIN_KEY_FILE, read_keys
from entrypoints.request.arguments import Arguments
from entrypoints.request.flags import (
    CHAT_TEMPLATE,
    DOWNLOAD_DIR,
    LOAD_FORMAT,
    MODEL_NAME,
    REVISION,
    USE_MODELSCOPE,
)
from entrypoints.request.speculative import parse_drafting
from entrypoints.request.vllm_flags import UserFlags, parse_user_flags

Env = Mapping[str, str]
Profile = Mapping[str, Any]

HUB_CACHES, KNOWN_MODELS = "DRYDOCK_HUB_CACHES", "DRYDOCK_KNOWN_MODELS"
"""Variables of the tool, which runs `plan` outside a container: this machine's caches of hubs, with colons between, and
the file with the configurations that drydock knows."""
_OTHER_FOLDERS = ("--tokenizer", "--hf-config-path")
"""Flags that name a folder which may look like a model."""
_MOUNT = "mount the model's folder and give its path"
_DESCRIBE = "plan with a config.json that you have: --model-config FILE"


class Planned(NamedTuple):
    """A plan, and what it was made from."""

    facts: Facts
    model: ModelFacts
    user_flags: UserFlags
    plan: ServePlan


class ModelSource(NamedTuple):
    """Where a model and its draft are read from."""

    hub: Hub
    hub_env: Mapping[str, str]
    """The variables that chose the hub."""
    load_format: str
    instead: Instead
    bucket: ReadBucket


def plan_command_line(arguments: Arguments, env: Env, profile: Profile) -> Planned:
    """Read the options, the host and the model, and plan. Raises what each of them raises."""
    user_flags = _read_user_flags(arguments, env)
    name, unnamed_because = _choose_model(arguments, env, profile, user_flags)
    facts = probe_host(arguments.root, profile, env).facts
    if arguments.idle:
        facts = make_idle(facts)
    if facts.failures:  # a start without failures does not read what `explain` knows
        profile = read_profile_with_failures(arguments, env)
    source = _choose_source(arguments, env, profile, facts, user_flags)
    if source.hub.modelscope:
        _require_modelscope(name, profile)
    model = _read_served_model(name, source, profile, user_flags)._replace(unnamed_because=unnamed_because)
    user_flags = _add_recipe(arguments, env, profile, facts, model, user_flags)
    drafting, draft = parse_drafting(apply_recipe(user_flags.recipe, user_flags)), None
    if drafting.model:
        draft = _read_draft_model(drafting.model, drafting.revision, source)
    if draft or drafting.in_model:
        model = with_draft(model, draft)
    options = arguments.options
    plan = make_serve_plan(profile, facts, model, user_flags, options.drain_timeout, options.stall)
    # after the plan, which raises what the host lacks: no hub helps there
    _require_known(model, _DESCRIBE if arguments.verb == "plan" else _MOUNT)
    if draft:
        _require_known(draft, _MOUNT)
    return Planned(facts, model, user_flags, plan)


def _choose_model(arguments: Arguments, env: Env, profile: Profile, user_flags: UserFlags) -> tuple[str, str]:
    """Return the model that the user names, else the row, else the only one below /models, with why it is the last.

    A model that the user does not name is said. Raises MODEL for none, and for several.
    """
    name = user_flags.flag(MODEL_NAME)
    if name not in (None, "", "True"):
        return name, ""
    if name is not None:  # such as a variable of the shell that is not set: no other model is meant
        raise EntrypointError(
            MODEL, f"{MODEL_NAME} has no value", f"write {MODEL_NAME} MODEL, with a folder or a hub id"
        )
    of_row = [item for item in profile["settings"] if item["setting"] == MODEL_NAME]
    if of_row:
        item = max(of_row, key=lambda item: ORDER.index(item["origin"]))
        print_message(translate_text(profile.get("words") or {}, f"model {item['value']}: {item['because']}"))
        return str(item["value"]), ""
    from entrypoints.model.mounted_models import find_mounted_models, locate_models  # a named model needs no search

    excluded_paths = (parse_drafting(user_flags).model, *map(user_flags.flag, _OTHER_FOLDERS))
    mounted_models = find_mounted_models(locate_models(env), tuple(filter(None, excluded_paths)))
    command = f"{arguments.verb} {MODEL_NAME}"
    model = mounted_models.require_one(command, can_mount=HUB_CACHES not in env)  # set by ./inv: it is no container
    print_message(translate_text(profile.get("words") or {}, mounted_models.describe_choice()))
    return model.path, mounted_models.because


def _read_user_flags(arguments: Arguments, env: Env) -> UserFlags:
    """Return what the user set, with the files that the options name. Raises USAGE."""
    lists, intents, access = read_vllm_lists(env), arguments.intents, arguments.access
    if intents.workload_file:
        from entrypoints.request.workload import read_workload

        intents = read_workload(intents)
    user_flags = parse_user_flags(arguments.vllm, env, lists.option_strings(), intents)
    if arguments.key_file:
        access = access._replace(keys=read_keys(arguments.key_file))
    if access.admin_key_file:
        access = access._replace(admin_keys=read_keys(access.admin_key_file, ADMIN_KEY_FILE))
    return user_flags._replace(
        access=access,
        role=arguments.role,
        signs=bool(arguments.options.group_secret_file),
        vllm=lists,
        accepted=arguments.accepted,
    )


def _choose_source(
    arguments: Arguments, env: Env, profile: Profile, facts: Facts, user_flags: UserFlags
) -> ModelSource:
    """Return where models are read from. Only `plan` may describe a model by other files than its own."""
    hub_env = make_hub_environment(profile, env, facts)
    if user_flags.modelscope:
        hub_env[USE_MODELSCOPE] = "True"
    hub = parse_hub(hub_env, user_flags.flag(REVISION), user_flags.flag(DOWNLOAD_DIR))
    more_caches = filter(None, env.get(HUB_CACHES, "").split(":"))
    instead = Instead()
    if arguments.verb == "plan":
        instead = Instead(arguments.model_config, env.get(KNOWN_MODELS, ""), no_weights=True)
    return ModelSource(
        hub=hub._replace(caches=tuple(dict.fromkeys((*hub.caches, *more_caches)))),
        hub_env=hub_env,
        load_format=user_flags.flag(LOAD_FORMAT) or "auto",
        instead=instead,
        bucket=partial(read_bucket, profile),
    )


def _require_modelscope(name: str, profile: Profile) -> None:
    """Raise MODEL if the image lacks the package that vLLM imports with VLLM_USE_MODELSCOPE, also for a folder.

    Source: vllm/transformers_utils/__init__.py.
    """
    packages = list_dist_folders(profile["python"])
    if packages and not any(package.startswith("modelscope-") for package in packages):
        message = f"{name}: image {profile['variant']} lacks the package modelscope, which vLLM needs for ModelScope"
        download = "download the model with drydock's `model pull modelscope:ORG/NAME`"
        raise EntrypointError(MODEL, message, f"unset {USE_MODELSCOPE}; {download}, and {_MOUNT}")


def _read_served_model(name: str, source: ModelSource, profile: Profile, user_flags: UserFlags) -> ModelFacts:
    """Read the model, with its revision and the chat template that vLLM will use. Raises what `read_model` raises."""
    hub = source.hub
    model = read_model(name, source.load_format, hub, profile["converted_name"], source.instead, source.bucket)
    template = own_template(user_flags.flag(CHAT_TEMPLATE) or "") or model.template
    return model._replace(revision=model.revision or read_revision(name, hub), template=template)


def _add_recipe(
    arguments: Arguments, env: Env, profile: Profile, facts: Facts, model: ModelFacts, user_flags: UserFlags
) -> UserFlags:
    """Return the flags with the published recipe of the model, if it has one. Raises USAGE."""
    published = NOTHING if arguments.recipe.off else read_facts(locate_image_file(env, RECIPES_FILE), model)
    if published == NOTHING and not arguments.recipe.features:
        return user_flags
    from entrypoints.plan.recipes import choose_recipe  # most models have no recipe, and a start waits for imports

    recipe = choose_recipe(profile, facts, model, user_flags, published, arguments.recipe)
    return user_flags._replace(recipe=recipe)


def _read_draft_model(name: str, revision: str | None, source: ModelSource) -> ModelFacts:
    """Read the model that drafts tokens. --revision and --model-config are the served model's alone.

    Raises what `read_model` raises.
    """
    hub = source.hub._replace(revision=revision or parse_hub(source.hub_env).revision)
    instead = source.instead._replace(file="")
    return read_model(name, source.load_format, hub, instead=instead, bucket=source.bucket)


def _require_known(model: ModelFacts, instead_of_it: str) -> None:
    """Raise MODEL if neither the hub nor drydock's configurations say what the model is."""
    if model.unanswered and not model.known_from:
        raise EntrypointError(MODEL, model.unknown, f"{model.remedy}, or {instead_of_it}")
