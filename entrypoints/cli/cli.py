"""The verbs. IO: data goes to standard output, everything else to standard error."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Mapping
from typing import Any

from entrypoints.core.errors import (
    CHECK_FAILED,
    DOES_NOT_FIT,
    HOST,
    INTERNAL,
    MODEL,
    OK,
    REFUSED,
    USAGE,
    EntrypointError,
)
from entrypoints.core.text import emit_printable, emit_text, format_one_line, print_message, printable, tell_user
from entrypoints.request.access import KEY_FILE, Access, parse_keys
from entrypoints.request.arguments import VERBS, Arguments, parse_arguments
from entrypoints.request.flags import (
    API_KEY_VARIABLE,
    CHAT_TEMPLATE,
    DOWNLOAD_DIR,
    LOAD_FORMAT,
    MODEL_NAME,
    REVISION,
    USE_MODELSCOPE,
)
from entrypoints.request.intents import Intents
from entrypoints.request.vllm_lists import ACCEPT, VllmLists

Env = Mapping[str, str]

_KEY_AT_MOST = 1 << 20
"""Bytes of an --api-key-file."""
_WORKLOAD_AT_MOST = 64 << 20
"""Characters of a --workload file: about two million requests."""

_SUPERVISING = ("serve", "warm")
"""Verbs whose supervisor takes the signals that __main__.py has blocked."""


def main(argv: tuple[str, ...], env: Env) -> int:
    """Run one command line and return its exit code."""
    try:
        arguments = parse_arguments(argv)
        if arguments.verb not in _SUPERVISING:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
        return _RUN[arguments.verb](arguments, env)
    except EntrypointError as error:
        from entrypoints.core.language import translate_error
        from entrypoints.core.redact import redact_text

        tell_line(redact_text(f"drydock: {translate_error(_read_error_words(argv, env), error)}"))
        return error.code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 -- whatever it is, its exit code must not be one of vLLM's
        return _report_defect(error)


def _read_error_words(argv: tuple[str, ...], env: Env) -> Mapping[str, str]:
    """Return the translations for an error; none if the error is about the profile or the language itself."""
    from itertools import pairwise

    from entrypoints.core.language import FLAG, translate_profile

    languages = [word.partition("=")[2] for word in argv if word.startswith(f"{FLAG}=")]
    languages += [value for name, value in pairwise(argv) if name == FLAG]
    try:
        return translate_profile(read_profile(env), languages[-1] if languages else "", env).get("words") or {}
    except EntrypointError:
        return {}


def _report_defect(error: Exception) -> int:
    """Report an error that no one expected, the cause last. Return its exit code."""
    from traceback import format_exception

    from entrypoints.core.redact import redact_text

    tell_line(redact_text("".join(format_exception(error))))
    cause = f"{type(error).__name__}: {redact_text(format_one_line(str(error)))}"
    tell_line(f"drydock: ended with exit code {INTERNAL}: a defect of drydock's entrypoint: {cause}")
    return INTERNAL


def tell_line(text: str) -> None:
    """Write a line to standard error, in printable form: it may quote a file of someone else."""
    tell_user(text.removesuffix("\n"))


def emit_json(value: Any) -> None:
    """Write data to standard output as sorted JSON. Raises HOST."""
    emit_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


# --- verbs ----------------------------------------------------------------------------------------------------------


def _run_serve(arguments: Arguments, env: Env) -> int:
    from entrypoints.serve.launch import serve_plan

    return _start_vllm(arguments, env, serve_plan)


def _run_warm(arguments: Arguments, env: Env) -> int:
    from entrypoints.serve.launch import warm_caches

    return _start_vllm(arguments, env, warm_caches)


def _start_vllm(arguments: Arguments, env: Env, run: Any) -> int:
    gc.disable()  # planning makes many records and little garbage
    from entrypoints.checks.findings import format_findings_log, has_failures, sort_worst_first
    from entrypoints.core.language import translate_text
    from entrypoints.plan.plan_text import format_reasons_text, select_problems

    profile = _read_localized_profile(arguments, env)
    if any(word.partition("=")[0] == "--help" for word in arguments.vllm):
        return _print_vllm_help(arguments, env, profile)
    _check_files(profile, arguments, env)
    facts, _, plan = _make_plan(arguments, env, profile)
    words = profile.get("words") or {}
    tell_line(
        format_findings_log(sort_worst_first(select_problems(plan.findings)), words) + format_reasons_text(plan, words)
    )
    if arguments.options.strict and has_failures(plan.findings):
        tell_line(f"drydock: {translate_text(words, 'not started: a check is FAIL, and --strict is set')}")
        return CHECK_FAILED
    code: int = run(plan, profile, facts, env, arguments.options)
    return code


_HELP_IN_PARTS = (0, 11)
"""The first vLLM whose --help lists groups, and --help=all flags. To 0.10.2, `all` is a word that names contain."""


def _print_vllm_help(arguments: Arguments, env: Env, profile: Mapping[str, Any]) -> int:
    """Replace this process by vLLM's own help, which needs no model and no plan. Raises USAGE."""
    from entrypoints.core.parse import parse_version_numbers

    in_parts = parse_version_numbers(profile["vllm"]) >= _HELP_IN_PARTS
    words = [word for word in arguments.vllm if word.partition("=")[0] == "--help"] if in_parts else ["--help"]
    return _run_exec(arguments._replace(vllm=(profile["python"], "-m", profile["module"], *words)), env)


_MOUNT = "mount the model's folder and give its path"
_DESCRIBE = "plan with a config.json that you have: --model-config FILE"
HUB_CACHES, KNOWN_MODELS = "DRYDOCK_HUB_CACHES", "DRYDOCK_KNOWN_MODELS"
"""Variables of the tool, which runs `plan` outside a container: this machine's caches of hubs, with colons between, and
the file with the configurations that drydock knows."""


def _check_files(profile: Mapping[str, Any], arguments: Arguments, env: Env) -> None:
    """Check that files which variables name exist: vLLM would look for them minutes later. Raises MODEL."""
    for name, hint in profile["variables"]["files"].items():
        path = env.get(name)
        if path and not arguments.options.recorded and not os.path.isfile(path):
            raise EntrypointError(MODEL, f"{name}={path}: no such file", hint)


def _run_plan(arguments: Arguments, env: Env) -> int:
    from entrypoints.checks.findings import format_findings as findings_text
    from entrypoints.checks.findings import sort_worst_first
    from entrypoints.plan.plan_summary import summary_text
    from entrypoints.plan.plan_text import format_plan_text, make_plan_document, redact_plan, worth_reading

    if arguments.diff:
        return _print_plan_diff(arguments)
    profile = _read_localized_profile(arguments, env)
    try:
        facts, model, plan = _make_plan(arguments, env, profile)
    except EntrypointError as error:
        if arguments.html and error.code == DOES_NOT_FIT:
            _write_refusal(arguments, env, profile, error)
        raise
    if arguments.html:
        from entrypoints.cli.page import render_plan_page

        _write_output("--html", arguments.html, render_plan_page(profile["variant"], facts, plan))
    as_data, words = arguments.options.json, profile.get("words") or {}
    if as_data and not arguments.rehearse:
        emit_json(make_plan_document(plan))
    elif not as_data and arguments.html != "-":
        emit_text(f"{summary_text(profile, facts, redact_plan(plan))}{format_plan_text(plan, words)}")
        tell_line(findings_text(sort_worst_first(worth_reading(profile, plan.findings)), words))
    _refuse_plan(profile, facts, plan, arguments, read_vllm_lists(env))
    return _print_rehearsal(arguments, env, profile, facts, (model, plan)) if arguments.rehearse else OK


def _refuse_plan(profile: Mapping[str, Any], facts: Any, plan: Any, arguments: Arguments, lists: VllmLists) -> None:
    """Raise HOST for a machine that the image does not run on, REFUSED for settings that end vLLM's start.

    The user overrules each by the id of its finding.
    """
    from entrypoints.checks.findings import find_refused_settings, find_unsupported
    from entrypoints.plan.other_rows import describe_fitting_rows

    refused = tuple((REFUSED, finding, "") for finding in find_refused_settings(profile["findings"], plan.findings))
    unsupported = find_unsupported(profile["checks"], plan.findings)
    rows = describe_fitting_rows(lists, facts) if unsupported else ""
    for code, finding, instead in (*((HOST, finding, rows) for finding in unsupported), *refused):
        if finding.id not in arguments.accepted:
            overrule = f"{ACCEPT} {finding.id} plans for it all the same"
            hint = "; ".join(filter(None, (finding.remediation, instead, overrule)))
            raise EntrypointError(code, f"{finding.id}: {finding.text}", hint)


def _print_rehearsal(
    arguments: Arguments, env: Env, profile: Mapping[str, Any], facts: Any, planned: tuple[Any, Any]
) -> int:
    """Let vLLM check a model's plan; print what it said, with --json the plan too. Raises REFUSED, HOST."""
    from entrypoints.cli import rehearse
    from entrypoints.core.records import to_json
    from entrypoints.plan.plan_text import make_plan_document
    from entrypoints.serve.launch import make_vllm_environment

    model, plan = planned
    case = rehearse.Case(profile, facts, model, plan, bool(arguments.root), arguments.rehearse_seconds)
    rehearsal = rehearse.rehearse_plan(case, make_vllm_environment(plan, env), tell_line)
    if arguments.options.json:
        emit_json({**make_plan_document(plan), "rehearsal": to_json(rehearsal)})
    elif rehearsal.outcome != rehearse.REFUSES:
        emit_text(rehearse.format_rehearsal(rehearsal))
    if rehearsal.outcome == rehearse.REFUSES:
        raise rehearse.make_refusal(rehearsal)
    return OK


def _write_refusal(arguments: Arguments, env: Env, profile: Mapping[str, Any], error: EntrypointError) -> None:
    """Write the page of a model that does not fit. Raises USAGE."""
    from entrypoints.checks.grants import examine_facts
    from entrypoints.cli.page import render_refusal_page

    facts, _, _ = _probe_host(arguments, env, profile)
    _write_output(
        "--html", arguments.html, render_refusal_page(profile["variant"], facts, error, examine_facts(profile, facts))
    )


def _print_plan_diff(arguments: Arguments) -> int:
    from entrypoints.core.records import to_json
    from entrypoints.plan.diff import compare_plan_settings, format_changes, read_plan

    changes = compare_plan_settings(*map(read_plan, arguments.diff))
    if arguments.options.json:
        emit_json(to_json(changes))
    else:
        emit_text(format_changes(changes))
    return OK


def _make_plan(arguments: Arguments, env: Env, profile: Mapping[str, Any]) -> Any:
    """Return the facts, the model and the plan. Raises what reading the host and the model, and planning raise."""
    from functools import partial

    from entrypoints.model.bucket import read_bucket
    from entrypoints.model.hub import parse_hub
    from entrypoints.model.read import Instead, read_model, with_draft
    from entrypoints.model.revision import read_revision
    from entrypoints.model.template import own_template
    from entrypoints.plan.plan import make_serve_plan
    from entrypoints.plan.recipe_attempts import apply_recipe
    from entrypoints.plan.recipe_file import FILE as RECIPES
    from entrypoints.plan.recipe_file import NOTHING, read_facts
    from entrypoints.request.speculative import parse_drafting
    from entrypoints.request.vllm_flags import parse_user_flags

    lists = read_vllm_lists(env)
    user_flags = parse_user_flags(arguments.vllm, env, lists.option_strings(), _add_workload(arguments.intents))
    signs = bool(arguments.options.group_secret_file)
    user_flags = user_flags._replace(access=_read_access(arguments), role=arguments.role, signs=signs, vllm=lists)
    user_flags = user_flags._replace(accepted=arguments.accepted)
    name = user_flags.flag(MODEL_NAME)
    if name in (None, "", "True"):
        raise EntrypointError(MODEL, "no model given", "write serve MODEL, with a folder or a hub id")
    facts, _, _ = _probe_host(arguments, env, profile)
    profile = _add_causes(profile, facts, arguments, env)
    hub_env = _make_hub_environment(env, facts, profile) | ({USE_MODELSCOPE: "True"} if user_flags.modelscope else {})
    hub = parse_hub(hub_env, user_flags.flag(REVISION), user_flags.flag(DOWNLOAD_DIR))
    if hub.modelscope:
        _require_modelscope(name, profile)
    more = tuple(filter(None, env.get(HUB_CACHES, "").split(":")))
    hub = hub._replace(caches=tuple(dict.fromkeys((*hub.caches, *more))))
    planning = arguments.verb == "plan"
    instead = Instead(arguments.model_config, env.get(KNOWN_MODELS, ""), no_weights=True) if planning else Instead()
    loads = user_flags.flag(LOAD_FORMAT) or "auto"
    bucket = partial(read_bucket, profile)
    model = read_model(name, loads, hub, profile["converted_name"], instead, bucket)
    template = own_template(user_flags.flag(CHAT_TEMPLATE) or "") or model.template
    model = model._replace(revision=model.revision or read_revision(name, hub), template=template)
    published = NOTHING if arguments.recipe.off else read_facts(locate_image_file(env, RECIPES), model)
    if published != NOTHING or arguments.recipe.features:
        from entrypoints.plan.recipes import choose_recipe  # most models have no recipe, and a start waits for imports

        user_flags = user_flags._replace(
            recipe=choose_recipe(profile, facts, model, user_flags, published, arguments.recipe)
        )
    drafting, draft = parse_drafting(apply_recipe(user_flags.recipe, user_flags)), None
    if drafting.model:
        draft_hub = hub._replace(revision=drafting.revision or parse_hub(hub_env).revision)
        draft = read_model(drafting.model, loads, draft_hub, instead=instead._replace(file=""), bucket=bucket)
    if draft or drafting.in_model:
        model = with_draft(model, draft)
    options = arguments.options
    plan = make_serve_plan(profile, facts, model, user_flags, options.drain_timeout, options.stall)
    for model_facts, instead_of_it in ((model, _DESCRIBE if planning else _MOUNT), (draft, _MOUNT)):
        if (
            model_facts and model_facts.unanswered and not model_facts.known_from
        ):  # after what the host lacks, which no hub helps
            raise EntrypointError(MODEL, model_facts.unknown, f"{model_facts.remedy}, or {instead_of_it}")
    return facts, model, plan


def _require_modelscope(name: str, profile: Mapping[str, Any]) -> None:
    """Raise MODEL if the image lacks the package that vLLM imports with VLLM_USE_MODELSCOPE, also for a folder.

    Source: vllm/transformers_utils/__init__.py.
    """
    packages = _list_dist_folders(profile["python"])
    if packages and not any(package.startswith("modelscope-") for package in packages):
        message = f"{name}: image {profile['variant']} lacks the package modelscope, which vLLM needs for ModelScope"
        hint = (
            f"unset {USE_MODELSCOPE}; download the model with drydock's `model pull modelscope:ORG/NAME`, and {_MOUNT}"
        )
        raise EntrypointError(MODEL, message, hint)


def _read_access(arguments: Arguments) -> Access:
    """Return who may ask the server, with the keys of --api-key-file. Raises USAGE."""
    path = arguments.key_file
    if not path:
        return arguments.access
    from entrypoints.core.folders import read_bounded

    try:
        keys = parse_keys(read_bounded(path, _KEY_AT_MOST).decode("ascii"), f"{KEY_FILE} {path}")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not ASCII text"
        hint = f"mount a file with one key a line that uid {os.getuid()} can read"
        raise EntrypointError(USAGE, f"{KEY_FILE} {path}: {reason}", hint) from error
    if any(" " in key for key in keys):
        raise EntrypointError(USAGE, f"{KEY_FILE} {path}: a line has a space in it", "write one key a line")
    return arguments.access._replace(keys=keys)


def _make_hub_environment(env: Env, facts: Any, profile: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment that vLLM will see, with the folders of the hub's cache."""
    from entrypoints.cache.plan import drop_unchosen_home, make_shared_settings

    cache = facts.mounts.get("cache")
    if cache is None:
        return dict(env)
    return make_shared_settings(profile, env, facts.mounts, facts.user[0]) | drop_unchosen_home(env, cache)


def _make_download_environment(env: Env, facts: Any, profile: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of a program without a plan, with folders of downloads that only this user can write.

    Makes them. Raises HOST.
    """
    from entrypoints.cache.lifecycle import Caches
    from entrypoints.cache.plan import make_download_plan
    from entrypoints.cache.trust import choose_umask
    from entrypoints.core.folders import locate_private_root

    hub = _make_hub_environment(env, facts, profile)
    if "cache" not in facts.mounts:
        return hub
    os.umask(choose_umask(env))
    planned = make_download_plan(profile, env, facts.mounts, facts.user[0])
    unset = {name: folder for name, folder in planned.folders.items() if name not in env}
    caches = Caches(
        planned._replace(folders=unset), locate_private_root(env, facts.user[0]), env, print_message, profile
    )
    caches.open()
    return caches.environment(hub)


def _add_workload(intents: Intents) -> Intents:
    """Return the goals with the lengths in the --workload file. Raises USAGE."""
    if not intents.workload_file:
        return intents
    from entrypoints.request.workload import parse_workload

    try:
        with open(intents.workload_file, encoding="utf-8") as file:
            return intents.with_workload(parse_workload(file.read(_WORKLOAD_AT_MOST)))
    except (OSError, ValueError) as error:
        raise EntrypointError(USAGE, f"--workload {intents.workload_file}: {error}") from error


def _run_check(arguments: Arguments, env: Env) -> int:
    from entrypoints.checks.findings import format_junit, has_failures
    from entrypoints.checks.grants import examine_facts

    profile = _read_localized_profile(arguments, env)
    facts, host, _ = _probe_host(arguments, env, profile)
    profile = _add_causes(profile, facts, arguments, env)
    findings = (*examine_facts(profile, facts), *_check_peers(arguments, env, profile, host))
    if arguments.options.fix_script:
        from entrypoints.checks.fixes import format_fix_script

        emit_text(format_fix_script(findings, profile["variant"]))
        return OK
    if arguments.junit:
        _write_output("--junit", arguments.junit, format_junit(findings, f"drydock.{profile['variant']}"))
    if arguments.html:
        from entrypoints.cli.page import render_check_page

        _write_output("--html", arguments.html, render_check_page(profile["variant"], facts, findings))
    if arguments.options.json:
        from entrypoints.core.records import to_json

        emit_json(
            [to_json(finding) for finding in findings if not arguments.only or finding.severity in arguments.only]
        )
    elif "-" not in (arguments.junit, arguments.html):
        from entrypoints.checks.report import format_check_report, look_at_output

        emit_printable(
            format_check_report(
                findings, profile["variant"], arguments.only, look_at_output(env, profile.get("words") or {})
            )
        )
    return CHECK_FAILED if has_failures(findings) else OK


def _check_peers(arguments: Arguments, env: Env, profile: Mapping[str, Any], host: Any) -> tuple[Any, ...]:
    """Return the findings about other hosts. Raises USAGE."""
    if not arguments.peers:
        return ()
    from entrypoints.decide.parallelism.hosts import read_reach
    from entrypoints.decide.records import Thresholds
    from entrypoints.serve.network_path import list_link_states
    from entrypoints.serve.peer_findings import as_findings, judge_peers
    from entrypoints.serve.peers import look_at_peers, parse_peers

    options = arguments.options
    check = parse_peers(arguments.peers, arguments.peer_ports, options.status_port, arguments.peers_wait)
    tell_line(f"checking {', '.join(check.peers)} for at most {check.wait:g} s; run the same check there now")
    observations, busy = look_at_peers(check)
    variables = read_reach(Thresholds(profile["thresholds"])).interfaces
    user_interfaces = {name: env[name] for name in variables if env.get(name)}
    return as_findings(
        judge_peers(check, observations, busy, user_interfaces, list_link_states(), host), profile.get("findings") or {}
    )


def _write_output(option: str, path: str, text: str) -> None:
    """Write what an option asks for to its file, or to standard output with -. Raises USAGE."""
    if path == "-":
        emit_text(text)
        return
    from entrypoints.core.folders import READABLE, replace_file

    try:
        if os.path.isfile(path) or not os.path.exists(path):
            replace_file(path, printable(text), READABLE)  # on the host, its reader is another user than the image's
        else:  # /dev/stdout, or a pipe: root could replace it
            with open(path, "w", encoding="utf-8") as file:
                file.write(printable(text))
    except OSError as error:
        raise EntrypointError(
            USAGE, f"{option} {path}: {error.strerror}", "name a file in a writable folder"
        ) from error


def _run_explain(arguments: Arguments, env: Env) -> int:
    from functools import partial

    from entrypoints.checks.symptoms import add_failures
    from entrypoints.cli.explainverb import run_explain

    profile = add_failures(read_profile(env), _read_image_file(env, "failures.json") or {})
    as_json = emit_json if arguments.options.json else None
    return run_explain(
        arguments.vllm, _localize_profile(profile, arguments, env), partial(read_vllm_lists, env), as_json
    )


def _run_facts(arguments: Arguments, env: Env) -> int:
    from entrypoints.core.records import to_json

    facts, host, commands = _probe_host(arguments, env, read_profile(env))
    if arguments.record:
        from entrypoints.facts.record import write_recorded_host

        measured = _read_measured(host, facts)
        tell_line(f"recorded {write_recorded_host(host, commands, facts, arguments.record, measured)}")
    else:
        emit_json(to_json(facts))
    return OK


def _read_measured(host: Any, facts: Any) -> dict[str, str]:
    """Return the last comparison of the memory with a plan, by its path in a recorded host."""
    from entrypoints.serve.measured import RECORDED_AS, read_kept

    text = read_kept(facts.mounts["cache"].path) if host.live else host.text(RECORDED_AS)
    return {RECORDED_AS: text} if text else {}


def _probe_host(arguments: Arguments, env: Env, profile: Mapping[str, Any]) -> Any:
    """Return the facts, and the host and commands that they were read from."""
    from entrypoints.facts.facts import collect_facts
    from entrypoints.host.commands import Commands
    from entrypoints.host.host import Host

    if arguments.root:
        from entrypoints.facts.record import open_host

        host = open_host(arguments.root)
    else:
        host = Host()
    commands = Commands(host)
    return collect_facts(host, commands, profile, env), host, commands


def _add_causes(profile: Mapping[str, Any], facts: Any, arguments: Arguments, env: Env) -> dict[str, Any]:
    """Return the profile with what `explain` knows, if a probe failed; a start without failures does not read it."""
    if not facts.failures:
        return {**profile}
    from entrypoints.checks.symptoms import add_failures

    failure_data = _read_image_file(env, "failures.json") or {}
    return _localize_profile(add_failures(read_profile(env), failure_data), arguments, env)


def _run_health(arguments: Arguments, env: Env) -> int:
    from entrypoints.serve.health import main as health

    code: int = health(arguments.vllm, env)
    return code


def _run_cache(arguments: Arguments, env: Env) -> int:
    from entrypoints.cli.cacheverb import run_cache

    return run_cache(arguments.vllm, env)


def _run_convert(arguments: Arguments, env: Env) -> int:
    from pathlib import Path

    from entrypoints.cli.convertverb import run_convert

    return run_convert(
        arguments.vllm, make_program_environment(env), read_profile(env), Path(locate_image_file(env, "conversions"))
    )


def _run_bench(arguments: Arguments, env: Env) -> int:
    from entrypoints.cli import benchverb

    arguments = arguments._replace(intents=_add_workload(arguments.intents))
    profile, keys = read_profile(env), _read_access(arguments).keys
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    hub = _make_download_environment(make_program_environment(env), _probe_host(arguments, env, profile)[0], profile)
    whole = hub | ({API_KEY_VARIABLE: "\n".join(keys)} if keys else {})
    flags = tuple(sorted(read_vllm_lists(env).option_strings()))
    scene = benchverb.Scene(
        profile, env, whole, flags, package, tell_line, _write_output, lambda planned: _make_plan(planned, env, profile)
    )
    return benchverb.run_bench(arguments, scene)


def _run_fabric(arguments: Arguments, env: Env) -> int:
    from entrypoints.cli.fabricverb import run_fabric

    profile = read_profile(env)
    return run_fabric(
        arguments, make_program_environment(env), profile, _probe_host(arguments, env, profile)[0], tell_line
    )


def _run_version(arguments: Arguments, env: Env) -> int:
    from entrypoints.facts.packages import list_packages

    profile = read_profile(env)
    identity = {name: profile[name] for name in ("variant", "accelerator", "stack", "vllm")}
    packages = list_packages(profile["python"])
    if arguments.options.json:
        emit_json({**identity, "packages": packages})
    else:
        lines = dict.fromkeys(f"{name} {value}\n" for name, value in (*identity.items(), *packages.items()))
        emit_text("".join(lines))
    return OK


def _run_help(_arguments: Arguments, _env: Env) -> int:
    from entrypoints.cli.helptext import format_help

    emit_text(format_help())
    return OK


def _run_exec(arguments: Arguments, env: Env) -> int:
    """Replace this process by another program, with the environment that vLLM gets from the base. Raises USAGE.

    vllm-router with a key stays below this process.
    """
    command = arguments.vllm
    if command[0] == "vllm-router" and API_KEY_VARIABLE in env:
        from entrypoints.serve.router import run_router

        return run_router(command[1:], make_program_environment(env), read_profile(env)["python"])
    try:
        os.execvpe(command[0], command, make_program_environment(env))  # noqa: S606 - the user's own command
    except (OSError, ValueError) as error:
        from difflib import get_close_matches

        close = get_close_matches(command[0], VERBS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"verbs: {', '.join(VERBS)}"
        message = (
            f"unknown verb {command[0]!r}, and no such command can be run: {getattr(error, 'strerror', '') or error}"
        )
        raise EntrypointError(USAGE, message, hint) from error


_RUN = {
    "serve": _run_serve,
    "plan": _run_plan,
    "check": _run_check,
    "facts": _run_facts,
    "warm": _run_warm,
    "convert": _run_convert,
    "bench": _run_bench,
    "fabric": _run_fabric,
    "cache": _run_cache,
    "explain": _run_explain,
    "health": _run_health,
    "version": _run_version,
    "help": _run_help,
    "exec": _run_exec,
}


# --- files of the image ---------------------------------------------------------------------------------------------


def locate_profile(env: Env) -> str:
    """Return the path of the profile: DRYDOCK_PROFILE, or else next to the package."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return env.get("DRYDOCK_PROFILE") or os.path.join(os.path.dirname(package), "profile.json")


def locate_image_file(env: Env, name: str) -> str:
    """Return the path of another of the image's files, which are in the folder of the profile."""
    return os.path.join(os.path.dirname(locate_profile(env)), name)


def _read_image_file(env: Env, name: str) -> Any:
    """Return the value of a JSON file that is written when the image is built; None if there is none."""
    try:
        with open(locate_image_file(env, name), encoding="utf-8") as file:
            return json.loads(file.read())
    except FileNotFoundError:
        return None


def read_profile(env: Env) -> dict[str, Any]:
    """Read the image's profile, environment and packages. Raises USAGE if there is no profile."""
    path = locate_profile(env)
    try:
        with open(path, encoding="utf-8") as file:
            profile: dict[str, Any] = json.loads(file.read())
    except (OSError, ValueError) as error:
        raise EntrypointError(
            USAGE, f"{path}: {error}, expected the image's profile", "unset DRYDOCK_PROFILE"
        ) from error
    return {**profile, "environment": read_environment(env), "packages": read_packages(profile["python"])}


def _read_localized_profile(arguments: Arguments, env: Env) -> dict[str, Any]:
    """Read the profile, with texts in the user's language. Raises USAGE."""
    return _localize_profile(read_profile(env), arguments, env)


def _localize_profile(profile: dict[str, Any], arguments: Arguments, env: Env) -> dict[str, Any]:
    """Return a profile with texts in the user's language; what programs read is English unless --lang says otherwise.

    Raises USAGE.
    """
    from entrypoints.core.language import ENGLISH, translate_profile

    for_programs = arguments.options.json or arguments.options.fix_script or arguments.junit
    return translate_profile(profile, arguments.language or (ENGLISH if for_programs else ""), env)


def read_packages(python: str) -> str:
    """Return a digest of the names and versions of an interpreter's packages, which differs between builds.

    Empty if there are none, or they cannot be listed.
    """
    from entrypoints.cache.plan import compute_short_digest

    names = _list_dist_folders(python)
    return compute_short_digest("\n".join(names)) if names else ""


def _list_dist_folders(python: str) -> list[str]:
    """Return the sorted names of an interpreter's folders NAME-VERSION.dist-info; none if they cannot be listed."""
    lib = os.path.join(os.path.dirname(os.path.dirname(python)), "lib")
    try:
        folders = [os.path.join(lib, name, "site-packages") for name in os.listdir(lib) if name.startswith("python3.")]
        return sorted(name for folder in folders for name in os.listdir(folder) if name.endswith("-info"))
    except OSError:
        return []


def read_environment(env: Env) -> dict[str, Any]:
    """Read the variables that the base image's scripts export, recorded when the image was built."""
    return _read_image_file(env, "environment.json") or {}


def make_program_environment(env: Env) -> dict[str, str]:
    """Return the environment of a program that runs without a plan; what the user set stays.

    It has the variables that the base image's scripts export, and a home folder that no other user can write to.
    """
    from entrypoints.core.folders import choose_private_home

    whole = {**env, "HOME": choose_private_home(env)}
    saved = read_environment(env)
    if not saved:
        return whole
    from entrypoints.core.exported import choose_exported_variables

    return {**whole, **choose_exported_variables(saved, env)}


def read_vllm_lists(env: Env) -> VllmLists:
    """Read what this image's vLLM says of itself, recorded when the image was built; empty if it is not known."""
    recorded = _read_image_file(env, "vllm.json") or {}
    assumed = recorded.pop("assumed", "")
    return VllmLists(recorded, assumed)
