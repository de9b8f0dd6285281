"""Profile, facts, model and what the user said → the command that serves, with every reason. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from entrypoints.accelerators import decide_module
from entrypoints.cache.plan import cache_plan, cache_settings, chosen_environment
from entrypoints.checks.findings import notice, tell
from entrypoints.checks.grants import examine, none_here
from entrypoints.core.cascade import COMMAND_LINE, DECISION, DEFAULT, ENVIRONMENT, Chosen, cascade
from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.records import CachePlan, Facts, Finding, Notice, Reason, ServePlan, to_json
from entrypoints.core.redact import redact_argv, redact_env, redact_value
from entrypoints.core.units import GIB
from entrypoints.decide.records import Decision, Value
from entrypoints.host.limits import raised
from entrypoints.host.limits import reasons as limit_reasons
from entrypoints.model.read import ModelFacts
from entrypoints.request.vllm_flags import UserFlags, parse_count

_HIGHEST_PORT = 65535

_CACHED = {"USER", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}
"""What is set with the caches."""

_SHOWN = (
    *("VLLM_", "OMP_", "KMP_", "GOMP_", "CPU_VISIBLE_", "HF_", "HUGGING", "TRANSFORMERS_", "TORCH", "TRITON_"),
    "QUANT_CONFIG",
)
"""Beginnings of the user's variables that are worth a reason even when nothing weaker set them."""


def command(
    profile: Mapping[str, Any], facts: Facts, model: ModelFacts, given: UserFlags, drain_timeout: float = 0
) -> ServePlan:
    """Make the plan. Raises HOST where the image needs a device and none is here, and what the decisions raise."""
    nothing = none_here(profile, facts, given.env)
    if nothing:
        raise nothing
    decide: Callable[..., Decision] = decide_module(profile["accelerator"]).decide
    decision = decide(profile, facts, model, given)
    exported = _exported(profile, given.env)
    defaults = exported | _defaults(model, given) | _drain(given, drain_timeout)
    weaker = [(DEFAULT, defaults), *_profile(profile), (DECISION, decision.values)]
    settable = {name for _, values in weaker for name in values} | _CACHED | profile["caches"].keys()
    own = {name: value for name, value in _chosen(facts, given).items() if name not in exported}
    user = [(ENVIRONMENT, _environment(own, settable)), (COMMAND_LINE, _command_line(given))]
    cache, kept = _caches(profile, facts, model, given, cascade([*weaker, *user]))
    chosen = cascade([*weaker, (DEFAULT, kept), *user])
    download = _download(facts, model, chosen["HF_HOME"].value.value if "HF_HOME" in chosen else None)
    told = (tell(profile.get("findings") or {}, each) for each in (*decision.findings, *download))
    return ServePlan(
        argv=(profile["python"], "-m", profile["module"], *_flags(chosen, given)),
        env={name: str(item.value.value) for name, item in sorted(chosen.items()) if _is_new_variable(name, item)},
        reasons=(*(_reason(name, item) for name, item in sorted(chosen.items())), *limit_reasons(facts.limits)),
        findings=(*examine(profile, facts), *told),
        model=model.name,
        host=str(chosen["--host"].value.value),
        port=_port(str(chosen["--port"].value.value)),
        limits=raised(facts.limits),
        cache=cache,
        files=decision.files,
    )


def _caches(
    profile: Mapping[str, Any], facts: Facts, model: ModelFacts, given: UserFlags, chosen: Mapping[str, Chosen]
) -> tuple[CachePlan, dict[str, Value]]:
    """Plan the caches once all that names them is settled."""
    if "cache" not in facts.mounts:
        return CachePlan(), {}
    plan = cache_plan(profile, facts, model, given.env, chosen)
    return plan, cache_settings(profile, plan, facts.mounts["cache"], given.env)


def _port(text: str) -> int:
    port = parse_count(text, "--port", 0)
    if port > _HIGHEST_PORT:
        raise EntrypointError(USAGE, f"--port {text}: expected a port from 0 to {_HIGHEST_PORT}")
    return port


def _download(facts: Facts, model: ModelFacts, folder: str | bool | None) -> tuple[Notice, ...]:
    """Say that weights which are still to come are larger than what is free where they go, as far as that is known."""
    cache, weights = facts.mounts.get("cache"), model.weights
    if not (cache and weights and model.elsewhere and str(folder).startswith(f"{cache.path}/")):
        return ()
    if not cache.writable or weights.on_disk <= cache.free:
        return ()
    found, expected = f"{cache.free / GIB:.1f} GiB free in {cache.path}", f"at least {weights.on_disk / GIB:.1f} GiB"
    return (notice("PLAN-060", found, expected),)


# --- layers ---------------------------------------------------------------------------------------------------------


def _defaults(model: ModelFacts, given: UserFlags) -> dict[str, Value]:
    name = model.name.rstrip("/").rsplit("/", 1)[-1] if model.local else model.name
    named = "the folder's name" if model.local else "the hub id"
    return {
        "--served-model-name": Value(name, f"{named}: what clients write as `model`"),
        "--host": Value("0.0.0.0", "all addresses of the container: publish it with -p"),  # noqa: S104 - a container's own network
        "--port": Value("8000", "vLLM's usual port"),
        **_own_code(given),
    }


def _own_code(given: UserFlags) -> dict[str, Value]:
    """Run no code that comes with a model, as vLLM does not either where nothing is said."""
    if given.known and "--trust-remote-code" not in given.known:
        return {}
    because = "a model may bring Python code, which runs only when you say so; vLLM has most families' code itself"
    return {"--trust-remote-code": Value(False, because, ("true: for models that vLLM's start asks it for",))}


def _exported(profile: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Value]:
    """Return what the base's scripts export, except what the user set otherwise than the image has it."""
    saved = profile.get("environment", {})
    because = f"as {' and '.join(saved.get('scripts', ()))} of the base image exports it"
    variables: Mapping[str, tuple[str, str]] = saved.get("variables", {})
    return {name: Value(after, because) for name, (before, after) in variables.items() if env.get(name, "") == before}


def _drain(given: UserFlags, timeout: float) -> dict[str, Value]:
    """Let vLLM finish what runs when it is told to end, where it can; without the flag it aborts all requests."""
    if not timeout or "--shutdown-timeout" not in given.known:
        return {}
    because = "vLLM finishes running requests after SIGTERM, for as long as --drain-timeout"
    return {"--shutdown-timeout": Value(str(_rounded_up(timeout)), because, ("0, vLLM's own: aborts them all",))}


def _rounded_up(seconds: float) -> int:
    return int(seconds) + (seconds > int(seconds))


def _profile(profile: Mapping[str, Any]) -> Iterable[tuple[str, dict[str, Value]]]:
    for item in profile["settings"]:
        value = item["value"] if isinstance(item["value"], bool) else str(item["value"])
        yield item["origin"], {item["setting"]: Value(value, item["because"])}


def _chosen(facts: Facts, given: UserFlags) -> Mapping[str, str]:
    """Return the variables that somebody chose."""
    return chosen_environment(given.env, facts.mounts["cache"]) if "cache" in facts.mounts else given.env


def _environment(env: Mapping[str, str], settable: set[str]) -> dict[str, Value]:
    names = (name for name, value in env.items() if value and (name in settable or name.startswith(_SHOWN)))
    return {name: Value(env[name], "set in the container's environment") for name in names}


def _command_line(given: UserFlags) -> dict[str, Value]:
    return {name: Value(flag.value, f"given as {_words(name, flag.given)}") for name, flag in given.flags.items()}


def _words(name: str, words: str) -> str:
    return name if redact_value(name, words) != words else words


# --- what becomes of them -------------------------------------------------------------------------------------------


def _flags(chosen: Mapping[str, Chosen], given: UserFlags) -> tuple[str, ...]:
    """Return vLLM's flags: ours in order, then the user's as they were written."""
    words: list[str] = []
    for name, item in sorted(chosen.items()):
        value = item.value.value
        if name.startswith("-") and item.origin != COMMAND_LINE and value is not False:
            words += [name] if value is True else [name, str(value)]
    return (*words, *given.tokens)


def _is_new_variable(name: str, item: Chosen) -> bool:
    return not name.startswith("-") and item.origin != ENVIRONMENT


def _reason(name: str, item: Chosen) -> Reason:
    overridden = (
        f"{_shown(value.value)} ({origin}): {value.because}" for origin, value in item.overridden if value.because
    )
    same = item.value.instead + tuple(overridden)
    return Reason(name, _shown(item.value.value), item.origin, item.value.because, same)


def _shown(value: str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else value


# --- showing --------------------------------------------------------------------------------------------------------


def redacted(plan: ServePlan) -> ServePlan:
    """Return the plan as it may be printed."""
    reasons = (
        reason._replace(
            value=redact_value(reason.setting, reason.value),
            because=redact_value("", reason.because),
            instead=tuple(redact_value(reason.setting, text) for text in reason.instead),
        )
        for reason in plan.reasons
    )
    return plan._replace(argv=redact_argv(plan.argv), env=redact_env(plan.env), reasons=tuple(reasons))


def as_json(plan: ServePlan) -> dict[str, Any]:
    """Return the plan as `plan --json` prints it."""
    result: dict[str, Any] = to_json(redacted(plan))
    return result


def as_text(plan: ServePlan) -> str:
    """Format the command, the environment, and a line for each reason."""
    from shlex import join, quote

    shown = redacted(plan)
    env = "".join(f"{name}={quote(value)} \\\n" for name, value in shown.env.items())
    return f"{env}{join(shown.argv)}\n\n{reasons_text(shown)}"


def reasons_text(plan: ServePlan) -> str:
    """Format the reasons, a line each, and why not the alternatives below."""
    return "".join(
        f"{reason.setting} = {reason.value}  [{reason.origin}] {reason.because}\n"
        + "".join(f"    not {text}\n" for text in reason.instead)
        for reason in redacted(plan).reasons
    )


def wrong(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that somebody should read."""
    return tuple(finding for finding in findings if finding.severity in ("WARN", "FAIL", "UNKNOWN"))
