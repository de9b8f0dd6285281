"""What a plan means, before its command: what serves where, how much at a time, what to look at, what changes it. Pure.

Every line begins with #, so that what `plan` prints stays a command that a shell takes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from entrypoints.checks.findings import list_asker_ids, sort_worst_first
from entrypoints.core.language import Words, translate_phrase
from entrypoints.core.records import Facts, Finding, Reason, ServePlan
from entrypoints.core.settings_precedence import COMMAND_LINE, ENVIRONMENT, RECIPE
from entrypoints.plan.recipes import SWITCHED_OFF
from entrypoints.request.flags import DATA, EXPERT, LENGTH, PIPELINE, SEQUENCES, TENSOR

SIZES = {TENSOR: "TP", PIPELINE: "PP", DATA: "DP"}


class ServedLoad(NamedTuple):
    """How long and how many requests a plan serves at a time."""

    length: int
    """Tokens of the longest request, with its answer; 0 if only vLLM knows."""
    requests: int
    """Requests of that length at a time; 0 if only vLLM knows."""
    tokens: int
    """Tokens that the KV cache of all engines holds; 0 if only vLLM knows."""
    is_limited: bool
    """Whether --max-num-seqs, and not the memory, limits the requests."""


def settings_of(plan: ServePlan) -> dict[str, str]:
    """Return setting → value of all that the plan gives a reason for."""
    return {reason.setting: reason.value for reason in plan.reasons}


def measure_load(plan: ServePlan) -> ServedLoad:
    """Return how long and how many requests a plan serves at a time."""
    settings = settings_of(plan)
    engines = int(settings.get(DATA) or 1)
    use = plan.uses[0] if plan.uses else None
    if use is None or not use.length or not use.tokens:
        return ServedLoad(use.length if use else 0, 0, 0, is_limited=False)
    fitting, limit = use.tokens // use.length, settings.get(SEQUENCES, "")
    is_limited = limit.isdecimal() and int(limit) < fitting
    requests = (int(limit) if is_limited else fitting) * engines
    return ServedLoad(use.length, requests, use.tokens * engines, is_limited)


def split_words(settings: Mapping[str, str]) -> str:
    """Return the parallelism in short: TP 8 x DP 2."""
    sizes = [f"{short} {settings[flag]}" for flag, short in SIZES.items() if settings.get(flag, "1") != "1"]
    experts = settings.get(EXPERT) == "true"
    return " x ".join(sizes or ["TP 1"]) + (" + EP" if experts else "")


def devices_text(facts: Facts, numbers: Iterable[int] | None = None) -> str:
    """Return the devices, or else the processors, in words: 8 x NVIDIA H100 80GB HBM3; with numbers, only these."""
    number_set = None if numbers is None else {*numbers}
    kinds: dict[str, int] = {}
    for device in facts.devices:
        if number_set is None or device.number in number_set:
            name = device.name or device.architecture
            kinds[name] = kinds.get(name, 0) + 1
    processor = facts.processor.model or facts.processor.architecture
    kinds = kinds or {processor: len({cpu.socket for cpu in facts.cpus}) or 1}
    return ", ".join(f"{count} x {name}" for name, count in kinds.items())


def summary_text(profile: Mapping[str, Any], facts: Facts, plan: ServePlan) -> str:
    """Return at most six lines above the command."""
    words: Words = profile.get("words") or {}
    lines = (
        _format_served_line(profile, facts, plan, words),
        _load_text(measure_load(plan), words),
        _worst_text(plan.findings, list_asker_ids(profile), words),
        *_list_recipe_lines(plan, words),
        translate_phrase(
            words, "to change it: {}, or any flag of vLLM; what you set wins", ", ".join(_list_free_settings(plan))
        ),
    )
    return "".join(f"# {line}\n" for line in lines) + "\n"


def _format_served_line(profile: Mapping[str, Any], facts: Facts, plan: ServePlan, words: Words) -> str:
    numbers = [use.number for use in plan.uses] if facts.devices and plan.uses else None
    where = devices_text(facts, numbers)
    hosts = len(plan.ranks) or (plan.group.hosts if plan.group else 0)
    if hosts > 1:
        where = translate_phrase(words, "{} on each of {} hosts", where, str(hosts))
    how = split_words(settings_of(plan))
    return translate_phrase(
        words, "{} on {}, {}, with vLLM {} ({})", plan.model, where, how, profile["vllm"], profile["variant"]
    )


def _load_text(load: ServedLoad, words: Words) -> str:
    if not load.length:
        return translate_phrase(words, "only vLLM knows how long and how many requests it serves at a time")
    if not load.requests:
        return translate_phrase(words, "requests of up to {} tokens, prompt and answer together", f"{load.length:,}")
    requests = f"{load.requests:,}"
    limit = translate_phrase(words, "{} of that length at a time, more if shorter", requests)
    if load.is_limited:
        limit = translate_phrase(words, "{} at a time (--max-num-seqs)", requests)
    return translate_phrase(
        words, "requests of up to {} tokens, prompt and answer together; {}", f"{load.length:,}", limit
    )


def _worst_text(findings: Iterable[Finding], of_asker: Collection[str], words: Words) -> str:
    """Return the worst finding of the host; of the container in which someone asks only the id."""
    serious = [
        finding for finding in sort_worst_first(findings, of_asker) if finding.severity in ("FAIL", "WARN", "UNKNOWN")
    ]
    text = translate_phrase(words, "no finding needs attention")
    if serious and serious[0].id not in of_asker:
        worst = serious[0]
        return translate_phrase(words, "look at {} {}: {}", worst.severity, worst.id, worst.text)
    if serious:
        ids = ", ".join(f"{finding.severity} {finding.id}" for finding in serious)
        text = translate_phrase(
            words, "no finding of the host needs attention; of this container and its start: {}", ids
        )
    return text


def _list_recipe_lines(plan: ServePlan, words: Words) -> Iterator[str]:
    """Yield which recipe sets what, and what it switches off that is else on."""
    by_recipe = [reason for reason in plan.reasons if reason.origin == RECIPE]
    if not by_recipe:
        return
    settings = ", ".join(_format_recipe_setting(reason) for reason in by_recipe)
    yield translate_phrase(words, "{}, sets: {}", by_recipe[0].because, settings)
    off = [reason for reason in by_recipe if (reason.setting, reason.value) in SWITCHED_OFF]
    if off:
        losses = translate_phrase(words, "; ").join(
            translate_phrase(words, "{} (not {})", _format_recipe_setting(reason), reason.instead[0]) for reason in off
        )
        yield translate_phrase(words, "it switches off what vLLM has on: {}", losses)


def _format_recipe_setting(reason: Reason) -> str:
    """Return a setting of a recipe as it is typed."""
    if reason.value == "true":
        return reason.setting
    if reason.value == "false":
        return f"--no-{reason.setting.removeprefix('--')}"
    return f"{reason.setting}{' ' if reason.setting.startswith('--') else '='}{reason.value}"


def _list_free_settings(plan: ServePlan) -> Iterator[str]:
    """Yield what changes length, number of requests and speed, as far as the user has not set it."""
    by_user = {reason.setting for reason in plan.reasons if reason.origin in (COMMAND_LINE, ENVIRONMENT)}
    yield from (flag for flag in (LENGTH, SEQUENCES, TENSOR) if flag not in by_user)
    yield "--optimize latency|throughput"
