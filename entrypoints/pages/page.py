"""A plan or findings as one self-contained HTML page, to look at, to print and to attach. Pure.

The answer comes first: what is served how, and the worst finding. The parts below say why.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from html import escape
from shlex import join

from entrypoints.checks.findings import SEVERITIES, sort_worst_first
from entrypoints.core.errors import EntrypointError
from entrypoints.core.records import Facts, Finding, RankPlan, ServePlan, Use
from entrypoints.core.redact import redact_text
from entrypoints.core.text import format_count
from entrypoints.pages.page_frame import (
    Figure,
    make_summary_figure,
    render_command,
    render_page,
    render_section,
    shorten_to_clause,
)
from entrypoints.pages.page_machine import render_links, render_machine, render_memory
from entrypoints.plan.plan_summary import devices_text, measure_load, settings_of, split_words
from entrypoints.plan.plan_text import redact_plan
from entrypoints.request.flags import DATA, PIPELINE, SEQUENCES, TENSOR

_OPEN = ("FAIL", "WARN", "UNKNOWN")
"""Findings that need attention; the others can be opened."""


def render_plan_page(variant: str, facts: Facts, plan: ServePlan, last: Collection[str] = ()) -> str:
    """Return the page of a plan: the answer, machine, memory, command with its reasons, and findings.

    Findings with an id in `last` come after all others, and are not in the answer.
    """
    redacted_plan = redact_plan(plan)
    settings = settings_of(redacted_plan)
    tensor = int(settings.get(TENSOR) or 1)
    cache = facts.mounts.get("cache")
    group = (
        (f"host {redacted_plan.group.rank} of {redacted_plan.group.hosts}, from 0, with its local ranks",)
        if redacted_plan.group
        else ()
    )
    other_ranks = [
        rank for rank in redacted_plan.ranks if not redacted_plan.group or rank.rank != redacted_plan.group.rank
    ]
    words = render_command(redacted_plan.env, redacted_plan.argv, redacted_plan.reasons, cache.path if cache else "")
    sections = (
        *_render_pictures(facts, redacted_plan.uses, tensor),
        render_section(
            "Command",
            "".join(map(_render_before_command, redacted_plan.before))
            + words
            + "".join(map(_render_rank, other_ranks)),
        ),
        render_section("Findings", _render_findings(redacted_plan.findings, last)),
    )
    answer = (*_list_answer_figures(redacted_plan, settings, tensor), _make_worst_figure(redacted_plan.findings, last))
    return render_page("Plan for", redacted_plan.model, (*_describe_host(variant, facts), *group), answer, sections)


def render_refusal_page(
    variant: str, facts: Facts, error: EntrypointError, findings: Iterable[Finding], last: Collection[str] = ()
) -> str:
    """Return the page of a model that does not fit: why, what would fit, machine and findings, as in a plan's.

    Such an error begins with the model's name.
    """
    all_findings = tuple(findings)
    model, _, because = redact_text(error.message).partition(": ")
    why = Figure("Does not fit", because, "fail")
    helps = (Figure("What helps", redact_text(error.hint)),) if error.hint else ()
    sections = (*_render_pictures(facts, (), 1), render_section("Findings", _render_findings(all_findings, last)))
    answer = (why, *helps, _make_worst_figure(all_findings, last))
    return render_page("Plan for", model, _describe_host(variant, facts), answer, sections)


def render_check_page(variant: str, facts: Facts, findings: Iterable[Finding], last: Collection[str] = ()) -> str:
    """Return the page of a check: findings, of which ids in `last` come last, and the machine."""
    all_findings = tuple(sorted(findings, key=lambda finding: finding.id in last))
    sections = (render_section("Findings", _render_findings(all_findings, last)), *_render_pictures(facts, (), 1))
    return render_page(
        "Check of", devices_text(facts), (f"image {variant}",), _make_count_figures(all_findings), sections
    )


def _describe_host(variant: str, facts: Facts) -> tuple[str, str]:
    return devices_text(facts), f"image {variant}"


def _render_pictures(facts: Facts, uses: tuple[Use, ...], tensor: int) -> tuple[str, ...]:
    pair = render_section("Memory", render_memory(facts, uses)) + render_section(
        "Links", render_links(facts, uses, tensor)
    )
    return (
        render_section("Machine", render_machine(facts, uses, tensor)),
        f'<div class="pair">{pair}</div>' if pair else "",
    )


# --- the answer -----------------------------------------------------------------------------------------------------


def _list_answer_figures(plan: ServePlan, settings: dict[str, str], tensor: int) -> tuple[Figure, ...]:
    """Return parallelism, longest request and requests at a time."""
    engines = int(settings.get(DATA) or 1)
    hosts = f" on {plan.group.hosts} hosts" if plan.group else ""
    ranks = format_count(tensor * int(settings.get(PIPELINE) or 1), "rank")
    copies = f"{engines} engines of {ranks}" if engines > 1 else f"{ranks} in one engine"
    why = next((f": {shorten_to_clause(reason.because)}" for reason in plan.reasons if reason.setting == TENSOR), "")
    split = Figure(split_words(settings), f"{copies}{hosts}{why}")
    load = measure_load(plan)
    if not load.length:
        return (split, Figure("Length unknown", "only vLLM knows it, and how many requests run at a time"))
    length = Figure(f"{load.length:,} tokens", "the longest request, with its answer")
    if not load.requests:
        return (split, length)
    why = f"({SEQUENCES})" if load.is_limited else "of this length, more if shorter"
    tokens = f"at a time {why}; the KV cache holds {load.tokens:,} tokens"
    return (split, length, Figure(f"{load.requests:,} request{'' if load.requests == 1 else 's'}", tokens))


def _make_worst_figure(findings: tuple[Finding, ...], last: Collection[str]) -> Figure:
    worst = next((finding for finding in sort_worst_first(findings) if finding.id not in last), None)
    return make_summary_figure(
        _count_by_severity(findings),
        f"{worst.id}: {shorten_to_clause(worst.text)}" if worst and worst.severity != "PASS" else "",
    )


def _make_count_figures(findings: tuple[Finding, ...]) -> tuple[Figure, ...]:
    """Return a figure for each severity, the worst first, with the first findings that need attention."""
    figures = []
    for severity, count in _count_by_severity(findings).items():
        first = [
            shorten_to_clause(finding.text)
            for finding in findings
            if finding.severity == severity and severity in _OPEN
        ][:2]
        omission = [f"and {count - len(first)} more"] if first and count > len(first) else []
        text = f"of {format_count(len(findings), 'check')}" if severity == "PASS" else "; ".join((*first, *omission))
        figures.append(Figure(f"{count} {severity}", text, severity.lower()))
    return tuple(figures)


def _count_by_severity(findings: tuple[Finding, ...]) -> dict[str, int]:
    counts = {name: sum(finding.severity == name for finding in findings) for name in SEVERITIES}
    return {name: count for name, count in counts.items() if count}


# --- other hosts, and findings --------------------------------------------------------------------------------------


def _render_before_command(words: tuple[str, ...]) -> str:
    return f"<pre>{escape(join(words))}</pre>"


def _render_rank(rank: RankPlan) -> str:
    body = "".join(map(_render_before_command, rank.before)) + render_command(rank.env, rank.argv, ())
    return f"<details><summary>The command of host {rank.rank}</summary>{body}</details>"


def _render_findings(findings: tuple[Finding, ...], last: Collection[str]) -> str:
    """List findings, the worst first; those that need no attention can be opened."""
    ordered = sort_worst_first(findings, last)
    urgent = "".join(_render_finding(finding) for finding in ordered if finding.severity in _OPEN)
    notes = [finding for finding in findings if finding.severity == "INFO"]
    passed = [finding for finding in findings if finding.severity == "PASS"]
    return (
        (f'<div class="findings">{urgent}</div>' if urgent else "<p>Nothing needs attention.</p>")
        + _render_folded(f"{len(notes)} INFO", notes)
        + _render_folded(f"{format_count(len(passed), 'check')} passed", passed)
    )


def _render_folded(title: str, findings: list[Finding]) -> str:
    if not findings:
        return ""
    body = "".join(map(_render_finding, findings))
    return f'<details><summary>{title}</summary><div class="findings">{body}</div></details>'


def _render_finding(finding: Finding) -> str:
    parts = [("found", finding.found), ("expected", finding.expected), ("fix", finding.remediation)]
    parts = parts[:1] if finding.severity == "PASS" else parts
    rows = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in parts if text)
    source = f"<p><small>Source: {escape(finding.source)}</small></p>" if finding.source else ""
    return (
        f'<article class="{finding.severity.lower()}"><h3><span>{finding.severity}</span> {finding.id}'
        f" <small>{escape(finding.scope)}</small></h3><p>{escape(finding.text)}</p><dl>{rows}</dl>{source}</article>\n"
    )
