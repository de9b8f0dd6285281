"""Verbs → what they do. IO: standard output carries data, standard error everything else."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from entrypoints.core.errors import CHECK_FAILED, EXIT_CODES, HOST, MODEL, OK, USAGE, EntrypointError
from entrypoints.request.arguments import FLAGS, VERBS, Arguments, parse_arguments
from entrypoints.request.intents import Intents

Env = Mapping[str, str]

_WORKLOAD_AT_MOST = 64 << 20
"""Characters of a file of lengths: two million requests."""


def main(argv: tuple[str, ...], env: Env) -> int:
    """Run one command line and return its exit code."""
    try:
        arguments = parse_arguments(argv)
        return _RUN[arguments.verb](arguments, env)
    except EntrypointError as error:
        say(f"drydock: {error}")
        return error.code


def say(text: str) -> None:
    """Write a line for people."""
    sys.stderr.write(text if text.endswith("\n") else text + "\n")
    sys.stderr.flush()


def emit(text: str) -> None:
    """Write data."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, AttributeError) as error:  # None, where standard output was closed before the start
        sys.stdout = None
        raise EntrypointError(HOST, f"standard output cannot be written: {error}") from error


def emit_json(value: Any) -> None:
    """Write data as sorted JSON."""
    import json

    emit(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


# --- verbs ----------------------------------------------------------------------------------------------------------


def _serve(arguments: Arguments, env: Env) -> int:
    from entrypoints.serve.launch import serve

    return _start(arguments, env, serve)


def _warm(arguments: Arguments, env: Env) -> int:
    from entrypoints.serve.launch import warm

    return _start(arguments, env, warm)


def _start(arguments: Arguments, env: Env, run: Any) -> int:
    gc.disable()  # until vLLM runs: planning makes many records, and no garbage to speak of
    from entrypoints.checks.findings import as_text, failed
    from entrypoints.plan.plan import reasons_text, wrong

    # PID 1 loses signals that nobody handles: blocked, one that comes while planning waits for the supervisor.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    profile = read_profile(env)
    _check_files(profile, arguments, env)
    facts, plan = _plan_for(arguments, env, profile)
    say(as_text(wrong(plan.findings)) + reasons_text(plan))
    if arguments.options.strict and failed(plan.findings):
        say("drydock: a check is FAIL and --strict was given; nothing was started")
        return CHECK_FAILED
    code: int = run(plan, profile, facts, env, arguments.options)
    return code


def _check_files(profile: Mapping[str, Any], arguments: Arguments, env: Env) -> None:
    """Check that files which variables name exist: vLLM would look for them minutes later. Raises MODEL."""
    for name, hint in profile["variables"]["files"].items():
        path = env.get(name)
        if path and not arguments.options.recorded and not os.path.isfile(path):
            raise EntrypointError(MODEL, f"{name}={path}: no such file", hint)


def _plan(arguments: Arguments, env: Env) -> int:
    from entrypoints.checks.findings import as_text as findings_text
    from entrypoints.plan.plan import as_json, as_text, wrong

    if arguments.diff:
        return _diff(arguments)
    _, plan = _plan_for(arguments, env, read_profile(env))
    if arguments.options.json:
        emit_json(as_json(plan))
    else:
        emit(as_text(plan))
        say(findings_text(wrong(plan.findings)))
    return OK


def _diff(arguments: Arguments) -> int:
    from entrypoints.core.records import to_json
    from entrypoints.plan.diff import as_text, compare, read_plan

    changes = compare(*map(read_plan, arguments.diff))
    emit_json(to_json(changes)) if arguments.options.json else emit(as_text(changes))
    return OK


def _plan_for(arguments: Arguments, env: Env, profile: Mapping[str, Any]) -> Any:
    """Return facts and plan."""
    from entrypoints.model.hub import parse_hub
    from entrypoints.model.read import read_model
    from entrypoints.model.revision import read_revision
    from entrypoints.plan.plan import command
    from entrypoints.request.vllm_flags import parse_given

    given = parse_given(arguments.vllm, env, read_flags(env), _with_workload(arguments.intents))
    name = given.flag("--model")
    if name in (None, "", "True"):
        raise EntrypointError(MODEL, "no model to serve", "serve MODEL …, or --model MODEL: a folder or a hub id")
    facts, _, _ = _probe(arguments, env, profile)
    hub = parse_hub(_hub_environment(env, facts, profile), given.flag("--revision"), given.flag("--download-dir"))
    model = read_model(name, given.flag("--load-format") or "auto", hub, profile["converted_name"])
    model = model._replace(revision=read_revision(name, hub))
    return facts, command(profile, facts, model, given, arguments.options.drain_timeout)


def _hub_environment(env: Env, facts: Any, profile: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment as vLLM will have it, as far as it says where models are."""
    from entrypoints.cache.plan import chosen_environment, shared_settings

    cache = facts.mounts.get("cache")
    if cache is None:
        return dict(env)
    return shared_settings(profile, env, facts.mounts, facts.user[0]) | chosen_environment(env, cache)


def _with_workload(intents: Intents) -> Intents:
    """Return the intents with the lengths that --workload names. Raises USAGE."""
    if not intents.workload_file:
        return intents
    from entrypoints.request.workload import parse_workload

    try:
        with open(intents.workload_file, encoding="utf-8") as file:
            return intents.over(parse_workload(file.read(_WORKLOAD_AT_MOST)))
    except (OSError, ValueError) as error:
        raise EntrypointError(USAGE, f"--workload {intents.workload_file}: {error}") from error


def _check(arguments: Arguments, env: Env) -> int:
    from entrypoints.checks.findings import as_junit, as_text, failed
    from entrypoints.checks.grants import examine
    from entrypoints.core.records import to_json

    profile = read_profile(env)
    facts, _, _ = _probe(arguments, env, profile)
    findings = examine(profile, facts)
    if arguments.options.fix_script:
        from entrypoints.checks.fixes import script

        emit(script(findings, profile["variant"]))
        return OK
    if arguments.junit:
        _write(arguments.junit, as_junit(findings, f"drydock.{profile['variant']}"))
    if arguments.options.json:
        emit_json(to_json(findings))
    elif arguments.junit != "-":
        emit(as_text(findings))
    return CHECK_FAILED if failed(findings) else OK


def _write(path: str, text: str) -> None:
    if path == "-":
        emit(text)
        return
    from entrypoints.core.folders import replace

    try:
        replace(path, text)
    except OSError as error:
        raise EntrypointError(USAGE, f"--junit {path}: {error.strerror}", "name a file in a writable folder") from error


def _facts(arguments: Arguments, env: Env) -> int:
    from entrypoints.core.records import to_json

    facts, host, commands = _probe(arguments, env, read_profile(env))
    if arguments.record:
        from entrypoints.facts.record import record

        say(f"recorded {record(host, commands, facts, arguments.record)}")
    else:
        emit_json(to_json(facts))
    return OK


def _probe(arguments: Arguments, env: Env, profile: Mapping[str, Any]) -> Any:
    """Return facts, and the host and commands they were read through."""
    from entrypoints.facts.facts import probe
    from entrypoints.host.commands import Commands
    from entrypoints.host.host import Host

    if arguments.root:
        from entrypoints.facts.record import open_host

        host = open_host(arguments.root)
    else:
        host = Host()
    commands = Commands(host)
    return probe(host, commands, profile, env), host, commands


def _health(arguments: Arguments, env: Env) -> int:
    from entrypoints.serve.health import main as health

    code: int = health(arguments.vllm, env)
    return code


def _cache(arguments: Arguments, env: Env) -> int:
    from entrypoints.cli.cacheverb import run

    return run(arguments.vllm, env)


def _convert(arguments: Arguments, env: Env) -> int:
    from entrypoints.cli.convertverb import run

    profile = read_profile(env)
    return run(arguments.vllm, env, profile, os.path.join(os.path.dirname(profile_path(env)), "conversions"))


def _version(arguments: Arguments, env: Env) -> int:
    profile = read_profile(env)
    known = {name: profile[name] for name in ("variant", "accelerator", "stack", "vllm")}
    if arguments.options.json:
        emit_json(known)
    else:
        emit("".join(f"{name} {value}\n" for name, value in known.items()))
    return OK


def _help(_arguments: Arguments, _env: Env) -> int:
    verbs = "".join(f"  {name:8} {text}\n" for name, text in VERBS.items())
    flags = "".join(f"  {f'{name} {value}':24} {text}\n" for name, (value, text) in FLAGS.items())
    codes = "".join(f"  {code:3} {text}\n" for code, text in EXIT_CODES.items())
    emit(
        "usage: [VERB] [MODEL] [FLAG …]\n\nverbs:\n"
        f"{verbs}  anything else is executed as it is\n\nown flags:\n{flags}"
        "  every other flag is vLLM's and passes through; its own --help=all lists them\n\n"
        f"exit codes:\n{codes}  any other is vLLM's own; 128 + n: it died of signal n\n"
    )
    return OK


def _exec(arguments: Arguments, env: Env) -> int:
    """Become another program."""
    command = arguments.vllm
    try:
        os.execvpe(command[0], command, dict(env))  # noqa: S606 - what the user typed, as it is
    except (OSError, ValueError) as error:
        from difflib import get_close_matches

        close = get_close_matches(command[0], VERBS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"verbs: {', '.join(VERBS)}"
        message = f"{command[0]!r} is no verb, and cannot be executed: {getattr(error, 'strerror', '') or error}"
        raise EntrypointError(USAGE, message, hint) from error


_RUN = {
    "serve": _serve,
    "plan": _plan,
    "check": _check,
    "facts": _facts,
    "warm": _warm,
    "convert": _convert,
    "cache": _cache,
    "health": _health,
    "version": _version,
    "help": _help,
    "exec": _exec,
}


# --- the image's own files ------------------------------------------------------------------------------------------


def profile_path(env: Env) -> str:
    """Return where the profile lies: DRYDOCK_PROFILE, else beside the package."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return env.get("DRYDOCK_PROFILE") or os.path.join(os.path.dirname(package), "profile.json")


def read_profile(env: Env) -> dict[str, Any]:
    """Read what this image knows of itself. Raises USAGE when DRYDOCK_PROFILE names no profile."""
    path = profile_path(env)
    try:
        with open(path, encoding="utf-8") as file:
            profile: dict[str, Any] = json.loads(file.read())
    except (OSError, ValueError) as error:
        raise EntrypointError(
            USAGE, f"{path}: {error}, expected the image's profile", "unset DRYDOCK_PROFILE"
        ) from error
    return {**profile, "environment": read_environment(env), "packages": read_packages(profile["python"])}


def read_packages(python: str) -> str:
    """Return a digest of the distributions beside an interpreter, by name and version: it tells builds apart.

    Empty where there are none, or they cannot be listed.
    """
    from entrypoints.cache.plan import short

    lib = os.path.join(os.path.dirname(os.path.dirname(python)), "lib")
    try:
        folders = [os.path.join(lib, name, "site-packages") for name in os.listdir(lib) if name.startswith("python3.")]
        names = sorted(name for folder in folders for name in os.listdir(folder) if name.endswith("-info"))
    except OSError:
        return ""
    return short("\n".join(names)) if names else ""


def read_environment(env: Env) -> dict[str, Any]:
    """Read what the base's own scripts export, recorded beside the profile when the image was built."""
    path = os.path.join(os.path.dirname(profile_path(env)), "environment.json")
    try:
        with open(path, encoding="utf-8") as file:
            saved: dict[str, Any] = json.loads(file.read())
    except FileNotFoundError:
        return {}
    return saved


def read_flags(env: Env) -> tuple[str, ...]:
    """Read vLLM's option strings, recorded beside the profile when the image was built; none where there are none."""
    path = os.path.join(os.path.dirname(profile_path(env)), "vllm-flags.json")
    try:
        with open(path, encoding="utf-8") as file:
            return tuple(json.loads(file.read()))
    except FileNotFoundError:
        return ()
