"""`serve MODEL [VLLM FLAGS]`, the default verb: facts → findings → plan → caches → vLLM and its supervision. IO.

drydock's options are in request/arguments.py; all other flags are vLLM's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from entrypoints.checks.findings import format_findings_log, has_failures, sort_worst_first
from entrypoints.core.errors import CHECK_FAILED, MODEL, USAGE, EntrypointError
from entrypoints.core.language import translate_text
from entrypoints.core.parse import parse_version_numbers
from entrypoints.core.text import print_message, tell_user
from entrypoints.facts.image_files import read_localized_profile
from entrypoints.plan.command_line_plan import plan_command_line
from entrypoints.plan.plan_text import format_reasons_text, select_problems
from entrypoints.request.arguments import Arguments
from entrypoints.request.vllm_flags import UserFlags
from entrypoints.serve.launch import serve_plan

Env = Mapping[str, str]

_FILE_FLAGS = ("--chat-template", "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs")
"""What vLLM and its server open after the weights are loaded. Source: vLLM 0.32 entrypoints/openai/api_server.py."""
_TEMPLATE_MARKS = frozenset("{}\n")
"""A chat template with one of them is no path. Source: vLLM 0.32 entrypoints/chat_utils.py, _load_chat_template."""
_HELP_IN_PARTS = (0, 11)
"""The first vLLM whose --help lists groups, and --help=all flags. To 0.10.2, `all` is a word that names contain."""


def run_serve(arguments: Arguments, env: Env) -> int:
    """Start vLLM and supervise it until it ends; return its exit code. Raises what planning and launching raise."""
    return start_vllm(arguments, env, serve_plan)


def start_vllm(arguments: Arguments, env: Env, launch: Callable[..., int]) -> int:
    """Plan, say what is wrong and why each setting is as it is, then launch; `warm` does the same with another launch.

    Raises MODEL and USAGE for a file that does not exist, and what planning and launching raise.
    """
    profile = read_localized_profile(arguments, env)
    if any(word.partition("=")[0] == "--help" for word in arguments.vllm):
        return _print_vllm_help(arguments, env, profile)
    if not arguments.options.recorded:
        _check_named_files(profile, env)
    facts, _, user_flags, plan = plan_command_line(arguments, env, profile)
    if not arguments.options.recorded:
        _check_files_of_flags(user_flags)
    words = profile.get("words") or {}
    problems = sort_worst_first(select_problems(plan.findings))
    tell_user(format_findings_log(problems, words) + format_reasons_text(plan, words))
    if arguments.options.strict and has_failures(plan.findings):
        print_message(translate_text(words, "not started: a check is FAIL, and --strict is set"))
        return CHECK_FAILED
    return launch(plan, profile, facts, env, arguments.options)


def _print_vllm_help(arguments: Arguments, env: Env, profile: Mapping[str, Any]) -> int:
    """Replace this process by vLLM's own help, which needs no model and no plan. Raises USAGE."""
    from entrypoints.verbs.exec_verb import run_exec

    in_parts = parse_version_numbers(profile["vllm"]) >= _HELP_IN_PARTS
    words = [word for word in arguments.vllm if word.partition("=")[0] == "--help"] if in_parts else ["--help"]
    return run_exec(arguments._replace(vllm=(profile["python"], "-m", profile["module"], *words)), env)


def _check_named_files(profile: Mapping[str, Any], env: Env) -> None:
    """Check that files which variables name exist: vLLM would look for them minutes later. Raises MODEL."""
    for name, hint in profile["variables"]["files"].items():
        path = env.get(name)
        if path and not os.path.isfile(path):
            raise EntrypointError(MODEL, f"{name}={path}: no such file", hint)


def _check_files_of_flags(user_flags: UserFlags) -> None:
    """Check that files which flags name by a path with a slash exist: vLLM opens them minutes later. Raises USAGE.

    A name without a slash may be one of vLLM's own chat templates.
    """
    for flag in filter(None, map(user_flags.flags.get, _FILE_FLAGS)):
        path = str(flag.value)
        if "/" not in path or _TEMPLATE_MARKS & set(path) or os.path.isfile(path):
            continue
        mount = f"docker run -v ./{os.path.basename(path)}:{os.path.abspath(path)}:ro …"
        hint = f"{mount}, with the file of that name on the host"
        raise EntrypointError(USAGE, f"{flag.name} {path}: no such file", hint)
