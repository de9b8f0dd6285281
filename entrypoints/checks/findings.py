"""Facts and checks (data), and notices of code → findings, as text, JSON or JUnit. Pure.

A check names a fact by its dotted path in the output of `facts`. The branch `derived` has values that are computed
from several facts (facts/derived.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from entrypoints.core.errors import INTERNAL, EntrypointError
from entrypoints.core.language import Words, translate_phrase, translate_text
from entrypoints.core.records import TOOL_OUTPUT, Facts, Failure, Finding, Notice, to_json
from entrypoints.core.text import format_one_line
from entrypoints.core.units import MIB
from entrypoints.facts.derived import UNLIMITED, derive_facts

PASS = "PASS"  # noqa: S105 - a severity
INFO = "INFO"
WARN = "WARN"
FAIL = "FAIL"
UNKNOWN = "UNKNOWN"
SEVERITIES = (FAIL, WARN, UNKNOWN, INFO, PASS)
"""The worst first."""
INDENT = " " * 8
"""Before the details of a finding."""


_NOWHERE: Mapping[str, str] = MappingProxyType({})
IN_ENGLISH: Words = MappingProxyType({})


def evaluate_checks(
    checks: Iterable[Mapping[str, Any]],
    facts: Facts,
    places: Mapping[str, str] = _NOWHERE,
    words: Words = IN_ENGLISH,
) -> tuple[Finding, ...]:
    """Compare facts with every check whose conditions are met, in order.

    `places` is where each fact is read in a container.
    """
    return judge_checks(checks, facts._asdict() | {"derived": derive_facts(facts)}, places, words)


def list_unread_facts(facts: Facts) -> tuple[Notice, ...]:
    """Return a notice for each failure of the probe: what should have been readable and was not."""
    return tuple(
        make_notice("PROBE-001", failure.found, failure.expected, where=failure.where, remedy=suggest_repair(failure))
        for failure in facts.failures
    )


def suggest_repair(failure: Failure) -> str:
    """Return what to do about a failure of the probe whose cause is not known."""
    if failure.expected != TOOL_OUTPUT:
        return f"make {failure.where} readable in the container, or mount it from the host"
    tool = failure.where.split()[0]
    return (
        f"run {tool} on the host: if it fails there too, look at the driver and at dmesg; if it works there, start the "
        "container with the options that `./inv run` prints, for devices and driver files"
    )


def make_notice(number: str, observed: str, expected: str, /, **values: str) -> Notice:
    """Make a notice of the finding with this id; `values` replace the names in braces in its text."""
    return Notice(number, observed, expected, values)


def make_finding(
    finding_texts: Mapping[str, Mapping[str, str]],
    what: Notice,
    *,
    good: bool | None = False,
    words: Words = IN_ENGLISH,
) -> Finding:
    """Make a finding of a notice, with the profile's text for its id.

    `good` is true if nothing is the matter, and None if that is not known.
    Raises INTERNAL if the profile lacks the id, or the values do not match the names in its text.
    """
    texts = finding_texts.get(what.id)
    if texts is None:
        raise EntrypointError(INTERNAL, f"profile.json: findings: no {what.id}", _MISMATCH)
    templates = (texts["text"], texts["passed"], texts["remediation"], texts["source"])
    unused = [name for name in what.values if not any(f"{{{name}}}" in template for template in templates)]
    if unused:
        raise EntrypointError(INTERNAL, f"profile.json: findings.{what.id}: no {{{unused[0]}}} in it", _MISMATCH)
    try:
        values = {name: translate_text(words, value) for name, value in what.values.items()}
        text, passed, remediation, source = (template.format_map(values) for template in templates)
    except KeyError as error:
        raise EntrypointError(INTERNAL, f"profile.json: findings.{what.id}: no value for {error}", _MISMATCH) from error
    severity, text = choose_outcome(texts["severity"], text, passed, good=good, words=words)
    found_text, expected_text = translate_text(words, what.found), translate_text(words, what.expected)
    stops = severity != PASS and bool(texts.get("stops"))
    return Finding(what.id, severity, text, found_text, expected_text, remediation, texts["scope"], source, stops=stops)


def choose_outcome(
    severity: str, text: str, passed: str, *, good: bool | None, words: Words = IN_ENGLISH
) -> tuple[str, str]:
    """Return the severity and the text of an outcome; `good` is None if it is not known."""
    if good is None:
        return UNKNOWN, translate_phrase(words, "This could not be checked: {}", passed)
    return (PASS, passed) if good else (severity, text)


_MISMATCH = "the image's entrypoint and its profile.json do not match: build the image again"


def judge_checks(
    checks: Iterable[Mapping[str, Any]],
    values: Mapping[str, Any],
    places: Mapping[str, str],
    words: Words = IN_ENGLISH,
) -> tuple[Finding, ...]:
    """Compare facts, as records or as JSON values, with every check whose conditions are met."""
    applicable = (check for check in checks if all(is_condition_met(condition, values) for condition in check["when"]))
    return tuple(_judge_check(check, values, places.get(check["fact"], ""), words) for check in applicable)


# --- comparing ------------------------------------------------------------------------------------------------------


def look_up_fact(path: str, values: Any) -> Any:
    """Return the JSON value at a dotted path through records and mappings; None if a step is missing."""
    for step in path.split("."):
        if isinstance(values, Mapping):
            values = values.get(step)
        else:
            values = getattr(values, step) if step in getattr(values, "_fields", ()) else None
    return to_json(values)


def is_condition_met(condition: Mapping[str, Any], values: Mapping[str, Any]) -> bool | None:
    """Tell whether a condition holds; None if its fact is unknown."""
    actual, expected = look_up_fact(condition["fact"], values), condition["expected"]
    operator: str = condition["operator"]
    if operator in ("absent", "present"):
        return (actual is None) == (operator == "absent")
    if actual is None:
        return None
    holds = _OPERATORS[operator]
    return holds(actual, expected)


def _parse_number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _compare_numbers(actual: Any, expected: Any, sign: int) -> bool | None:
    actual_number, expected_number = _parse_number(actual), _parse_number(expected)
    if actual_number is None or expected_number is None:
        return None
    return actual_number >= expected_number if sign > 0 else actual_number <= expected_number


def _is_same(actual: Any, expected: Any) -> bool:
    return str(actual) == str(expected)


def _is_any_of(actual: Any, expected: Any) -> bool:
    return any(_is_same(actual, one) for one in expected)


def _list_values(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _parse_candidate_version(value: Any) -> tuple[int, ...]:
    """Return the numbers of a version; a candidate sorts before its release: 25.5.rc1 → (25, 5, -1, 1) < 25.5.0."""
    import re

    parts = re.findall(r"(rc|alpha|beta|dev)?[.-]?(\d+)", str(value)[:80].lower())
    return tuple(number for word, digits in parts for number in ((-1, int(digits)) if word else (int(digits),)))


def _is_at_least(actual: Any, expected: Any) -> bool | None:
    """Compare two versions, the shorter one padded with zeros; None if one has no number."""
    actual_version, expected_version = _parse_candidate_version(actual), _parse_candidate_version(expected)
    if not actual_version or not expected_version:
        return None
    length = max(len(actual_version), len(expected_version))
    return actual_version + (0,) * (length - len(actual_version)) >= expected_version + (0,) * (
        length - len(expected_version)
    )


def _is_below(actual: Any, expected: Any) -> bool | None:
    newer = _is_at_least(actual, expected)
    return None if newer is None else not newer


_OPERATORS: Mapping[str, Callable[[Any, Any], bool | None]] = {
    "eq": _is_same,
    "ne": lambda actual, expected: not _is_same(actual, expected),
    "in": _is_any_of,
    "not_in": lambda actual, expected: not _is_any_of(actual, expected),
    "gte": lambda actual, expected: _compare_numbers(actual, expected, 1),
    "lte": lambda actual, expected: _compare_numbers(actual, expected, -1),
    "version_gte": _is_at_least,
    "version_lt": _is_below,
    "contains": lambda actual, expected: any(_is_any_of(one, actual) for one in _list_values(expected)),
}

COMPARISONS = {
    "eq": "{}",
    "ne": "not {}",
    "in": "one of {}",
    "not_in": "none of {}",
    "gte": "at least {}",
    "lte": "at most {}",
    "version_gte": "{} or later",
    "version_lt": "before {}",
    "contains": "one of {}",
    "absent": "none",
    "present": "any",
}


def _judge_check(check: Mapping[str, Any], values: Mapping[str, Any], place: str, words: Words) -> Finding:
    actual, expected_text = look_up_fact(check["fact"], values), _format_value(check["expected"], words)
    wrong = check["text"].format(found=_format_value_short(actual, words), expected=expected_text)
    severity, text = choose_outcome(
        check["severity"], wrong, check["passed"], good=is_condition_met(check, values), words=words
    )
    return Finding(
        id=check["id"],
        severity=severity,
        text=text,
        found=_format_fact(check["fact"], actual, words),
        expected=translate_phrase(words, COMPARISONS[check["operator"]], expected_text),
        remediation=check["remediation"],
        scope=check["scope"],
        source=check["source"],
        read=place,
        stops=severity != PASS and bool(check.get("stops")),
        fix={} if severity == PASS else {name: part for name, part in (check.get("fix") or {}).items() if part},
    )


_FEW = 12
"""Longest list that is shown entry by entry."""


def _format_fact(fact: str, value: Any, words: Words) -> str:
    if value is None:
        return translate_phrase(words, "{} is not known here", fact)
    return f"{fact}{': ' if _is_long(value) else ' = '}{_format_value_short(value, words)}"


def _is_long(value: Any) -> bool:
    return isinstance(value, list) and (len(value) > _FEW or not all(isinstance(item, (str, int)) for item in value))


def _format_value_short(value: Any, words: Words) -> str:
    if _is_long(value):
        return translate_phrase(words, "{} entries", str(len(value)))
    if isinstance(value, int) and value >= UNLIMITED // MIB:
        return translate_phrase(words, "unlimited")
    return _format_value(value, words)


def _format_value(value: Any, words: Words) -> str:
    if isinstance(value, bool):
        return translate_phrase(words, "yes") if value else translate_phrase(words, "no")
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)


# --- showing --------------------------------------------------------------------------------------------------------


def has_failures(findings: Iterable[Finding]) -> bool:
    """Tell whether any check failed."""
    return any(finding.severity == FAIL for finding in findings)


MACHINE_FACTS = (
    *("derived.architectures", "derived.names", "processor.", "versions.compute_capability", "versions.driver"),
    *("versions.module", "kernel.cuda_compat", "kernel.gpu_brand"),
)
"""Beginnings of the names of facts about cards, drivers and processors. Everything else can be changed without another
machine, driver or image. `--target auto` chooses a row by them."""


def find_unsupported(checks: Iterable[Mapping[str, Any]], findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that this image does not run on a machine: its cards, its driver or its processor."""
    deciding = {check["id"] for check in checks if check["fact"].startswith(MACHINE_FACTS)}
    return tuple(finding for finding in findings if finding.severity == FAIL and finding.id in deciding)


def find_refused_settings(finding_texts: Mapping[str, Any], findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that vLLM, or its plugin, does not start with what is planned.

    Those about the container are not of the plan: `run` and the rendered formats give it what it needs.
    """
    return tuple(
        finding
        for finding in findings
        if finding.severity == FAIL
        and finding.id in finding_texts
        and "container" not in finding_texts[finding.id]["about"]
    )


def count_severities(findings: Iterable[Finding]) -> dict[str, int]:
    """Count findings by severity."""
    result: dict[str, int] = {}
    for finding in findings:
        result[finding.severity] = result.get(finding.severity, 0) + 1
    return result


def summarize_findings(findings: Iterable[Finding]) -> str:
    """Return how many findings have each severity: `1 FAIL, 3 WARN, 20 PASS`."""
    number = count_severities(findings)
    return ", ".join(f"{number[severity]} {severity}" for severity in SEVERITIES if severity in number) or "no findings"


def sort_worst_first(findings: Iterable[Finding], last: Collection[str] = ()) -> list[Finding]:
    """Sort findings by severity, then those first that stop a server; the others keep their order.

    Those with an id in `last` come after all others.
    """
    return sorted(
        findings, key=lambda finding: (finding.id in last, SEVERITIES.index(finding.severity), not finding.stops)
    )


ASKER_FACTS = (
    *("capabilities", "limits.", "mounts.", "derived.cache_free_gib", "derived.memlock_mib", "derived.mempolicy"),
    *("derived.nofile", "derived.pids", "derived.shm_gib"),
)
"""Beginnings of the names of facts about the container in which someone asks: another start of it changes them."""


def list_asker_ids(profile: Mapping[str, Any]) -> frozenset[str]:
    """Return the ids of findings about the container, cache or network in which someone asks, or about its clients.

    They say nothing of the machine, and `run` starts a container otherwise: they are told last, and are no headline.
    """
    finding_texts = profile.get("findings") or {}
    numbers_about_clients = {
        number for number, texts in finding_texts.items() if {"asker", "clients"} & {*texts.get("about", ())}
    }
    return frozenset(
        numbers_about_clients | {check["id"] for check in profile["checks"] if check["fact"].startswith(ASKER_FACTS)}
    )


def format_findings(findings: Iterable[Finding], words: Words = IN_ENGLISH) -> str:
    """Format findings as text: one line each, and details below those that are not PASS."""
    return "".join(_format_finding_lines(finding, words) for finding in findings)


def format_findings_log(findings: Iterable[Finding], words: Words = IN_ENGLISH) -> str:
    """Format findings as a log: one line each, with what to do and what was found."""
    between = translate_phrase(words, "; ")
    lines = (
        f"{format_headline(finding)} {between.join(list_finding_details(finding, words)[:2])}" for finding in findings
    )
    return "".join(f"{format_one_line(line)}\n" for line in lines)


def format_headline(finding: Finding) -> str:
    """Return the line of a finding that says what is the case."""
    return f"{finding.severity:7} {finding.id}  {finding.text}"


def list_finding_details(finding: Finding, words: Words = IN_ENGLISH) -> tuple[str, ...]:
    """Return what to do about a finding, what was found, and its source; nothing for PASS."""
    if finding.severity == PASS:
        return ()
    place = f" ({translate_text(words, finding.read)})" if finding.read else ""
    return (
        translate_phrase(words, f"fix ({finding.scope}): {{}}", finding.remediation),
        translate_phrase(words, "found {}; expected {}", f"{finding.found}{place}", finding.expected),
        translate_phrase(words, "source: {}", finding.source),
    )


def _format_finding_lines(finding: Finding, words: Words = IN_ENGLISH) -> str:
    fix, *based = list_finding_details(finding, words) or ("",)
    below = f"{INDENT}{fix}\n{INDENT}{translate_phrase(words, '; ').join(based)}\n" if based else ""
    return f"{format_headline(finding)}\n{below}"


def format_junit(findings: Iterable[Finding], suite: str) -> str:
    """Format findings as JUnit XML: FAIL is a failure, WARN goes to system-out, UNKNOWN is skipped."""
    import xml.etree.ElementTree as ET  # writes XML, reads none

    listed = tuple(findings)
    number = count_severities(listed)
    root = ET.Element("testsuite", name=suite, tests=str(len(listed)), failures=str(number.get(FAIL, 0)))
    root.set("skipped", str(number.get(UNKNOWN, 0)))
    for finding in listed:
        case = ET.SubElement(root, "testcase", classname=f"{suite}.{finding.scope}", name=_escape_xml(finding.id))
        kind = {FAIL: "failure", UNKNOWN: "skipped", PASS: None}.get(finding.severity, "system-out")
        if kind:
            detail = ET.SubElement(case, kind)
            detail.text = _escape_xml(_format_finding_lines(finding))
            if kind == "failure":
                detail.set("message", _escape_xml(finding.text))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _escape_xml(text: str) -> str:
    """Replace characters that XML 1.0 does not allow."""
    return "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in text)
