"""`plan MODEL [VLLM FLAGS]`: prints the command, the environment and each reason; starts nothing. IO.

drydock's options are in request/arguments.py; all other flags are vLLM's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entrypoints.checks.code_for_cards import NO_CODE
from entrypoints.checks.findings import (
    find_refused_settings,
    find_unsupported,
    format_findings,
    list_asker_ids,
    sort_worst_first,
)
from entrypoints.checks.grants import examine_facts
from entrypoints.core.errors import DOES_NOT_FIT, HOST, OK, REFUSED, EntrypointError
from entrypoints.core.output import emit_json, write_output
from entrypoints.core.records import to_json
from entrypoints.core.text import emit_text, tell_user
from entrypoints.facts.facts import probe_host
from entrypoints.facts.image_files import read_localized_profile, read_vllm_lists
from entrypoints.plan.command_line_plan import Planned, plan_command_line
from entrypoints.plan.other_rows import PLATFORMS, describe_fitting_rows, strike_foreign_rows
from entrypoints.plan.plan_summary import summary_text
from entrypoints.plan.plan_text import format_plan_text, make_plan_document, redact_plan, worth_reading
from entrypoints.request.arguments import Arguments
from entrypoints.request.vllm_lists import ACCEPT, VllmLists

Env = Mapping[str, str]
Profile = Mapping[str, Any]


def run_plan(arguments: Arguments, env: Env) -> int:
    """Print the plan, or what differs between two; let vLLM check it with --rehearse.

    Raises what planning raises, HOST and REFUSED, also for a plan that was printed.
    """
    if arguments.diff:
        return _print_plan_diff(arguments)
    profile = read_localized_profile(arguments, env)
    try:
        planned = plan_command_line(arguments, env, profile)
    except EntrypointError as error:
        if arguments.html and error.code == DOES_NOT_FIT:
            _write_refusal_page(arguments, env, profile, error)
        raise
    if arguments.html:
        from entrypoints.pages.page import render_plan_page

        write_output(
            "--html",
            arguments.html,
            render_plan_page(profile["variant"], planned.facts, planned.plan, list_asker_ids(profile)),
        )
    _print_plan(arguments, profile, planned)
    _refuse_plan(arguments, profile, planned, read_vllm_lists(env))  # last, so that a refused plan can be read
    if arguments.rehearse:
        _rehearse_plan(arguments, env, profile, planned)
    return OK


def _print_plan_diff(arguments: Arguments) -> int:
    from entrypoints.plan.diff import compare_plan_settings, format_changes, read_plan

    changes = compare_plan_settings(*map(read_plan, arguments.diff))
    if arguments.options.json:
        emit_json(to_json(changes))
    else:
        emit_text(format_changes(changes))
    return OK


def _write_refusal_page(arguments: Arguments, env: Env, profile: Profile, error: EntrypointError) -> None:
    """Write the page of a model that does not fit. Raises USAGE."""
    from entrypoints.pages.page import render_refusal_page

    facts = probe_host(arguments.root, profile, env).facts
    page = render_refusal_page(profile["variant"], facts, error, examine_facts(profile, facts), list_asker_ids(profile))
    write_output("--html", arguments.html, page)


def _print_plan(arguments: Arguments, profile: Profile, planned: Planned) -> None:
    """Print the plan for people or programs; with --rehearse, programs get it together with vLLM's answer."""
    facts, plan = planned.facts, planned.plan
    words = profile.get("words") or {}
    if arguments.options.json:
        if not arguments.rehearse:
            emit_json(make_plan_document(plan))
    elif arguments.html != "-":
        emit_text(f"{summary_text(profile, facts, redact_plan(plan))}{format_plan_text(plan, words)}")
        tell_user(
            format_findings(sort_worst_first(worth_reading(profile, plan.findings), list_asker_ids(profile)), words)
        )


def _refuse_plan(arguments: Arguments, profile: Profile, planned: Planned, lists: VllmLists) -> None:
    """Raise HOST for a machine that the image does not run on, REFUSED for settings that end vLLM's start.

    The user overrules each by the id of its finding.
    """
    findings = planned.plan.findings
    refused = tuple((REFUSED, finding, "") for finding in find_refused_settings(profile["findings"], findings))
    without_code = tuple(item for item in refused if item[1].id == NO_CODE)  # first: no driver changes it
    unsupported = find_unsupported(profile["checks"], findings)
    rows = describe_fitting_rows(lists, planned.facts) if unsupported else ""
    machine, platforms = planned.facts.processor.architecture, lists.lists.get(PLATFORMS, {})
    for code, finding, instead in (*without_code, *((HOST, finding, rows) for finding in unsupported), *refused):
        if finding.id not in arguments.accepted:
            overrule = f"{ACCEPT} {finding.id} plans for it all the same"
            remedy = strike_foreign_rows(finding.remediation, machine, lambda row: platforms.get(row, ()))
            hint = "; ".join(filter(None, (remedy, instead, overrule)))
            raise EntrypointError(code, f"{finding.id}: {finding.text}", hint)


def _rehearse_plan(arguments: Arguments, env: Env, profile: Profile, planned: Planned) -> None:
    """Let vLLM check the plan; print what it said, with --json the plan too. Raises REFUSED, HOST."""
    from entrypoints.plan.rehearse import REFUSES, Case, format_rehearsal, make_refusal, rehearse_plan
    from entrypoints.serve.launch import make_vllm_environment

    facts, model, plan = planned.facts, planned.model, planned.plan
    case = Case(profile, facts, model, plan, bool(arguments.root), arguments.rehearse_seconds)
    rehearsal = rehearse_plan(case, make_vllm_environment(plan, env), tell_user)
    if arguments.options.json:
        emit_json({**make_plan_document(plan), "rehearsal": to_json(rehearsal)})
    elif rehearsal.outcome != REFUSES:
        emit_text(format_rehearsal(rehearsal))
    if rehearsal.outcome == REFUSES:
        raise make_refusal(rehearsal)
