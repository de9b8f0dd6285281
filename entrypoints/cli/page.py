"""A plan or findings as one self-contained HTML page, to look at, to print and to attach. Pure.

The answer comes first: what is served how, and the worst finding. The parts below say why.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from shlex import join

from entrypoints.checks.findings import SEVERITIES, worst_first
from entrypoints.cli.page_frame import Figure, command, frame, section, shortened, summary
from entrypoints.cli.page_machine import links, machine, memory
from entrypoints.core.errors import EntrypointError
from entrypoints.core.records import Facts, Finding, RankPlan, ServePlan, Use
from entrypoints.core.redact import redact_text
from entrypoints.core.text import counted
from entrypoints.plan.plan import redacted
from entrypoints.plan.plan_summary import devices_text, measure_load, settings_of, split_words
from entrypoints.request.flags import DATA, PIPELINE, SEQUENCES, TENSOR

_OPEN = ("FAIL", "WARN", "UNKNOWN")
"""Findings that need attention; the others can be opened."""


def plan_page(variant: str, facts: Facts, plan: ServePlan) -> str:
    """Return the page of a plan: the answer, machine, memory, command with its reasons, and findings."""
    shown = redacted(plan)
    settings = settings_of(shown)
    tensor = int(settings.get(TENSOR) or 1)
    cache = facts.mounts.get("cache")
    group = (f"host {shown.group.rank} of {shown.group.hosts}, from 0, with its local ranks",) if shown.group else ()
    others = [each for each in shown.ranks if not shown.group or each.rank != shown.group.rank]
    words = command(shown.env, shown.argv, shown.reasons, cache.path if cache else "")
    sections = (
        *_pictures(facts, shown.uses, tensor),
        section("Command", "".join(map(_before, shown.before)) + words + "".join(map(_rank, others))),
        section("Findings", _findings(shown.findings)),
    )
    answer = (*_answer(shown, settings, tensor), _worst(shown.findings))
    return frame("Plan for", shown.model, (*_about(variant, facts), *group), answer, sections)


def refusal_page(variant: str, facts: Facts, error: EntrypointError, findings: Iterable[Finding]) -> str:
    """Return the page of a model that does not fit: why, what would fit, machine and findings.

    Such an error begins with the model's name.
    """
    found = tuple(findings)
    model, _, because = redact_text(error.message).partition(": ")
    why = Figure("Does not fit", because, "fail")
    helps = (Figure("What helps", redact_text(error.hint)),) if error.hint else ()
    sections = (*_pictures(facts, (), 1), section("Findings", _findings(found)))
    return frame("Plan for", model, _about(variant, facts), (why, *helps, _worst(found)), sections)


def check_page(variant: str, facts: Facts, findings: Iterable[Finding]) -> str:
    """Return the page of a check: findings, and the machine."""
    found = tuple(findings)
    sections = (section("Findings", _findings(found)), *_pictures(facts, (), 1))
    return frame("Check of", devices_text(facts), (f"image {variant}",), _counts(found), sections)


def _about(variant: str, facts: Facts) -> tuple[str, str]:
    return devices_text(facts), f"image {variant}"


def _pictures(facts: Facts, uses: tuple[Use, ...], tensor: int) -> tuple[str, ...]:
    pair = section("Memory", memory(facts, uses)) + section("Links", links(facts, uses, tensor))
    return (section("Machine", machine(facts, uses, tensor)), f'<div class="pair">{pair}</div>' if pair else "")


# --- the answer -----------------------------------------------------------------------------------------------------


def _answer(plan: ServePlan, settings: dict[str, str], tensor: int) -> tuple[Figure, ...]:
    """Return parallelism, longest request and requests at a time."""
    engines = int(settings.get(DATA) or 1)
    hosts = f" on {plan.group.hosts} hosts" if plan.group else ""
    ranks = counted(tensor * int(settings.get(PIPELINE) or 1), "rank")
    copies = f"{engines} engines of {ranks}" if engines > 1 else f"{ranks} in one engine"
    why = next((f": {shortened(each.because)}" for each in plan.reasons if each.setting == TENSOR), "")
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


def _worst(findings: tuple[Finding, ...]) -> Figure:
    worst = worst_first(findings)[0] if findings else None
    return summary(
        _by_severity(findings), f"{worst.id}: {shortened(worst.text)}" if worst and worst.severity != "PASS" else ""
    )


def _counts(findings: tuple[Finding, ...]) -> tuple[Figure, ...]:
    """Return a figure for each severity, the worst first, with the first findings that need attention."""
    figures = []
    for severity, count in _by_severity(findings).items():
        first = [shortened(each.text) for each in findings if each.severity == severity and severity in _OPEN][:2]
        rest = [f"and {count - len(first)} more"] if first and count > len(first) else []
        text = f"of {counted(len(findings), 'check')}" if severity == "PASS" else "; ".join((*first, *rest))
        figures.append(Figure(f"{count} {severity}", text, severity.lower()))
    return tuple(figures)


def _by_severity(findings: tuple[Finding, ...]) -> dict[str, int]:
    counts = {name: sum(each.severity == name for each in findings) for name in SEVERITIES}
    return {name: count for name, count in counts.items() if count}


# --- other hosts, and findings --------------------------------------------------------------------------------------


def _before(words: tuple[str, ...]) -> str:
    return f"<pre>{escape(join(words))}</pre>"


def _rank(rank: RankPlan) -> str:
    body = "".join(map(_before, rank.before)) + command(rank.env, rank.argv, ())
    return f"<details><summary>The command of host {rank.rank}</summary>{body}</details>"


def _findings(findings: tuple[Finding, ...]) -> str:
    """List findings, the worst first; those that need no attention can be opened."""
    urgent = "".join(_finding(each) for each in worst_first(findings) if each.severity in _OPEN)
    notes = [each for each in findings if each.severity == "INFO"]
    passed = [each for each in findings if each.severity == "PASS"]
    return (
        (f'<div class="findings">{urgent}</div>' if urgent else "<p>Nothing needs attention.</p>")
        + _folded(f"{len(notes)} INFO", notes)
        + _folded(f"{counted(len(passed), 'check')} passed", passed)
    )


def _folded(title: str, findings: list[Finding]) -> str:
    if not findings:
        return ""
    body = "".join(map(_finding, findings))
    return f'<details><summary>{title}</summary><div class="findings">{body}</div></details>'


def _finding(finding: Finding) -> str:
    named = [("found", finding.found), ("expected", finding.expected), ("fix", finding.remediation)]
    named = named[:1] if finding.severity == "PASS" else named
    rows = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in named if text)
    source = f"<p><small>Source: {escape(finding.source)}</small></p>" if finding.source else ""
    return (
        f'<article class="{finding.severity.lower()}"><h3><span>{finding.severity}</span> {finding.id}'
        f" <small>{escape(finding.scope)}</small></h3><p>{escape(finding.text)}</p><dl>{rows}</dl>{source}</article>\n"
    )
