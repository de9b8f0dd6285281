"""A plan as `plan` prints it: the command, the environment and the reasons, or JSON; without secrets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from entrypoints.checks.findings import IN_ENGLISH, INFO
from entrypoints.core.language import Words, translate_phrase
from entrypoints.core.records import Finding, RankPlan, ServePlan, to_json
from entrypoints.core.redact import redact_argv, redact_env, redact_value


def redact_plan(plan: ServePlan) -> ServePlan:
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


def make_plan_document(plan: ServePlan) -> dict[str, Any]:
    """Return the plan as `plan --json` prints it."""
    result: dict[str, Any] = to_json(redact_plan(plan))
    return result


def format_plan_text(plan: ServePlan, words: Words = IN_ENGLISH) -> str:
    """Format the command, the environment, the commands of several hosts, and one line for each reason."""
    public_plan = redact_plan(plan)
    ranks = "".join(_rank_text(rank) for rank in public_plan.ranks)
    return f"{_command_text(public_plan.env, public_plan.argv)}\n{ranks}{format_reasons_text(public_plan, words)}"


def _rank_text(rank: RankPlan) -> str:
    from shlex import join

    before = "".join(f"{join(words)}\n" for words in rank.before)
    return f"rank {rank.rank}:\n{before}{_command_text(rank.env, rank.argv)}\n"


def _command_text(env: Mapping[str, str], argv: tuple[str, ...]) -> str:
    from shlex import join, quote

    return "".join(f"{quote(name)}={quote(value)} \\\n" for name, value in env.items()) + f"{join(argv)}\n"


def format_reasons_text(plan: ServePlan, words: Words = IN_ENGLISH) -> str:
    """Format the reasons, one line each, with the rejected alternatives below."""
    return "".join(
        f"{reason.setting} = {reason.value}  [{reason.origin}] {reason.because}\n"
        + "".join(f"{translate_phrase(words, '    not {}', text)}\n" for text in reason.instead)
        for reason in redact_plan(plan).reasons
    )


def select_problems(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that need attention."""
    return tuple(finding for finding in findings if finding.severity in ("WARN", "FAIL", "UNKNOWN"))


def worth_reading(profile: Mapping[str, Any], findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that need attention, and what the decisions say of this plan (INFO)."""
    of_decisions = profile.get("findings") or {}
    return tuple(
        finding
        for finding in findings
        if select_problems((finding,)) or (finding.severity == INFO and finding.id in of_decisions)
    )
