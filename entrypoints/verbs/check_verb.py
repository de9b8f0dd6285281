"""`check [--peers A,B]`: prints findings and how to fix them; exit code 3 if one is FAIL. IO.

Its options are in request/arguments.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entrypoints.checks.causes import read_profile_with_failures
from entrypoints.checks.code_for_cards import list_cards
from entrypoints.checks.findings import format_junit, has_failures, list_asker_ids, make_finding
from entrypoints.checks.grants import examine_facts
from entrypoints.core.errors import CHECK_FAILED, OK
from entrypoints.core.output import emit_json, write_output
from entrypoints.core.records import Facts, Finding, to_json
from entrypoints.core.text import emit_printable, emit_text, tell_user
from entrypoints.facts.facts import probe_host
from entrypoints.facts.image_files import read_localized_profile, read_vllm_lists
from entrypoints.host.host import Host
from entrypoints.plan.other_rows import judge_code
from entrypoints.plan.plan import find_host_refusal
from entrypoints.request.arguments import Arguments

Env = Mapping[str, str]
Profile = Mapping[str, Any]


def run_check(arguments: Arguments, env: Env) -> int:
    """Check this host, or a recorded one, and with --peers other hosts. Raises USAGE."""
    profile = read_localized_profile(arguments, env)
    facts, host, _ = probe_host(arguments.root, profile, env)
    if facts.failures:
        profile = read_profile_with_failures(arguments, env)
    texts, words = profile.get("findings") or {}, profile.get("words") or {}
    notices = judge_code(read_vllm_lists(env), facts) if list_cards(facts) else ()  # the lists are large
    code = (make_finding(texts, notice, words=words) for notice in notices)
    findings = (*find_host_refusal(profile, facts, env), *examine_facts(profile, facts), *code)
    if arguments.peers:
        findings = (*findings, *_check_peers(arguments, env, profile, host))
    if arguments.options.fix_script:
        from entrypoints.checks.fixes import format_fix_script

        emit_text(format_fix_script(findings, profile["variant"]))
        return OK  # a script was asked for, whatever the findings are
    _write_files(arguments, profile, facts, findings)
    _print_findings(arguments, env, profile, findings)
    return CHECK_FAILED if has_failures(findings) else OK


def _check_peers(arguments: Arguments, env: Env, profile: Profile, host: Host) -> tuple[Finding, ...]:
    """Return the findings about other hosts. Raises USAGE."""
    from entrypoints.decide.parallelism.hosts import read_reach
    from entrypoints.decide.records import Thresholds
    from entrypoints.serve.network_path import list_link_states
    from entrypoints.serve.peer_findings import as_findings, judge_peers
    from entrypoints.serve.peers import look_at_peers, parse_peers

    check = parse_peers(arguments.peers, arguments.peer_ports, arguments.options.status_port, arguments.peers_wait)
    tell_user(f"checking {', '.join(check.peers)} for at most {check.wait:g} s; run the same check there now")
    observations, busy = look_at_peers(check)
    variables = read_reach(Thresholds(profile["thresholds"])).interfaces
    user_interfaces = {name: env[name] for name in variables if env.get(name)}
    judged = judge_peers(check, observations, busy, user_interfaces, list_link_states(), host)
    return as_findings(judged, profile.get("findings") or {})


def _write_files(arguments: Arguments, profile: Profile, facts: Facts, findings: tuple[Finding, ...]) -> None:
    """Write what --junit and --html ask for. Raises USAGE."""
    if arguments.junit:
        write_output("--junit", arguments.junit, format_junit(findings, f"drydock.{profile['variant']}"))
    if arguments.html:
        from entrypoints.pages.page import render_check_page

        page = render_check_page(profile["variant"], facts, findings, list_asker_ids(profile))
        write_output("--html", arguments.html, page)


def _print_findings(arguments: Arguments, env: Env, profile: Profile, findings: tuple[Finding, ...]) -> None:
    """Print findings of the severities that --only names, unless a file is standard output already."""
    if arguments.options.json:
        selected_findings = [
            finding for finding in findings if not arguments.only or finding.severity in arguments.only
        ]
        emit_json([to_json(finding) for finding in selected_findings])
    elif "-" not in (arguments.junit, arguments.html):
        from entrypoints.checks.report import format_check_report, look_at_output

        look = look_at_output(env, profile.get("words") or {})
        emit_printable(format_check_report(findings, profile["variant"], arguments.only, look, list_asker_ids(profile)))
