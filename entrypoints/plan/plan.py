"""Profile, facts, model and the user's flags → the command that serves, with every reason. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from entrypoints.accelerators import import_decider
from entrypoints.cache.plan import choose_cache_folders, drop_unchosen_home, make_cache_plan, make_cache_settings
from entrypoints.checks.causes import add_cause, find_first_cause
from entrypoints.checks.findings import make_finding, make_notice
from entrypoints.checks.grants import examine_facts, explain_no_device
from entrypoints.core.errors import DOES_NOT_FIT, HOST, USAGE, EntrypointError
from entrypoints.core.folders import locate_private_root
from entrypoints.core.language import Words, translate_text
from entrypoints.core.records import CachePlan, Facts, Finding, Notice, RankPlan, Reason, ServePlan, Value
from entrypoints.core.redact import redact_value
from entrypoints.core.settings_precedence import (
    COMMAND_LINE,
    DECISION,
    DEFAULT,
    ENVIRONMENT,
    RECIPE,
    RECOMMENDATION,
    Chosen,
    merge_setting_layers,
)
from entrypoints.core.text import VARIABLE_NAME
from entrypoints.core.units import GIB, MIB
from entrypoints.decide.cpu.executor import PYTHON_PATH
from entrypoints.decide.parallelism import loading
from entrypoints.decide.parallelism.demand import as_overridden, check_length, length_notices
from entrypoints.decide.parallelism.multimodal import TEXT_ONLY, choose_whole_towers
from entrypoints.decide.parallelism.visible import check_probed_choice
from entrypoints.decide.records import Decision
from entrypoints.facts.image_files import choose_exported_variables
from entrypoints.host.limits import choose_raised_limits, make_limit_reasons
from entrypoints.model.geometry import Geometry
from entrypoints.model.read import ModelFacts
from entrypoints.model.weights import Weights
from entrypoints.plan import guard_settings, inputs, parsers, placement
from entrypoints.plan.later_downloads import choose_vocabulary, find_later_downloads
from entrypoints.plan.other_rows import judge_code
from entrypoints.plan.ranks import (
    Across,
    devices_of_rank,
    find_rank_notices,
    is_client_facing,
    keep_rank_settings,
    make_group,
    make_serve_command,
    of_rank,
    rank_settings,
    ray_head,
    ray_worker,
    read_across,
    uses_ray,
)
from entrypoints.plan.recipe_attempts import apply_recipe, plan_with_recipe
from entrypoints.plan.recommended import apply_recommended, with_own_settings
from entrypoints.plan.role_profile import apply_role, fill_role
from entrypoints.plan.roles import role_notices, role_settings
from entrypoints.plan.supervision import SILENT, choose_draining, stall_reason
from entrypoints.plan.vllm_limits import check_limits
from entrypoints.request.flags import (
    ADDRESS,
    API_KEY_VARIABLE,
    DATA,
    HIGHEST_PORT,
    KV_OFFLOAD,
    KV_TRANSFER,
    MODEL_NAME,
    PORT,
    REMOTE_CODE,
    SERVED_NAME,
    TENSOR,
    USE_MODELSCOPE,
)
from entrypoints.request.intents import OFFLOAD_CACHE
from entrypoints.request.roles import SERVE
from entrypoints.request.vllm_flags import Flag, UserFlags, parse_count, parse_user_flags

_CACHED = {"USER", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}
"""Variables that are set together with the caches."""


def make_serve_plan(
    profile: Mapping[str, Any],
    facts: Facts,
    model: ModelFacts,
    user_flags: UserFlags,
    drain_timeout: float = 0,
    stall: float | None = None,
) -> ServePlan:
    """Make the plan. Raises HOST if the image needs a device and there is none, and the decisions' errors.

    What a recipe sets never makes an error of a plan: first its lengths and memory are left out, then all of it.
    """
    profile = apply_role(profile, user_flags.role.name)

    def attempt(tried: UserFlags) -> ServePlan:
        return _make_plan_attempt(profile, facts, model, tried, drain_timeout, stall)

    return plan_with_recipe(user_flags, attempt) if user_flags.recipe.name else attempt(user_flags)


_SMALL_MODEL = ModelFacts(
    name="/models/small",
    local=True,
    architecture="LlamaForCausalLM",
    quantization="",
    weights=Weights(on_disk=256 * MIB, elements=128 * MIB, other=0),
    geometry=Geometry(
        layers=32,
        sliding_layers=0,
        window=0,
        heads=64,
        kv_heads=64,
        head_size=64,
        latent=0,
        max_length=1024,
        hidden=4096,
        vocabulary=32768,
        intermediate=16384,
    ),
    unknown="",
)
"""A model that every accelerator serves on every host that it can serve on."""


def find_host_refusal(profile: Mapping[str, Any], facts: Facts, env: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding if this host, with these variables, is refused for any model: what `plan` raises, `check` says.

    Of the errors those about the host and its variables count: how much memory is enough depends on the model.
    """
    try:
        make_serve_plan(profile, facts, _SMALL_MODEL, parse_user_flags((_SMALL_MODEL.name,), env))
    except EntrypointError as error:
        if error.code in (HOST, USAGE):
            words = profile.get("words") or {}
            remedy = error.hint or "run `facts` for what was found"
            notice = make_notice("PLAN-020", error.message, "a host that can serve", remedy=remedy)
            finding = make_finding(profile.get("findings") or {}, notice, words=words)
            cause = find_first_cause(profile, facts)
            yield finding._replace(scope=cause["scope"]) if cause and cause["remedy"] == remedy else finding


class PlanRequest(NamedTuple):
    """What the user asks of a host, with what the image's makers and a recipe add to it."""

    facts: Facts
    flags: UserFlags
    """With the recommended flags and the recipe's; the variables are the user's own."""
    decision_flags: UserFlags
    """As decisions see them: also with the variables of the recipe and of the project."""
    published: ModelFacts
    """The model as its files describe it."""
    model: ModelFacts
    """The model as the user's overrides change it."""
    loaded: ModelFacts
    """The model with its weights as they lie in memory."""
    across: Across | None
    """Several hosts; None for one."""
    stated: dict[str, Value]
    """What the command line sets."""
    recommended: dict[str, Value]
    text_only: dict[str, Value]
    """What lets a model serve its text without a package that the image lacks."""
    notices: tuple[Notice, ...]
    """What the request lacks to be safe."""


class PlanDefaults(NamedTuple):
    """Settings that hold if nothing else sets them."""

    exported: dict[str, Value]
    """The variables that the scripts of the base image export."""
    values: dict[str, Value]
    """All of them."""


class DecidedSettings(NamedTuple):
    """The decision, with what follows from the model's parsers, the role and the ranks."""

    decision: Decision
    common: dict[str, Value]
    """Of every host."""
    this_host: dict[str, Value]
    """With those of this host's rank."""
    files: dict[str, str]
    """Path → text of the files that vLLM gets."""
    notices: tuple[Notice, ...]


class Cascade(NamedTuple):
    """The layers of settings, and what wins."""

    stated: Sequence[tuple[str, Mapping[str, Value]]]
    """All layers but the decision, which differs between ranks."""
    chosen: Mapping[str, Chosen]
    cache: CachePlan

    def settled(self) -> dict[str, str | bool]:
        """Return the value of each setting."""
        return {name: item.value.value for name, item in self.chosen.items()}


def _make_plan_attempt(
    profile: Mapping[str, Any],
    facts: Facts,
    model: ModelFacts,
    user_flags: UserFlags,
    drain_timeout: float,
    stall: float | None,
) -> ServePlan:
    """Make the plan with the recipe that `user_flags` has. Each value needs only those above it."""
    request = _read_request(profile, facts, model, user_flags)
    defaults = _choose_defaults(profile, request, drain_timeout)
    decision = _make_decision(profile, request)
    profile, role_files = _fill_role(profile, request, decision.values)
    settings = _choose_settings(profile, request, decision, role_files)
    cascade = _merge_cascade(profile, request, defaults, settings)
    patience = _choose_patience(profile, request, cascade, stall)
    notices = _collect_notices(profile, request, settings, cascade, float(patience.value))
    return _assemble_plan(profile, request, settings, cascade, patience, notices)


def _read_request(
    profile: Mapping[str, Any], facts: Facts, published: ModelFacts, user_flags: UserFlags
) -> PlanRequest:
    """Return the request. Raises HOST if the image needs a device and there is none, and USAGE for contradictions."""
    flags, secret, exposed = guard_settings.read_api_key(user_flags)
    flags, unguarded = guard_settings.add_middleware(flags, keyed=bool(secret or flags.variable(API_KEY_VARIABLE)))
    stated = _command_line(flags) | guard_settings.read_guard_settings(flags) | parsers.read_tool_choice(flags)
    guard_settings.check_admin_keys(flags, stated | secret)
    flags, recommended = apply_recommended(profile, facts, published, flags)
    decision_flags = apply_recipe(flags.recipe, with_own_settings(profile, flags))
    flags = decision_flags._replace(env=flags.env)
    check_probed_choice(facts)
    no_device = explain_no_device(profile, facts, flags.env)
    if no_device:
        raise add_cause(no_device, profile, facts)
    inputs.check_speech(profile, published)
    text_only = inputs.choose_text_only(published, flags)
    if TEXT_ONLY in text_only:
        switch = {TEXT_ONLY: Flag(TEXT_ONLY, value=True, given=TEXT_ONLY)}
        flags = flags._replace(flags={**flags.flags, **switch})
        decision_flags = decision_flags._replace(flags={**decision_flags.flags, **switch})
    model = as_overridden(published, flags, profile["vllm"])
    check_length(model, flags, {item["setting"] for item in profile["settings"]})
    across = read_across(profile, facts, flags)  # before weights are looked at: it refuses impossible ranks
    return PlanRequest(
        facts=facts,
        flags=flags,
        decision_flags=decision_flags,
        published=published,
        model=model,
        loaded=loading.as_loaded(profile["thresholds"], model, flags),
        across=across,
        stated=stated | secret,
        recommended=recommended,
        text_only=text_only,
        notices=(*exposed, *unguarded),
    )


def _choose_defaults(profile: Mapping[str, Any], request: PlanRequest, drain_timeout: float) -> PlanDefaults:
    """Return the defaults; `drain_timeout` is in seconds."""
    model, flags = request.model, request.flags
    exported = _read_base_exports(profile, flags.env)
    values = (
        exported
        | _make_default_values(model, flags)
        | choose_draining(flags, drain_timeout)
        | guard_settings.choose_request_limits(model, flags, exported)
        | request.text_only
    )
    return PlanDefaults(exported, values)


def _make_decision(profile: Mapping[str, Any], request: PlanRequest) -> Decision:
    """Let the accelerator decide. Raises its errors, with the causes that checks know, and those of `check_limits`."""
    decide: Callable[..., Decision] = import_decider(profile["accelerator"]).decide
    try:
        decision = decide(profile, request.facts, request.loaded, request.decision_flags)
    except EntrypointError as error:
        if error.code == DOES_NOT_FIT:  # what vLLM refuses comes first: more memory does not help there
            stated = {name: flag.value for name, flag in request.flags.flags.items()}
            check_limits(profile, request.facts, request.model, request.flags, stated)
        raise add_cause(error, profile, request.facts) from error
    _check_offload(profile, request.flags, decision.values)
    return decision


def _choose_settings(
    profile: Mapping[str, Any], request: PlanRequest, decision: Decision, role_files: Mapping[str, str]
) -> DecidedSettings:
    """Return the decided settings with those of the parsers, the role and the rank, of which the last ones win."""
    parser_settings, parser_notices = parsers.choose_parsers(profile, request.model, request.flags)
    common = {
        **decision.values,
        **parser_settings,
        **role_settings(profile, request.facts, request.flags),
        **choose_vocabulary(request.model, request.flags),
        **choose_whole_towers(profile["accelerator"], request.model, request.decision_flags, decision.values),
    }
    across, this_host = request.across, common
    if across:
        this_host = common | rank_settings(across, decision.values, request.flags, across.rank)
    return DecidedSettings(decision, common, this_host, {**decision.files, **role_files}, parser_notices)


def _merge_cascade(
    profile: Mapping[str, Any], request: PlanRequest, defaults: PlanDefaults, settings: DecidedSettings
) -> Cascade:
    """Lay the settings over one another. Those of the caches depend on all others, and are defaults themselves."""
    recipe = request.flags.recipe
    weaker_layers = [
        (DEFAULT, defaults.values),
        *_list_profile_layers(profile),
        (RECIPE, {**recipe.flags, **recipe.env}),
    ]
    decided = (DECISION, settings.this_host)
    settable = {name for _, values in (*weaker_layers, decided) for name in values} | _CACHED | profile["caches"].keys()
    variables = {
        name: value
        for name, value in _list_user_variables(request.facts, request.flags).items()
        if name not in {*defaults.exported, PYTHON_PATH}
    }
    user = [
        (RECOMMENDATION, request.recommended),
        (ENVIRONMENT, _select_user_variables(variables, settable, tuple(profile["variables"]["shown"]))),
        (COMMAND_LINE, request.stated),
    ]
    without_caches = merge_setting_layers([*weaker_layers, decided, *user])
    cache, cache_values = _plan_caches(profile, request, without_caches)
    stated = [*weaker_layers, (DEFAULT, cache_values), *user]
    return Cascade(stated, merge_setting_layers([*stated, decided]), cache)


def _choose_patience(profile: Mapping[str, Any], request: PlanRequest, cascade: Cascade, stall: float | None) -> Reason:
    """Return after how many seconds without progress the server is not ready, and why; `stall` is the user's."""
    across = request.across
    if across and not is_client_facing(request.flags, across.rank):
        return SILENT
    return stall_reason(profile["accelerator"], request.model, cascade.chosen, stall)


def _collect_notices(
    profile: Mapping[str, Any], request: PlanRequest, settings: DecidedSettings, cascade: Cascade, patience: float
) -> tuple[Notice, ...]:
    """Return what is to be said of this plan. Raises what `check_limits` and `role_notices` raise."""
    facts, model, flags, loaded = request.facts, request.model, request.flags, request.loaded
    uses, settled = settings.decision.uses, cascade.settled()
    roles = role_notices(profile, flags, settled, patience)
    return (
        *flags.recipe.notices,
        *settings.decision.findings,
        *settings.notices,
        *length_notices(request.published, model),
        *loading.find_loading_notices(profile["thresholds"], model, flags, loaded),
        *inputs.check_unreadable_inputs(profile, model, flags, settled),
        *inputs.note_text_only(profile, facts, model, flags, request.text_only),
        *check_limits(profile, facts, model, flags, settled),
        *find_later_downloads(profile, facts, model, flags),
        *_check_download_space(facts, model, settled.get("HF_HOME")),
        *_check_hub_answer(model),
        *request.notices,
        *(find_rank_notices(request.across, flags) if request.across else ()),
        *roles,
        *loading.find_host_weights(facts, model, loaded, settled, uses),
        *placement.find_distant(profile, facts, flags, uses),
        *judge_code(flags.vllm, facts if request.across else placement.narrow_to_engine(facts, uses)),
    )


def _assemble_plan(
    profile: Mapping[str, Any],
    request: PlanRequest,
    settings: DecidedSettings,
    cascade: Cascade,
    patience: Reason,
    notices: Iterable[Notice],
) -> ServePlan:
    """Return the plan of this host, with the commands of all hosts and its findings."""
    facts, flags, across, decision = request.facts, request.flags, request.across, settings.decision
    chosen = cascade.chosen
    ranks: tuple[RankPlan, ...] = ()
    if across:
        ranks = tuple(
            _plan_rank(profile, across, settings.common, flags, cascade.stated, rank) for rank in range(across.hosts)
        )
        argv = ranks[across.rank].argv
    else:
        argv = make_serve_command(profile, chosen, _format_vllm_flags(chosen, flags), flags)
    examined = facts if across else placement.narrow_to_engine(facts, decision.uses)
    return ServePlan(
        argv=argv,
        env=_new_variables(chosen),
        reasons=_list_reasons(chosen, (*make_limit_reasons(facts.limits), patience), profile.get("words") or {}),
        findings=(*examine_facts(profile, examined), *_make_findings(profile, notices)),
        model=request.model.name,
        host=str(chosen[ADDRESS].value.value),
        port=parse_count(str(chosen[PORT].value.value), PORT, 0, "", HIGHEST_PORT),
        limits=choose_raised_limits(facts.limits),
        cache=cascade.cache,
        files=settings.files,
        uses=decision.uses,
        stall=float(patience.value),
        ranks=ranks,
        before=ranks[across.rank].before if across else (),
        group=make_group(across, decision.values, flags) if across else None,
    )


def _fill_role(
    profile: Mapping[str, Any], request: PlanRequest, decided: Mapping[str, Value]
) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Return the profile and the files of the role, with the server's parallelism in them."""
    facts, flags = request.facts, request.flags
    parallel = {
        name: flags.number(flag) or (int(str(decided[flag].value)) if flag in decided else 1)
        for name, flag in (("tensor_parallel", TENSOR), ("data_parallel", DATA))
    }
    if "cache" in facts.mounts:
        root = choose_cache_folders(flags.env, facts.mounts, facts.user[0], local_model=request.model.local).shared
    else:
        root = locate_private_root(flags.env, facts.user[0])
    return fill_role(profile, f"{root}/roles", parallel)


def _check_offload(profile: Mapping[str, Any], user_flags: UserFlags, decided: Mapping[str, Value]) -> None:
    """Raise USAGE if a KV cache in the host's memory is asked for that this server cannot have."""
    if not user_flags.intents.offload or KV_OFFLOAD in user_flags.flags:
        return
    if KV_OFFLOAD not in decided:
        message = f"{OFFLOAD_CACHE}: {profile['variant']} cannot keep the KV cache in the host's memory"
        raise EntrypointError(USAGE, message, "leave the flag out")
    if (
        user_flags.role.name != SERVE or KV_TRANSFER in user_flags.flags
    ):  # vLLM's config/vllm.py would replace the connector
        conflicting_flag = KV_TRANSFER if user_flags.role.name == SERVE else f"--role {user_flags.role.name}"
        raise EntrypointError(
            USAGE, f"{OFFLOAD_CACHE} and {conflicting_flag}: both set how the KV cache is moved", "give one"
        )


def _plan_rank(
    profile: Mapping[str, Any],
    across: Across,
    values: Mapping[str, Value],
    user_flags: UserFlags,
    layers: Sequence[tuple[str, Mapping[str, Value]]],
    rank: int,
) -> RankPlan:
    """Return the command of one of several hosts, as if all were like this one; `layers` are all but the decisions."""
    mine = of_rank(across, values, user_flags, rank)
    decided = {**values, **rank_settings(across, values, user_flags, rank)}
    stated = [(origin, keep_rank_settings(layer_values, mine)) for origin, layer_values in layers]
    layered_settings = merge_setting_layers([*stated, (DECISION, decided)])
    env = _new_variables(layered_settings)
    if not uses_ray(across, values, user_flags):
        return RankPlan(
            rank, make_serve_command(profile, layered_settings, _format_vllm_flags(layered_settings, mine), mine), env
        )
    devices = devices_of_rank(across, values, user_flags)
    if rank:
        return RankPlan(rank, ray_worker(profile["python"], across, devices), env)
    argv = make_serve_command(profile, layered_settings, _format_vllm_flags(layered_settings, mine), mine)
    return RankPlan(rank, argv, env, (ray_head(profile["python"], across, devices),))


def _plan_caches(
    profile: Mapping[str, Any], request: PlanRequest, chosen: Mapping[str, Chosen]
) -> tuple[CachePlan, dict[str, Value]]:
    """Plan the caches; `chosen` are all settings that name them."""
    facts, env = request.facts, request.flags.env
    if "cache" not in facts.mounts:
        return CachePlan(), {}
    plan = make_cache_plan(profile, facts, request.model, env, chosen)
    return plan, make_cache_settings(profile, plan, facts.mounts["cache"], env)


def _check_download_space(facts: Facts, model: ModelFacts, folder: str | bool | None) -> tuple[Notice, ...]:
    """Return a notice if weights to be downloaded are larger than the free space, if both are known."""
    cache, weights = facts.mounts.get("cache"), model.weights
    if not (cache and weights and model.elsewhere and str(folder).startswith(f"{cache.path}/")):
        return ()
    if not cache.writable or weights.on_disk <= cache.free:
        return ()
    free_space, expected = (
        f"{cache.free / GIB:.1f} GiB free in {cache.path}",
        f"at least {weights.on_disk / GIB:.1f} GiB",
    )
    return (make_notice("PLAN-060", free_space, expected),)


def _check_hub_answer(model: ModelFacts) -> tuple[Notice, ...]:
    """Return a notice if the hub does not answer, or a folder has no weights."""
    if model.unanswered:
        expected = "an answer, or the model's files"
        return (make_notice("PLAN-064", model.unanswered, expected, where=model.known_from, ask=model.remedy),)
    return (make_notice("PLAN-063", f"{model.missing} without all weights", "all files"),) if model.missing else ()


# --- layers ---------------------------------------------------------------------------------------------------------


def _make_default_values(model: ModelFacts, user_flags: UserFlags) -> dict[str, Value]:
    name_source = "the hub id" if model.short == model.name or "/" in model.short else "the folder's name"
    values = {
        **({MODEL_NAME: Value(model.name, model.unnamed_because)} if model.unnamed_because else {}),
        SERVED_NAME: Value(model.short, f"{name_source}: what clients write as `model`"),
        ADDRESS: Value("0.0.0.0", "all addresses of the container: publish it with -p"),  # noqa: S104 - a container's own network
        PORT: Value("8000", "vLLM's usual port"),
    }
    if not user_flags.known or REMOTE_CODE in user_flags.known:  # also vLLM's default: it is said because it matters
        because = (
            "Python code that comes with a model runs only if you allow it; vLLM has the code of most model families"
        )
        values[REMOTE_CODE] = Value(False, because, ("true: for models whose start asks for it",))
    return values


def _read_base_exports(profile: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Value]:
    """Return the variables that the base's scripts export, except those that the user changed."""
    saved = profile.get("environment", {})
    because = f"as {' and '.join(saved.get('scripts', ()))} of the base image exports it"
    return {name: Value(value, because) for name, value in choose_exported_variables(saved, env).items()}


def _list_profile_layers(profile: Mapping[str, Any]) -> Iterable[tuple[str, dict[str, Value]]]:
    for item in profile["settings"]:
        value = item["value"] if isinstance(item["value"], bool) else str(item["value"])
        yield item["origin"], {item["setting"]: Value(value, item["because"])}


def _list_user_variables(facts: Facts, user_flags: UserFlags) -> Mapping[str, str]:
    """Return the variables that the user set."""
    return drop_unchosen_home(user_flags.env, facts.mounts["cache"]) if "cache" in facts.mounts else user_flags.env


def _select_user_variables(env: Mapping[str, str], settable: set[str], prefixes: tuple[str, ...]) -> dict[str, Value]:
    """Return the user's variables that replace a setting, and those whose names begin with one of `prefixes`."""
    names = (name for name, value in env.items() if value and (name in settable or name.startswith(prefixes)))
    return {name: Value(env[name], "set in the container's environment") for name in names}


def _command_line(user_flags: UserFlags) -> dict[str, Value]:
    values = {}
    for name, flag in user_flags.flags.items():
        is_secret = redact_value(name, flag.given) != flag.given
        values[name] = Value(flag.value, f"given as {name if is_secret else flag.given}")
    if user_flags.modelscope:
        values[USE_MODELSCOPE] = Value("True", "the model's name begins with modelscope:")
    return values


# --- command line and environment -----------------------------------------------------------------------------------


def _format_vllm_flags(chosen: Mapping[str, Chosen], user_flags: UserFlags) -> tuple[str, ...]:
    """Return vLLM's flags: chosen ones, sorted, then the user's as given."""
    words: list[str] = []
    for name, item in sorted(chosen.items()):
        value = item.value.value
        if value is False and item.origin == RECIPE:  # a recipe has no way to leave a flag out: it wrote --no-NAME
            words.append(f"--no-{name[len('--') :]}")
        elif name.startswith("-") and item.origin != COMMAND_LINE and value is not False:
            words += [name] if value is True else [name, str(value)]
    return (*words, *user_flags.tokens)


def _new_variables(chosen: Mapping[str, Chosen]) -> dict[str, str]:
    """Return the variables that the user did not set."""
    new = [name for name in sorted(chosen) if not name.startswith("-") and chosen[name].origin != ENVIRONMENT]
    for name in new:
        if not VARIABLE_NAME.fullmatch(name):  # a profile that is not the image's own
            problem = f"profile.json: found the setting {name!a:.60}, expected a flag or the name of a variable"
            raise EntrypointError(USAGE, problem, "unset DRYDOCK_PROFILE")
    return {name: str(chosen[name].value.value) for name in new}


def _make_reason(name: str, item: Chosen) -> Reason:
    overridden = (
        f"{_format_setting_value(value.value)} ({origin}, overruled by {item.origin}): {value.because}"
        for origin, value in item.overridden
        if value.because and value.value != item.value.value
    )
    alternatives = item.value.instead + tuple(overridden)
    return Reason(name, _format_setting_value(item.value.value), item.origin, item.value.because, alternatives)


def _make_findings(profile: Mapping[str, Any], notices: Iterable[Notice]) -> tuple[Finding, ...]:
    """Return a finding for each notice, in the user's language."""
    texts, words = profile.get("findings") or {}, profile.get("words") or {}
    return tuple(make_finding(texts, notice, words=words) for notice in notices)


def _list_reasons(chosen: Mapping[str, Chosen], others: Iterable[Reason], words: Words) -> tuple[Reason, ...]:
    """Return a reason for each setting, sorted, then the others, in the user's language."""
    reasons = (*(_make_reason(*pair) for pair in sorted(chosen.items())), *others)
    return tuple(_translate_reason(words, reason) for reason in reasons)


def _translate_reason(words: Words, reason: Reason) -> Reason:
    """Return a reason in the user's language."""
    instead = tuple(translate_text(words, text) for text in reason.instead)
    return reason._replace(because=translate_text(words, reason.because), instead=instead)


def _format_setting_value(value: str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else value
