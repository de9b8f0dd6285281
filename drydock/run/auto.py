"""`--target auto`: the variant that fits the devices and the driver of a machine, and why not the others.

The rule, in order:

1. The accelerator is the one whose devices are found; without any it is the processor.
2. A variant fits if it has an image for the machine's architecture, its libraries have code for the cards, as far as
   that was read, and none of its checks of versions and cards is FAIL: those say which drivers and cards it needs.
3. Of those that fit, the one that matrix.yaml names for these cards (`cards`), then the accelerator's default, then the
   newest vLLM.

So no name of a card stands here. Facts and findings come from the entrypoint, as in the container.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from packaging.version import Version

from drydock.build.build_job import ARCHITECTURES
from drydock.config.matrix import find_variant, read_matrix
from drydock.core.console import log
from drydock.core.errors import HostError, InputError, TargetError
from drydock.core.project import Project
from drydock.model.variant import Variant
from entrypoints.checks.code_for_cards import COMPILED, NO_CODE
from entrypoints.checks.findings import MACHINE_FACTS
from entrypoints.plan.other_rows import strike_foreign_rows

AUTO = "auto"
PROCESSOR = "cpu"
"""The accelerator of a machine without devices."""

Facts = Mapping[str, Any]
"""What `facts` prints: entrypoints/core/records.py, Facts."""

Ask = Callable[[Variant, str], Any]
"""Variant and verb (facts, check) → what the entrypoint prints."""

_DECIDING = ("versions.", *MACHINE_FACTS)
"""Facts about drivers, cards and processors, with which a plan ends too if they are FAIL."""


class Fit(NamedTuple):
    """How a variant fits a machine."""

    variant: Variant
    against: tuple[str, ...]
    """Why it does not; empty if it fits."""
    cautions: tuple[str, ...]
    """What its checks of versions and cards warn of."""
    advice: str
    """How to make it fit; empty if nothing can."""


class Choice(NamedTuple):
    """The variant that fits best, and the reasons, one line each."""

    variant: Variant
    reasons: tuple[str, ...]


def resolve_target(project: Project, target: str, host: str = "") -> Variant:
    """Return the variant that a target means. For auto, choose it for a recorded host, or else for this machine.

    The reasons go to standard error. Raises TargetError, HostError, and InputError if the host cannot be read.
    """
    variants = read_matrix(project)
    if target != AUTO:
        return find_variant(variants, target)
    from drydock.run import entrypoint  # noqa: PLC0415 - it imports how containers are started; a named row needs none

    choice = choose_variant(variants, lambda variant, verb: entrypoint.ask_entrypoint(project, variant, verb, host))
    for reason in choice.reasons:
        log(f"auto: {reason}")
    return choice.variant


def resolve_id(project: Project, target: str, host: str = "") -> str:
    """Return the id of the variant that auto means, and any other target as it is. Raises as resolve does."""
    if target == AUTO:
        return resolve_target(project, target, host).id
    if host:
        raise InputError("--root is the recorded host to choose a variant for", hint="add --target auto")
    return target


def choose_variant(variants: Sequence[Variant], ask: Ask) -> Choice:
    """Choose a variant for the machine that `ask` looks at.

    Raises HostError if no variant fits, or devices cannot be read; TargetError if several accelerators would do.
    """
    candidates = {item.accelerator: item for item in variants if item.default and _is_candidate(item)}
    facts_by_accelerator = _probe_accelerators([*candidates.values()], ask)
    present = [name for name, facts in facts_by_accelerator.items() if facts["devices"]]
    _check_readable(facts_by_accelerator, present, lambda name: ask(candidates[name], "check"))
    fits = {
        name: _judge_all(variants, name, facts_by_accelerator[name], ask)
        for name in present or ({PROCESSOR} & {*facts_by_accelerator})
    }
    usable = {name: of for name in fits if (of := [fit for fit in fits[name] if not fit.against])}
    if not usable:
        raise _nothing_fits(variants, facts_by_accelerator, fits)
    if len(usable) > 1:
        raise TargetError(
            *(_describe_machine(name, facts_by_accelerator[name]) for name in usable),
            hint=f"choose one: {' or '.join(f'--target {name}' for name in usable)}",
        )
    accelerator, fitting = next(iter(usable.items()))
    best = min(fitting, key=lambda fit: _make_rank_key(fit.variant, facts_by_accelerator[accelerator]))
    return Choice(best.variant, (*_explain_variant_choice(best, fits, facts_by_accelerator),))


def _is_candidate(variant: Variant) -> bool:
    return bool(variant.run.devices or variant.run.gpus) or variant.accelerator == PROCESSOR


def _find_remedy(findings: Sequence[Mapping[str, Any]], failure: Mapping[str, Any]) -> str:
    """Return what a check says to do about a probe's failure; empty if no finding is about it."""
    remedies = (finding["remediation"] for finding in findings if finding["found"] == failure["found"])
    return str(next(remedies, "")).rstrip(".")


def _probe_accelerators(variants: Sequence[Variant], ask: Ask) -> dict[str, Facts]:
    """Return the facts, by accelerator. The probes run at the same time: each may wait for its vendor's tool."""
    with ThreadPoolExecutor() as pool:
        facts = pool.map(lambda variant: ask(variant, "facts"), variants)
        return dict(zip((variant.accelerator for variant in variants), facts, strict=True))


def _check_readable(
    facts_by_accelerator: Mapping[str, Facts],
    present: Sequence[str],
    check: Callable[[str], Sequence[Mapping[str, Any]]],
) -> None:
    """Check that nothing hides a device, or what kind of card it is. Raises HostError, with the check's remedy.

    A probe that found nothing and failed at nothing, or at what every probe reads, found a machine without its devices.
    `check` returns what the entrypoint's check finds, by accelerator: it knows causes and remedies of some failures.
    """
    unknown = [
        name for name in present if not all(card["architecture"] for card in facts_by_accelerator[name]["devices"])
    ]
    unread = [
        (name, failure)
        for name in (unknown if present else facts_by_accelerator)
        for failure in facts_by_accelerator[name]["failures"]
        if not all(failure in facts["failures"] for facts in facts_by_accelerator.values())
    ]
    if unread:
        messages = [
            f"{name}: {failure['where']}: {failure['found']}, expected {failure['expected']}"
            for name, failure in unread
        ]
        findings = {name: check(name) for name in dict.fromkeys(name for name, _ in unread)}
        remedies = dict.fromkeys(filter(None, (_find_remedy(findings[name], failure) for name, failure in unread)))
        advice = "; ".join(remedies)
        hint = f"{f'{advice}; ' if advice else 'correct this, '}or name a target: ./inv matrix lists them"
        raise HostError(*messages, hint=hint)


# --- which variants fit ---------------------------------------------------------------------------------------------


def _judge_all(variants: Sequence[Variant], accelerator: str, facts: Facts, ask: Ask) -> list[Fit]:
    candidates = [variant for variant in variants if variant.accelerator == accelerator]
    with ThreadPoolExecutor() as pool:
        return [*pool.map(lambda variant: _judge_variant(variant, facts, ask(variant, "check")), candidates)]


def _judge_variant(variant: Variant, facts: Facts, findings: Sequence[Mapping[str, Any]]) -> Fit:
    machine = facts["processor"]["architecture"]
    if ARCHITECTURES.get(machine, f"linux/{machine}") not in variant.platforms:
        return Fit(variant, (f"it is for {' and '.join(variant.platforms)}, this machine is {machine}",), (), "")
    deciding = {NO_CODE, COMPILED, *(check.id for check in variant.checks if check.fact.startswith(_DECIDING))}
    relevant = [finding for finding in findings if finding["id"] in deciding]
    failed = [finding for finding in relevant if finding["severity"] == "FAIL"]
    return Fit(
        variant,
        tuple(_summarise_finding(finding) for finding in failed),
        tuple(
            f"{_summarise_finding(finding)}: {finding['remediation']} ({finding['id']})"
            for finding in relevant
            if finding["severity"] == "WARN"
        ),
        failed[0]["remediation"] if failed else "",
    )


def _summarise_finding(finding: Mapping[str, Any]) -> str:
    """Return what a check found and expected, without the branch of the facts: driver = 1.22.0, expected 1.23."""
    if finding["id"] in (NO_CODE, COMPILED):
        return str(finding["text"]).partition(",")[0]
    return f"{finding['found'].partition('.')[2]}, expected {finding['expected']}"


def _nothing_fits(
    variants: Sequence[Variant], facts_by_accelerator: Mapping[str, Facts], fits: Mapping[str, Sequence[Fit]]
) -> HostError:
    if not fits:  # a matrix without images for processors
        return HostError(
            f"found no device of {', '.join(facts_by_accelerator)}", hint="name a target: ./inv matrix lists them"
        )
    descriptions = [_describe_machine(accelerator, facts_by_accelerator[accelerator]) for accelerator in fits]
    excluded = [fit for of in fits.values() for fit in of]
    advice = next((fit.advice for fit in sorted(excluded, key=lambda fit: not fit.variant.default) if fit.advice), "")
    machine = next(iter(facts_by_accelerator.values()))["processor"]["architecture"]
    advice = strike_foreign_rows(advice, machine, lambda target: find_variant(variants, target).platforms)
    if PROCESSOR in fits:
        hint = "add a variant with this platform to matrix.yaml"
    else:
        hint = f"{advice or 'name a target'}; --target {PROCESSOR} serves without the cards"
    return HostError(*descriptions, *(f"not {fit.variant.id}: {'; '.join(fit.against)}" for fit in excluded), hint=hint)


def _make_rank_key(variant: Variant, facts: Facts) -> tuple[bool, bool, list[int], str]:
    """Return a key that sorts the best variant first."""
    newest = [-number for number in Version(variant.vllm.version).release]
    return not _is_meant(variant, facts), not variant.default, newest, variant.id


def _is_meant(variant: Variant, facts: Facts) -> bool:
    """Return whether matrix.yaml names a variant for these cards: for every kind of them."""
    return _list_card_kinds(facts) <= {*variant.cards}


def _list_card_kinds(facts: Facts) -> set[str]:
    """Return the cards' architectures; without cards, the processor's."""
    return {device["architecture"] for device in facts["devices"]} or {facts["processor"]["architecture"]}


# --- reasons --------------------------------------------------------------------------------------------------------


def _explain_variant_choice(
    best: Fit, fits: Mapping[str, Sequence[Fit]], facts_by_accelerator: Mapping[str, Facts]
) -> list[str]:
    """Say what was found, what was chosen, and why nothing else: in detail where the device exists."""
    accelerator = best.variant.accelerator
    absent = [name for name in facts_by_accelerator if name not in (*fits, PROCESSOR)]
    other_fits = [fit for of in fits.values() for fit in of if fit is not best]
    also = [fit.variant.id for fit in other_fits if not fit.against]
    return [
        *(_describe_machine(name, facts_by_accelerator[name]) for name in fits),
        f"{best.variant.id}: {_explain_best(best.variant, facts_by_accelerator[accelerator])}",
        *(f"warning: {caution}" for caution in best.cautions),
        *(f"not {fit.variant.id}: {'; '.join(fit.against)}" for fit in other_fits if fit.against),
        *([f"these fit too: {', '.join(also)}"] if also else []),
        *([f"no device of {', '.join(absent)}"] if absent else []),
    ]


def _explain_best(variant: Variant, facts: Facts) -> str:
    if _is_meant(variant, facts):
        return f"matrix.yaml names it for {' and '.join(sorted(_list_card_kinds(facts)))}"
    return f"the default of {variant.accelerator}" if variant.default else "the newest vLLM of those that fit"


def _describe_machine(accelerator: str, facts: Facts) -> str:
    """Describe the devices and the driver."""
    machine = facts["processor"]["architecture"]
    names = sorted({str(device["name"] or device["architecture"] or "card") for device in facts["devices"]})
    if not names:
        return f"found no accelerator on this {machine} machine"
    driver = facts["versions"].get("driver")
    return f"found {len(facts['devices'])} x {' and '.join(names)} ({accelerator}), " + (
        f"driver {driver}, {machine}" if driver else machine
    )
