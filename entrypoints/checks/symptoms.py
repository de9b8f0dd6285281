"""Lines of a log, exit codes and ids of findings → the failures that they are known to mean. Pure.

A failure is data of the image: failures.json, made of templates/failures.yaml and the accelerator's own file. Its
patterns are plain text in which * stands for any text. The pieces are searched one after the other, so no line makes
the search slow. Its codes are numbers of a vendor's table, which lines print after one of the table's forms. Causes
come first, in the order of the log; then what follows from them, then notes. A failure that another one of the log
explains is left out. Where no cause is found, those of other accelerators are looked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from entrypoints.checks.logs import clean_log
from entrypoints.core.language import Words, translate_phrase
from entrypoints.core.text import format_one_line

CAUSE, CONSEQUENCE, NOTE = KINDS = ("cause", "consequence", "note")
"""What a line is about a failure: why, what came of it, and what a healthy start says too."""
_SHOWN = 300
"""Characters of a line that are shown."""
_BEFORE = 120
"""Characters that are shown before the words that a long line is known by."""
_SHORT = 40
"""Characters of the longest text that may be nothing but an exit code."""
_OCCURRENCES = 64
"""Lines of one pattern that are looked at."""
_EXIT = re.compile(
    r"(?i)\b(?:exit(?:ed)?|return(?=[ _-]?code)|rc(?==))(?:[ ,_-]{0,2}(?:with|non-?zero|code|status)){0,3}"
    r'"?[ :=(]{0,9}(-?\d{1,3})(?!\d)'
)
"""As Docker, Kubernetes, Python and vLLM write an exit code; Python's is negative for a signal."""
_OF_CHILD = re.compile(r"non-zero exit status|\bCommand '|\b[Cc]ompil")
"""In a line about a program that another one ran: its exit codes are none of the entrypoint's."""
_SIGNAL = re.compile(
    r"(?:\b(?:[Kk]illed by|[Tt]erminated by|[Tt]erminated with|[Dd]ied with|[Dd]ied from) signal:? "
    r"|\bSignal (?=\d{1,2} \(SIG)|<Signals\.SIG[A-Z]{2,6}: |\bstatus=(?=\d{1,2}/[A-Z]))(\d{1,2})(?!\d)"
)
"""As shells, Ray, torch's launcher, Python's subprocess and systemd write the signal that ended a process."""
_KILLED = re.compile(r"(?m)^(?:[^\n]{0,200}: line \d{1,6}:\s{1,9}\d{1,9}\s)?Killed(?: {4}|$)")
"""As a shell writes that its command, or one of its script, got SIGKILL."""
_OF_SIGNALS = 128
"""Exit codes from here on are a signal's: this and its number."""
_SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "SEGV": 11, "TERM": 15}
_ALONE = re.compile(r"(?i)(?:(?:exit(?:ed)?|return|error)?[ _]{0,9}(?:code|status)?[ :=]{0,9})(-?\d{1,3})[.]?")
_SIGNAL_ALONE = re.compile(r"(?i)(?:signal[ :=]*)?(?:SIG([A-Z]{2,4})|(?<=[ :=])(\d{1,2}))")
_CODE = re.compile(r"(?: is)?[ :=(]{0,3}(-?\d{1,6})(?!\d)")
"""A number of a vendor's table, after the words that the table's form has."""
_CODE_ALONE = re.compile(r"-?\d{4,6}")
_VALUE = re.compile(r"\{\w+\}")
"""What a finding has in braces, where `check` puts what it found."""
_OURS = re.compile(r"(?:docs|templates|drydock|entrypoints)/")
"""Files of drydock's repository, which is not where an image runs."""
_FINDING = re.compile(r"\b[A-Z]{2,8}-\d{3}\b")
_MINOR = re.compile(r"\bWARNING\b|^\s*(?:drydock: )?(?:WARN|INFO) ")
"""Lines of warnings and of findings that are no FAIL."""
_ERROR = re.compile(r"(?:^|[\s\]|:])((?:\w{1,60}\.){0,10}\w{0,60}(?:Error|Exception|Exit)): \S")


class Match(NamedTuple):
    """A known failure, and the line that shows it."""

    id: str
    """Name of the failure, or id of the finding."""
    kind: str
    """One of KINDS."""
    line: str
    cause: str
    remedy: str
    check: str
    """The finding that tells it before; empty for none."""
    source: str
    """An address or a manual; empty if it is a file of ours, which is not where the image is."""
    accelerator: str
    """Whose failure it is; empty for one of this image or of any."""


class _Hit(NamedTuple):
    """A line with a pattern, an exit code or the id of a finding."""

    start: int
    """Where the line begins."""
    at: int
    """Where its words begin."""
    id: str
    kind: str
    weight: int
    """Characters of the pattern, or of the code and its form: the longer, the more specific."""
    minor: bool
    """The line is a warning's."""


def add_failures(profile: dict[str, Any], failure_data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a profile with the content of failures.json: failures, and their texts in other languages."""
    texts = {
        language: {**words, **failure_data.get("translations", {}).get(language, {})}
        for language, words in (profile.get("translations") or {}).items()
    }
    parts = {name: failure_data.get(name, {}) for name in ("failures", "foreign", "code_forms")}
    return {**profile, "elsewhere": failure_data.get("findings", {}), **parts, "translations": texts}


def explain_log(text: str, profile: Mapping[str, Any]) -> tuple[Match, ...]:
    """Return the failures and findings that are in a log, or in an exit code alone: causes, consequences, notes.

    Each kind in the order of its lines.
    """
    whole = _expand_exit_code(clean_log(text).strip())
    texts, foreign = _find_texts(profile), profile.get("foreign") or {}
    hits = [hit for hit in _choose_hits(_find_hits(whole, profile)) if hit.id in texts]
    if not any(hit.kind == CAUSE for hit in hits):
        hits += _find_foreign_hits(whole, profile, hits)
    hits = _drop_explained(hits, {**foreign, **profile["failures"]})
    hits.sort(key=lambda hit: (KINDS.index(hit.kind), hit.start, hit.at))
    return tuple(_make_match(hit, whole, texts[hit.id], foreign) for hit in hits)


def find_ids(text: str) -> tuple[str, ...]:
    """Return what looks like ids of findings."""
    return tuple(dict.fromkeys(_FINDING.findall(text)))


def find_first_error(text: str) -> str:
    """Return the first line that looks like an error, for a log of which nothing is known; empty without one."""
    whole = clean_log(text)
    match = _ERROR.search(whole)
    if not match:
        return ""
    return _shorten_line(whole, whole.rfind("\n", 0, match.start(1)) + 1, match.start(1))


def _expand_exit_code(text: str) -> str:
    """Return a text; if it is nothing but an exit code or a signal, with words that say so."""
    if len(text) > _SHORT or "\n" in text or _FINDING.fullmatch(text):  # CODE-001 is a finding, no exit code
        return text
    if code := _ALONE.fullmatch(text):
        return f"exit code {code[1]}"
    if signal := _SIGNAL_ALONE.fullmatch(text):
        number = int(signal[2]) if signal[2] else _SIGNALS.get(signal[1].upper(), 0)
        return f"exit code {_OF_SIGNALS + number}" if number else text
    return text


def _find_texts(profile: Mapping[str, Any]) -> dict[str, tuple[str, str, str, str]]:
    """Return what is told of each failure and finding: cause, remedy, check, source."""
    checks = {entry["id"]: entry for entry in profile["checks"]}
    findings = {**profile.get("elsewhere", {}), **checks, **profile["findings"]}
    failures = {
        name: (entry["cause"], entry["remedy"], entry["check"] or "", entry["source"])
        for name, entry in {**profile.get("foreign", {}), **profile["failures"]}.items()
    }
    return failures | {name: _tell_finding(entry) for name, entry in findings.items()}


def _tell_finding(finding: Mapping[str, str]) -> tuple[str, str, str, str]:
    text, remedy = (_VALUE.sub("…", finding[key]) for key in ("text", "remediation"))
    return text, remedy, "", finding["source"]


# --- the search -----------------------------------------------------------------------------------------------------


def _find_hits(text: str, profile: Mapping[str, Any]) -> Iterator[_Hit]:
    exits: dict[int, list[tuple[str, str]]] = {}
    for name, failure in profile["failures"].items():
        for code in failure["exits"]:
            exits.setdefault(code, []).append((name, failure.get("kind", CAUSE)))
    yield from _find_pattern_hits(text, profile["failures"])
    yield from _find_code_hits(text, profile["failures"], profile.get("code_forms") or {})
    yield from _find_exits(text, exits)
    for match in islice(_FINDING.finditer(text), 1000):
        start = text.rfind("\n", 0, match.start()) + 1
        yield _make_hit(text, start, match.start(), match[0], CAUSE, _OF_FINDING)


def _find_pattern_hits(text: str, failures: Mapping[str, Any]) -> Iterator[_Hit]:
    for name, failure in failures.items():
        for pattern in failure["patterns"]:
            pieces = pattern.split("*")
            for start, at, _ in islice(_find_lines(text, pieces), _OCCURRENCES):
                yield _make_hit(text, start, at, name, failure.get("kind", CAUSE), sum(map(len, pieces)))


def _find_code_hits(
    text: str, failures: Mapping[str, Any], forms: Mapping[str, Iterable[str]], *, alone: bool = True
) -> Iterator[_Hit]:
    """Yield the failures whose codes lines print, or that a text is which has nothing but a code."""
    owners = {
        (table, code): (name, failure.get("kind", CAUSE))
        for name, failure in failures.items()
        for table, codes in failure.get("codes", {}).items()
        for code in codes
    }
    for table in sorted({table for table, _ in owners}):
        for form in forms.get(table, ()):
            pieces = form.split("*")
            for start, at, end in islice(_find_lines(text, pieces), _OCCURRENCES):
                match = _CODE.match(text, end)
                owner = match and owners.get((table, int(match[1])))
                if match and owner:
                    yield _make_hit(text, start, at, *owner, sum(map(len, pieces)) + match.end() - end)
    if alone and _CODE_ALONE.fullmatch(text):
        yield from (_make_hit(text, 0, 0, *owner, 0) for (_, code), owner in owners.items() if code == int(text))


def _find_foreign_hits(text: str, profile: Mapping[str, Any], hits: Iterable[_Hit]) -> list[_Hit]:
    """Return failures of other accelerators: their causes alone where the image's own failures explain other lines."""
    own_lines, foreign = {hit.start for hit in hits}, profile.get("foreign") or {}
    codes = _find_code_hits(text, foreign, profile.get("code_forms") or {}, alone=False)
    foreign_hits = (hit for hit in (*_find_pattern_hits(text, foreign), *codes) if hit.start not in own_lines)
    return [hit for hit in _choose_hits(foreign_hits) if hit.kind == CAUSE or not own_lines]


def _drop_explained(hits: list[_Hit], failures: Mapping[str, Any]) -> list[_Hit]:
    """Leave out the failures of which a cause of the log says why they happened."""
    explained = {name for hit in hits if hit.kind == CAUSE for name in failures.get(hit.id, {}).get("explains", ())}
    return [hit for hit in hits if hit.id not in explained]


_OF_FINDING = 1 << 20
"""Weight of an id: nothing on its line is more specific."""


def _find_lines(text: str, pieces: list[str]) -> Iterator[tuple[int, int, int]]:
    """Yield the start of each line that has all pieces, in this order; where the first begins and the last ends."""
    first, *later_pieces = pieces
    at = text.find(first)
    while at >= 0:
        end = text.find("\n", at)
        end = end if end >= 0 else len(text)
        last = _find_pieces_end(text, later_pieces, at + len(first), end)
        if last >= 0:
            yield text.rfind("\n", 0, at) + 1, at, last
        at = text.find(first, end)


def _find_pieces_end(text: str, pieces: list[str], at: int, end: int) -> int:
    """Return where the last of the pieces ends; -1 if one is missing."""
    for piece in pieces:
        at = text.find(piece, at, end)
        if at < 0:
            return -1
        at += len(piece)
    return at


def _find_exits(text: str, exits: Mapping[int, list[tuple[str, str]]]) -> Iterator[_Hit]:
    """Yield the first line of each exit code."""
    earlier_codes: set[int] = set()
    codes = ((match, _to_shell_code(int(match[1]))) for match in _EXIT.finditer(text))
    signals = ((match, _OF_SIGNALS + int(match[1])) for match in _SIGNAL.finditer(text))
    killed = ((match, _OF_SIGNALS + _SIGNALS["KILL"]) for match in islice(_KILLED.finditer(text), 1))
    for match, code in (*codes, *signals, *killed):
        if code in earlier_codes:
            continue
        start = text.rfind("\n", 0, match.start()) + 1
        if code < _OF_SIGNALS and _OF_CHILD.search(text, start, match.end()):
            continue
        earlier_codes.add(code)
        for name, kind in exits.get(code, ()):
            yield _make_hit(text, start, match.start(), name, kind, 0)


def _to_shell_code(code: int) -> int:
    return _OF_SIGNALS - code if code < 0 else code


def _make_hit(text: str, start: int, at: int, name: str, kind: str, weight: int) -> _Hit:
    minor = bool(_MINOR.search(text[start : min(at, start + _SHOWN)]))
    return _Hit(start, at, name, kind, weight, minor)


def _choose_hits(hits: Iterable[_Hit]) -> Iterator[_Hit]:
    """Yield one hit of each failure: of the most specific ones of their lines, the first that is no warning."""
    lines: dict[int, list[_Hit]] = {}
    for hit in hits:
        lines.setdefault(hit.start, []).append(hit)
    names: dict[str, list[_Hit]] = {}
    for start in sorted(lines):
        for hit in _choose_most_specific(lines[start]):
            names.setdefault(hit.id, []).append(hit)
    for failure_hits in names.values():
        best_hit = next((hit for hit in failure_hits if not hit.minor), failure_hits[0])
        yield best_hit._replace(kind=NOTE) if best_hit.minor else best_hit


def _choose_most_specific(hits: list[_Hit]) -> Iterator[_Hit]:
    """Yield the ids of findings of a line, and of its failures the cause with the longest pattern."""
    yield from (hit for hit in hits if hit.weight == _OF_FINDING)
    failures = [hit for hit in hits if hit.weight < _OF_FINDING]
    if failures:
        yield min(failures, key=lambda hit: (KINDS.index(hit.kind), -hit.weight))


# --- what is shown --------------------------------------------------------------------------------------------------


def _make_match(hit: _Hit, text: str, texts: tuple[str, str, str, str], foreign: Mapping[str, Any]) -> Match:
    cause, remedy, check, source = texts
    line = _shorten_line(text, hit.start, hit.at)
    accelerator = foreign[hit.id]["accelerator"] if hit.id in foreign else ""
    return Match(hit.id, hit.kind, line, cause, remedy, check, "" if _OURS.match(source) else source, accelerator)


def _shorten_line(text: str, start: int, at: int) -> str:
    """Return a line in short, with the words that it is known by."""
    end = text.find("\n", at)
    line = text[start : end if end >= 0 else len(text)]
    skipped = at - start - _BEFORE if at - start > _SHOWN - _BEFORE else 0
    return ("…" if skipped else "") + format_one_line(line[skipped : skipped + _SHOWN].strip())


def format_matches(matches: tuple[Match, ...], words: Words) -> str:
    """Return what to read about each failure, below the line that shows it; of what a cause led to, the lines alone."""
    caused = any(match.kind == CAUSE for match in matches)
    return "\n".join(_format_match(match, words, follows=caused and match.kind == CONSEQUENCE) for match in matches)


def _format_match(match: Match, words: Words, *, follows: bool) -> str:
    lines = (
        (translate_phrase(words, "This follows from the cause above."),)
        if follows
        else _list_match_details(match, words)
    )
    return f"{match.line}\n" + "".join(f"        {line}\n" for line in lines if line)


def _list_match_details(match: Match, words: Words) -> tuple[str, ...]:
    return (
        translate_phrase(words, "of accelerator {}, not of this image's:", match.accelerator)
        if match.accelerator
        else "",
        match.cause,
        translate_phrase(words, "what to do: {}", match.remedy),
        translate_phrase(words, "`check` tells it before: {}", match.check) if match.check else "",
        translate_phrase(words, "source: {}", match.source) if match.source else "",
    )
