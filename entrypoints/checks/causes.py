"""What a probe could not read → its known cause, from the same data as `explain` (failures.json).

A profile has these data as `failures` only where a probe failed: other starts do not read the file. Pure, except
`read_profile_with_failures`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.checks.findings import list_unread_facts, make_finding
from entrypoints.core.errors import HOST, EntrypointError
from entrypoints.core.records import Facts, Finding
from entrypoints.facts.image_files import localize_profile, read_image_json, read_profile
from entrypoints.request.arguments import Arguments


def read_profile_with_failures(arguments: Arguments, env: Mapping[str, str]) -> dict[str, Any]:
    """Read the profile with all that `explain` knows, in the user's language. Raises USAGE."""
    from entrypoints.checks.symptoms import add_failures

    profile = add_failures(read_profile(env), read_image_json(env, "failures.json"))
    return localize_profile(profile, arguments, env)


def find_cause(text: str, failures: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the known failure whose pattern is in what a tool printed: the longest, which says the most."""
    fitting = (
        (len(pattern), failure)
        for failure in failures.values()
        for pattern in failure["patterns"]
        if _has_pieces(text, pattern.split("*"))
    )
    return max(fitting, key=lambda pair: pair[0], default=(0, None))[1]


def _has_pieces(text: str, pieces: list[str]) -> bool:
    """Tell whether a text has all pieces, in this order."""
    for piece in pieces:
        _, separator, text = text.partition(piece)
        if not separator:
            return False
    return True


def tell_unread(profile: Mapping[str, Any], facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each failure of the probe, with its cause and remedy if they are known."""
    finding_texts, failures = profile.get("findings") or {}, profile.get("failures") or {}
    words = profile.get("words") or {}
    for failure, notice in zip(facts.failures, list_unread_facts(facts), strict=True):
        finding, cause = make_finding(finding_texts, notice, words=words), find_cause(failure.found, failures)
        if cause:
            text = f"{finding.text} {cause['cause']}"
            finding = finding._replace(
                text=text, remediation=cause["remedy"], source=cause["source"], scope=cause["scope"]
            )
        yield finding


def find_first_cause(profile: Mapping[str, Any], facts: Facts) -> Mapping[str, Any] | None:
    """Return the known failure of the first thing that could not be read and has one."""
    causes = (find_cause(failure.found, profile.get("failures") or {}) for failure in facts.failures)
    return next(filter(None, causes), None)


def add_cause(error: EntrypointError, profile: Mapping[str, Any], facts: Facts) -> EntrypointError:
    """Return an error about the host's devices with the cause of what could not be read, and with its remedy."""
    cause = find_first_cause(profile, facts) if error.code == HOST else None
    if not cause:
        return error
    return EntrypointError(error.code, f"{error.message.rstrip('.')}. {cause['cause']}", cause["remedy"])
