"""Profile, facts, model and the user's flags → the command that serves, with every reason. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from entrypoints.accelerators import decide_module
from entrypoints.cache.plan import cache_plan, cache_settings, chosen_environment
from entrypoints.checks.causes import with_cause
from entrypoints.checks.findings import IN_ENGLISH, INFO, notice, tell
from entrypoints.checks.grants import examine, none_here
from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.exported import exported
from entrypoints.core.language import Words, phrase, translate
from entrypoints.core.records import CachePlan, Facts, Finding, Notice, RankPlan, Reason, ServePlan, Value, to_json
from entrypoints.core.redact import redact_argv, redact_env, redact_value
from entrypoints.core.settings_precedence import (
    COMMAND_LINE,
    DECISION,
    DEFAULT,
    ENVIRONMENT,
    RECIPE,
    RECOMMENDATION,
    Chosen,
    cascade,
)
from entrypoints.core.units import GIB
from entrypoints.decide.cpu.executor import PYTHON_PATH
from entrypoints.decide.parallelism import loading
from entrypoints.decide.parallelism.demand import as_overridden, check_length, length_notices
from entrypoints.decide.records import Decision
from entrypoints.host.limits import raised
from entrypoints.host.limits import reasons as limit_reasons
from entrypoints.model.read import ModelFacts
from entrypoints.plan import guard, inputs, parsers, placement
from entrypoints.plan import ranks as over
from entrypoints.plan.later_downloads import choose_vocabulary, find_later_downloads
from entrypoints.plan.recipe_attempts import apply_recipe, plan_with_recipe
from entrypoints.plan.recommended import recommended, with_own_settings
from entrypoints.plan.roles import role_notices, role_settings
from entrypoints.plan.supervision import SILENT, draining, stall_reason
from entrypoints.plan.vllm_limits import check_limits
from entrypoints.request.flags import (
    ADDRESS,
    API_KEY_VARIABLE,
    HIGHEST_PORT,
    KV_OFFLOAD,
    KV_TRANSFER,
    PORT,
    REMOTE_CODE,
    SERVED_NAME,
    USE_MODELSCOPE,
)
from entrypoints.request.intents import OFFLOAD_CACHE
from entrypoints.request.roles import SERVE
from entrypoints.request.vllm_flags import UserFlags, parse_count

_CACHED = {"USER", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}
"""Variables that are set together with the caches."""


def command(
    profile: Mapping[str, Any],
    facts: Facts,
    model: ModelFacts,
    given: UserFlags,
    drain_timeout: float = 0,
    stall: float | None = None,
) -> ServePlan:
    """Make the plan. Raises HOST if the image needs a device and there is none, and the decisions' errors.

    What a recipe sets never makes an error of a plan: first its lengths and memory are left out, then all of it.
    """

    def attempt(tried: UserFlags) -> ServePlan:
        return _plan(profile, facts, model, tried, drain_timeout, stall)

    return plan_with_recipe(given, attempt) if given.recipe.name else attempt(given)


def _plan(
    profile: Mapping[str, Any],
    facts: Facts,
    model: ModelFacts,
    given: UserFlags,
    drain_timeout: float,
    stall: float | None,
) -> ServePlan:
    """Make the plan with the recipe that `given` has."""
    given, secret, exposed = guard.api_key(given)
    given, unguarded = guard.guarded(given, keyed=bool(secret or given.variable(API_KEY_VARIABLE)))
    stated = _command_line(given) | guard.stated(given) | parsers.stated(given)
    given, advised = recommended(profile, facts, model, given)
    given = given._replace(vllm=given.vllm.narrow_rows(facts.processor.architecture))
    seen = apply_recipe(given.recipe, with_own_settings(profile, given))
    given = seen._replace(env=given.env)
    nothing = none_here(profile, facts, given.env)
    if nothing:
        raise with_cause(nothing, profile, facts)
    inputs.check_speech(profile, model)
    published, model = model, as_overridden(model, given, profile["vllm"])
    check_length(model, given, {item["setting"] for item in profile["settings"]})
    across = over.read_across(profile, facts, given)
    decide: Callable[..., Decision] = decide_module(profile["accelerator"]).decide
    loaded = loading.as_loaded(profile["thresholds"], model, given)
    try:
        decision = decide(profile, facts, loaded, seen)
    except EntrypointError as error:
        raise with_cause(error, profile, facts) from error
    _check_offload(profile, given, decision.values)
    exported = _exported(profile, given.env)
    defaults = (
        exported | _defaults(model, given) | draining(given, drain_timeout) | guard.defaults(model, given, exported)
    )
    reading, unread = parsers.chosen(profile, model, given)
    decided = {**decision.values, **reading, **role_settings(profile, facts, given), **choose_vocabulary(model, given)}
    values = {**decided, **(over.rank_settings(across, decision.values, given, across.rank) if across else {})}
    published_values = (RECIPE, {**given.recipe.flags, **given.recipe.env})
    weaker = [(DEFAULT, defaults), *_profile(profile), published_values, (DECISION, values)]
    settable = {name for _, values in weaker for name in values} | _CACHED | profile["caches"].keys()
    own = {name: value for name, value in _chosen(facts, given).items() if name not in {*exported, PYTHON_PATH}}
    listed = _environment(own, settable, tuple(profile["variables"]["shown"]))
    user = [
        (RECOMMENDATION, advised),
        (ENVIRONMENT, listed),
        (COMMAND_LINE, stated | secret | _modelscope(given)),
    ]
    cache, kept = _caches(profile, facts, model, given, cascade([*weaker, *user]))
    chosen = cascade([*weaker, (DEFAULT, kept), *user])
    silent = across is not None and not over.answers(given, across.rank)
    patience = SILENT if silent else stall_reason(profile["accelerator"], model, chosen, stall)
    download = _download(facts, model, chosen["HF_HOME"].value.value if "HF_HOME" in chosen else None)
    changed = (*length_notices(published, model), *loading.notices(profile["thresholds"], model, given, loaded))
    spread = over.notices(across, given) if across else ()
    settled = {name: item.value.value for name, item in chosen.items()}
    roles = role_notices(profile, given, settled, float(patience.value))
    of_model = _find_notices(profile, facts, model, given, settled)
    of_host = (
        *loading.find_host_weights(facts, model, loaded, settled, decision.uses),
        *placement.find_distant(profile, facts, given, decision.uses),
    )
    said = (*given.recipe.notices, *decision.findings, *unread, *changed, *of_model, *download, *_hub(model))
    notices = (*said, *exposed, *unguarded, *spread, *roles, *of_host)
    words = profile.get("words") or {}
    noticed = (tell(profile.get("findings") or {}, each, words=words) for each in notices)
    reasons = (*(_reason(*pair) for pair in sorted(chosen.items())), *limit_reasons(facts.limits), patience)
    layers = [*weaker[:-1], (DEFAULT, kept), *user]
    hosts = across.hosts if across else 0
    ranks = tuple(_rank(profile, across, decided, given, layers, rank) for rank in range(hosts) if across)
    return ServePlan(
        argv=ranks[across.rank].argv if across else over.serving(profile, chosen, _flags(chosen, given), given),
        env=_new_variables(chosen),
        reasons=tuple(_translate_reason(words, reason) for reason in reasons),
        findings=(*examine(profile, facts if across else placement.narrow_to_engine(facts, decision.uses)), *noticed),
        model=model.name,
        host=str(chosen[ADDRESS].value.value),
        port=parse_count(str(chosen[PORT].value.value), PORT, 0, "", HIGHEST_PORT),
        limits=raised(facts.limits),
        cache=cache,
        files=decision.files,
        uses=decision.uses,
        stall=float(patience.value),
        ranks=ranks,
        before=ranks[across.rank].before if across else (),
        group=over.group(across, decision.values, given) if across else None,
    )


def _find_notices(
    profile: Mapping[str, Any], facts: Facts, model: ModelFacts, given: UserFlags, settled: Mapping[str, str | bool]
) -> tuple[Notice, ...]:
    """Return what this image cannot read, may refuse, or downloads later. Raises what `check_limits` raises."""
    return (
        *inputs.notices(profile, model, given, settled),
        *check_limits(profile, model, given, settled),
        *find_later_downloads(profile, facts, model, given),
    )


def _check_offload(profile: Mapping[str, Any], given: UserFlags, decided: Mapping[str, Value]) -> None:
    """Raise USAGE if a KV cache in the host's memory is asked for that this server cannot have."""
    if not given.intents.offload or KV_OFFLOAD in given.flags:
        return
    if KV_OFFLOAD not in decided:
        message = f"{OFFLOAD_CACHE}: {profile['variant']} cannot keep the KV cache in the host's memory"
        raise EntrypointError(USAGE, message, "leave the flag out")
    if given.role.name != SERVE or KV_TRANSFER in given.flags:  # vLLM's config/vllm.py would replace the connector
        other = KV_TRANSFER if given.role.name == SERVE else f"--role {given.role.name}"
        raise EntrypointError(USAGE, f"{OFFLOAD_CACHE} and {other}: both set how the KV cache is moved", "give one")


def _rank(
    profile: Mapping[str, Any],
    across: over.Across,
    values: Mapping[str, Value],
    given: UserFlags,
    layers: Sequence[tuple[str, Mapping[str, Value]]],
    rank: int,
) -> RankPlan:
    """Return the command of one of several hosts, as if all were like this one; `layers` are all but the decisions."""
    mine = over.of_rank(across, values, given, rank)
    decided = {**values, **over.rank_settings(across, values, given, rank)}
    stated = [(origin, over.stated(kept, mine)) for origin, kept in layers]
    chosen = cascade([*stated, (DECISION, decided)])
    env = _new_variables(chosen)
    if not over.uses_ray(across, values, given):
        return RankPlan(rank, over.serving(profile, chosen, _flags(chosen, mine), mine), env)
    devices = over.devices_of_rank(across, values, given)
    if rank:
        return RankPlan(rank, over.ray_worker(profile["python"], across, devices), env)
    argv = over.serving(profile, chosen, _flags(chosen, mine), mine)
    return RankPlan(rank, argv, env, (over.ray_head(profile["python"], across, devices),))


def _caches(
    profile: Mapping[str, Any], facts: Facts, model: ModelFacts, given: UserFlags, chosen: Mapping[str, Chosen]
) -> tuple[CachePlan, dict[str, Value]]:
    """Plan the caches; `chosen` are all settings that name them."""
    if "cache" not in facts.mounts:
        return CachePlan(), {}
    plan = cache_plan(profile, facts, model, given.env, chosen)
    return plan, cache_settings(profile, plan, facts.mounts["cache"], given.env)


def _download(facts: Facts, model: ModelFacts, folder: str | bool | None) -> tuple[Notice, ...]:
    """Return a notice if weights to be downloaded are larger than the free space, if both are known."""
    cache, weights = facts.mounts.get("cache"), model.weights
    if not (cache and weights and model.elsewhere and str(folder).startswith(f"{cache.path}/")):
        return ()
    if not cache.writable or weights.on_disk <= cache.free:
        return ()
    found, expected = f"{cache.free / GIB:.1f} GiB free in {cache.path}", f"at least {weights.on_disk / GIB:.1f} GiB"
    return (notice("PLAN-060", found, expected),)


def _hub(model: ModelFacts) -> tuple[Notice, ...]:
    """Return a notice if the hub does not answer, or a folder has no weights."""
    if model.unanswered:
        expected = "an answer, or the model's files"
        return (notice("PLAN-064", model.unanswered, expected, where=model.known_from, ask=model.remedy),)
    return (notice("PLAN-063", f"{model.missing} without all weights", "all files"),) if model.missing else ()


# --- layers ---------------------------------------------------------------------------------------------------------


def _defaults(model: ModelFacts, given: UserFlags) -> dict[str, Value]:
    named = "the hub id" if model.short == model.name else "the folder's name"
    return {
        SERVED_NAME: Value(model.short, f"{named}: what clients write as `model`"),
        ADDRESS: Value("0.0.0.0", "all addresses of the container: publish it with -p"),  # noqa: S104 - a container's own network
        PORT: Value("8000", "vLLM's usual port"),
        **_own_code(given),
    }


def _own_code(given: UserFlags) -> dict[str, Value]:
    """Run no code that comes with a model, which is also vLLM's default."""
    if given.known and REMOTE_CODE not in given.known:
        return {}
    because = "Python code that comes with a model runs only if you allow it; vLLM has the code of most model families"
    return {REMOTE_CODE: Value(False, because, ("true: for models whose start asks for it",))}


def _exported(profile: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Value]:
    """Return the variables that the base's scripts export, except those that the user changed."""
    saved = profile.get("environment", {})
    because = f"as {' and '.join(saved.get('scripts', ()))} of the base image exports it"
    return {name: Value(value, because) for name, value in exported(saved, env).items()}


def _profile(profile: Mapping[str, Any]) -> Iterable[tuple[str, dict[str, Value]]]:
    for item in profile["settings"]:
        value = item["value"] if isinstance(item["value"], bool) else str(item["value"])
        yield item["origin"], {item["setting"]: Value(value, item["because"])}


def _chosen(facts: Facts, given: UserFlags) -> Mapping[str, str]:
    """Return the variables that the user set."""
    return chosen_environment(given.env, facts.mounts["cache"]) if "cache" in facts.mounts else given.env


def _environment(env: Mapping[str, str], settable: set[str], shown: tuple[str, ...]) -> dict[str, Value]:
    """Return the user's variables that replace a setting, and those whose names begin with one of `shown`."""
    names = (name for name, value in env.items() if value and (name in settable or name.startswith(shown)))
    return {name: Value(env[name], "set in the container's environment") for name in names}


def _command_line(given: UserFlags) -> dict[str, Value]:
    return {name: Value(flag.value, f"given as {_words(name, flag.given)}") for name, flag in given.flags.items()}


def _modelscope(given: UserFlags) -> dict[str, Value]:
    """Return what makes vLLM take the model from ModelScope."""
    return {USE_MODELSCOPE: Value("True", "the model's name begins with modelscope:")} if given.modelscope else {}


def _words(name: str, words: str) -> str:
    return name if redact_value(name, words) != words else words


# --- command line and environment -----------------------------------------------------------------------------------


def _flags(chosen: Mapping[str, Chosen], given: UserFlags) -> tuple[str, ...]:
    """Return vLLM's flags: chosen ones, sorted, then the user's as given."""
    words: list[str] = []
    for name, item in sorted(chosen.items()):
        value = item.value.value
        if value is False and item.origin == RECIPE:  # a recipe has no way to leave a flag out: it wrote --no-NAME
            words.append(f"--no-{name[len('--') :]}")
        elif name.startswith("-") and item.origin != COMMAND_LINE and value is not False:
            words += [name] if value is True else [name, str(value)]
    return (*words, *given.tokens)


def _new_variables(chosen: Mapping[str, Chosen]) -> dict[str, str]:
    """Return the variables that the user did not set."""
    new = (name for name in sorted(chosen) if not name.startswith("-") and chosen[name].origin != ENVIRONMENT)
    return {name: str(chosen[name].value.value) for name in new}


def _reason(name: str, item: Chosen) -> Reason:
    overridden = (
        f"{_shown(value.value)} ({origin}): {value.because}" for origin, value in item.overridden if value.because
    )
    same = item.value.instead + tuple(overridden)
    return Reason(name, _shown(item.value.value), item.origin, item.value.because, same)


def _translate_reason(words: Words, reason: Reason) -> Reason:
    """Return a reason in the user's language."""
    instead = tuple(translate(words, text) for text in reason.instead)
    return reason._replace(because=translate(words, reason.because), instead=instead)


def _shown(value: str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else value


# --- showing --------------------------------------------------------------------------------------------------------


def redacted(plan: ServePlan) -> ServePlan:
    """Return the plan without secrets, for printing."""
    reasons = (
        reason._replace(
            value=redact_value(reason.setting, reason.value),
            because=redact_value("", reason.because),
            instead=tuple(redact_value(reason.setting, text) for text in reason.instead),
        )
        for reason in plan.reasons
    )
    ranks = (rank._replace(argv=redact_argv(rank.argv), env=redact_env(rank.env)) for rank in plan.ranks)
    return plan._replace(
        argv=redact_argv(plan.argv), env=redact_env(plan.env), reasons=tuple(reasons), ranks=tuple(ranks)
    )


def as_json(plan: ServePlan) -> dict[str, Any]:
    """Return the plan as `plan --json` prints it."""
    result: dict[str, Any] = to_json(redacted(plan))
    return result


def as_text(plan: ServePlan, words: Words = IN_ENGLISH) -> str:
    """Format the command, the environment, the commands of several hosts, and one line for each reason."""
    shown = redacted(plan)
    ranks = "".join(_rank_text(rank) for rank in shown.ranks)
    return f"{_command_text(shown.env, shown.argv)}\n{ranks}{reasons_text(shown, words)}"


def _rank_text(rank: RankPlan) -> str:
    from shlex import join

    before = "".join(f"{join(words)}\n" for words in rank.before)
    return f"rank {rank.rank}:\n{before}{_command_text(rank.env, rank.argv)}\n"


def _command_text(env: Mapping[str, str], argv: tuple[str, ...]) -> str:
    from shlex import join, quote

    return "".join(f"{name}={quote(value)} \\\n" for name, value in env.items()) + f"{join(argv)}\n"


def reasons_text(plan: ServePlan, words: Words = IN_ENGLISH) -> str:
    """Format the reasons, one line each, with the rejected alternatives below."""
    return "".join(
        f"{reason.setting} = {reason.value}  [{reason.origin}] {reason.because}\n"
        + "".join(f"{phrase(words, '    not {}', text)}\n" for text in reason.instead)
        for reason in redacted(plan).reasons
    )


def wrong(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that need attention."""
    return tuple(finding for finding in findings if finding.severity in ("WARN", "FAIL", "UNKNOWN"))


def worth_reading(profile: Mapping[str, Any], findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that need attention, and what the decisions say of this plan (INFO)."""
    of_decisions = profile.get("findings") or {}
    return tuple(each for each in findings if wrong((each,)) or (each.severity == INFO and each.id in of_decisions))
