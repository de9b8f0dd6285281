"""Facts and checks (data), and notices of code → findings, as text, JSON or JUnit. Pure.

A check names a fact by its dotted path in the output of `facts`. The branch `derived` has values that are computed
from several facts (facts/derived.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from entrypoints.core.errors import INTERNAL, EntrypointError
from entrypoints.core.language import Words, phrase, translate
from entrypoints.core.records import Facts, Finding, Notice, to_json
from entrypoints.core.text import one_line
from entrypoints.core.units import MIB
from entrypoints.facts.derived import UNLIMITED, derive

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


def evaluate(
    checks: Iterable[Mapping[str, Any]],
    facts: Facts,
    places: Mapping[str, str] = _NOWHERE,
    words: Words = IN_ENGLISH,
) -> tuple[Finding, ...]:
    """Compare facts with every check whose conditions are met, in order.

    `places` is where each fact is read in a container.
    """
    return judge(checks, facts._asdict() | {"derived": derive(facts)}, places, words)


def unread(facts: Facts) -> tuple[Notice, ...]:
    """Return a notice for each failure of the probe: what should have been readable and was not."""
    return tuple(
        notice("PROBE-001", failure.found, failure.expected, where=failure.where) for failure in facts.failures
    )


def notice(number: str, found: str, expected: str, /, **values: str) -> Notice:
    """Make a notice of the finding with this id; `values` replace the names in braces in its text."""
    return Notice(number, found, expected, values)


def tell(
    known: Mapping[str, Mapping[str, str]],
    what: Notice,
    *,
    good: bool | None = False,
    words: Words = IN_ENGLISH,
) -> Finding:
    """Make a finding of a notice, with the profile's text for its id.

    `good` is true if nothing is the matter, and None if that is not known.
    Raises INTERNAL if the profile lacks the id, or the values do not match the names in its text.
    """
    texts = known.get(what.id)
    if texts is None:
        raise EntrypointError(INTERNAL, f"profile.json: findings: no {what.id}", _MISMATCH)
    templates = (texts["text"], texts["passed"], texts["remediation"], texts["source"])
    unused = [name for name in what.values if not any(f"{{{name}}}" in template for template in templates)]
    if unused:
        raise EntrypointError(INTERNAL, f"profile.json: findings.{what.id}: no {{{unused[0]}}} in it", _MISMATCH)
    try:
        values = {name: translate(words, value) for name, value in what.values.items()}
        text, passed, remediation, source = (template.format_map(values) for template in templates)
    except KeyError as error:
        raise EntrypointError(INTERNAL, f"profile.json: findings.{what.id}: no value for {error}", _MISMATCH) from error
    severity, text = outcome(texts["severity"], text, passed, good=good, words=words)
    found, expected = translate(words, what.found), translate(words, what.expected)
    return Finding(what.id, severity, text, found, expected, remediation, texts["scope"], source)


def outcome(severity: str, text: str, passed: str, *, good: bool | None, words: Words = IN_ENGLISH) -> tuple[str, str]:
    """Return the severity and the text of an outcome; `good` is None if it is not known."""
    if good is None:
        return UNKNOWN, phrase(words, "This could not be checked: {}", passed)
    return (PASS, passed) if good else (severity, text)


_MISMATCH = "the image's entrypoint and its profile.json do not match: build the image again"


def judge(
    checks: Iterable[Mapping[str, Any]],
    values: Mapping[str, Any],
    places: Mapping[str, str],
    words: Words = IN_ENGLISH,
) -> tuple[Finding, ...]:
    """Compare facts, as records or as JSON values, with every check whose conditions are met."""
    applicable = (check for check in checks if all(met(condition, values) for condition in check["when"]))
    return tuple(_finding(check, values, places.get(check["fact"], ""), words) for check in applicable)


# --- comparing ------------------------------------------------------------------------------------------------------


def lookup(path: str, values: Any) -> Any:
    """Return the JSON value at a dotted path through records and mappings; None if a step is missing."""
    for step in path.split("."):
        if isinstance(values, Mapping):
            values = values.get(step)
        else:
            values = getattr(values, step) if step in getattr(values, "_fields", ()) else None
    return to_json(values)


def met(condition: Mapping[str, Any], values: Mapping[str, Any]) -> bool | None:
    """Tell whether a condition holds; None if its fact is unknown."""
    found, expected = lookup(condition["fact"], values), condition["expected"]
    operator: str = condition["operator"]
    if operator in ("absent", "present"):
        return (found is None) == (operator == "absent")
    if found is None:
        return None
    holds = _OPERATORS[operator]
    return holds(found, expected)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _compare(found: Any, expected: Any, sign: int) -> bool | None:
    left, right = _number(found), _number(expected)
    if left is None or right is None:
        return None
    return left >= right if sign > 0 else left <= right


def _same(found: Any, expected: Any) -> bool:
    return str(found) == str(expected)


def _any(found: Any, expected: Any) -> bool:
    return any(_same(found, one) for one in expected)


def _several(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _version(value: Any) -> tuple[int, ...]:
    """Return the numbers of a version; a candidate sorts before its release: 25.5.rc1 → (25, 5, -1, 1) < 25.5.0."""
    import re

    parts = re.findall(r"(rc|alpha|beta|dev)?[.-]?(\d+)", str(value)[:80].lower())
    return tuple(number for word, digits in parts for number in ((-1, int(digits)) if word else (int(digits),)))


def _at_least(found: Any, expected: Any) -> bool | None:
    """Compare two versions, the shorter one padded with zeros; None if one has no number."""
    left, right = _version(found), _version(expected)
    if not left or not right:
        return None
    length = max(len(left), len(right))
    return left + (0,) * (length - len(left)) >= right + (0,) * (length - len(right))


def _below(found: Any, expected: Any) -> bool | None:
    newer = _at_least(found, expected)
    return None if newer is None else not newer


_OPERATORS: Mapping[str, Callable[[Any, Any], bool | None]] = {
    "eq": _same,
    "ne": lambda found, expected: not _same(found, expected),
    "in": _any,
    "not_in": lambda found, expected: not _any(found, expected),
    "gte": lambda found, expected: _compare(found, expected, 1),
    "lte": lambda found, expected: _compare(found, expected, -1),
    "version_gte": _at_least,
    "version_lt": _below,
    "contains": lambda found, expected: any(_any(one, found) for one in _several(expected)),
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


def _finding(check: Mapping[str, Any], values: Mapping[str, Any], place: str, words: Words) -> Finding:
    found, wanted = lookup(check["fact"], values), _text(check["expected"], words)
    wrong = check["text"].format(found=_short(found, words), expected=wanted)
    severity, text = outcome(check["severity"], wrong, check["passed"], good=met(check, values), words=words)
    return Finding(
        id=check["id"],
        severity=severity,
        text=text,
        found=_found(check["fact"], found, words),
        expected=phrase(words, COMPARISONS[check["operator"]], wanted),
        remediation=check["remediation"],
        scope=check["scope"],
        source=check["source"],
        read=place,
        fix={} if severity == PASS else {name: part for name, part in (check.get("fix") or {}).items() if part},
    )


_FEW = 12
"""Longest list that is shown entry by entry."""


def _found(fact: str, value: Any, words: Words) -> str:
    if value is None:
        return phrase(words, "{} is not known here", fact)
    return f"{fact}{': ' if _is_long(value) else ' = '}{_short(value, words)}"


def _is_long(value: Any) -> bool:
    return isinstance(value, list) and (len(value) > _FEW or not all(isinstance(item, (str, int)) for item in value))


def _short(value: Any, words: Words) -> str:
    if _is_long(value):
        return phrase(words, "{} entries", str(len(value)))
    if isinstance(value, int) and value >= UNLIMITED // MIB:
        return phrase(words, "unlimited")
    return _text(value, words)


def _text(value: Any, words: Words) -> str:
    if isinstance(value, bool):
        return phrase(words, "yes") if value else phrase(words, "no")
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)


# --- showing --------------------------------------------------------------------------------------------------------


def failed(findings: Iterable[Finding]) -> bool:
    """Tell whether any check failed."""
    return any(finding.severity == FAIL for finding in findings)


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """Count findings by severity."""
    result: dict[str, int] = {}
    for finding in findings:
        result[finding.severity] = result.get(finding.severity, 0) + 1
    return result


def summary(findings: Iterable[Finding]) -> str:
    """Return how many findings have each severity: `1 FAIL, 3 WARN, 20 PASS`."""
    number = counts(findings)
    return ", ".join(f"{number[severity]} {severity}" for severity in SEVERITIES if severity in number) or "no findings"


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by severity; those of one severity keep their order."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def as_text(findings: Iterable[Finding], words: Words = IN_ENGLISH) -> str:
    """Format findings as text: one line each, and details below those that are not PASS."""
    return "".join(_lines(each, words) for each in findings)


def as_log(findings: Iterable[Finding], words: Words = IN_ENGLISH) -> str:
    """Format findings as a log: one line each, with what to do and what was found."""
    between = phrase(words, "; ")
    lines = (f"{head(each)} {between.join(details(each, words)[:2])}" for each in findings)
    return "".join(f"{one_line(line)}\n" for line in lines)


def head(finding: Finding) -> str:
    """Return the line of a finding that says what is the case."""
    return f"{finding.severity:7} {finding.id}  {finding.text}"


def details(finding: Finding, words: Words = IN_ENGLISH) -> tuple[str, ...]:
    """Return what to do about a finding, what was found, and its source; nothing for PASS."""
    if finding.severity == PASS:
        return ()
    place = f" ({finding.read})" if finding.read else ""
    return (
        phrase(words, f"fix ({finding.scope}): {{}}", finding.remediation),
        phrase(words, "found {}; expected {}", f"{finding.found}{place}", finding.expected),
        phrase(words, "source: {}", finding.source),
    )


def _lines(finding: Finding, words: Words = IN_ENGLISH) -> str:
    fix, *based = details(finding, words) or ("",)
    below = f"{INDENT}{fix}\n{INDENT}{phrase(words, '; ').join(based)}\n" if based else ""
    return f"{head(finding)}\n{below}"


def as_junit(findings: Iterable[Finding], suite: str) -> str:
    """Format findings as JUnit XML: FAIL is a failure, WARN goes to system-out, UNKNOWN is skipped."""
    import xml.etree.ElementTree as ET  # writes XML, reads none

    listed = tuple(findings)
    number = counts(listed)
    root = ET.Element("testsuite", name=suite, tests=str(len(listed)), failures=str(number.get(FAIL, 0)))
    root.set("skipped", str(number.get(UNKNOWN, 0)))
    for finding in listed:
        case = ET.SubElement(root, "testcase", classname=f"{suite}.{finding.scope}", name=_xml(finding.id))
        kind = {FAIL: "failure", UNKNOWN: "skipped", PASS: None}.get(finding.severity, "system-out")
        if kind:
            detail = ET.SubElement(case, kind)
            detail.text = _xml(_lines(finding))
            if kind == "failure":
                detail.set("message", _xml(finding.text))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _xml(text: str) -> str:
    """Replace characters that XML 1.0 does not allow."""
    return "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in text)
