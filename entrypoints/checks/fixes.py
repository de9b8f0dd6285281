"""Findings → a script for the host that a person reads and runs: POSIX sh. Nothing here changes anything.

fix.sh is the script without findings: its functions, and what it does after the last finding.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from entrypoints.checks.findings import FAIL, INFO, WARN
from entrypoints.core.records import Finding

WRONG = (FAIL, WARN, INFO)


def script(findings: Iterable[Finding], image: str) -> str:
    """Return the script: a block for each finding that it can fix, and the instructions for the others."""
    wrong = [finding for finding in findings if finding.severity in WRONG]
    blocks = "".join(_block(finding) for finding in wrong if finding.fix)
    rest = "".join(_left(finding) for finding in wrong if not finding.fix and finding.severity != INFO)
    body = (blocks or "\n# Nothing to change on this host.\n") + rest
    with open(os.path.join(os.path.dirname(__file__), "fix.sh"), encoding="utf-8") as file:
        before, after = file.read().split("\n# @FINDINGS@\n")
    return before.replace("@IMAGE@", _comment(image)) + body + after


def _block(finding: Finding) -> str:
    """Return one finding's block: what was found as comments, then the fix now, then the fix at each boot."""
    fix = finding.fix
    caution = f"# caution   {_comment(fix['caution'])}\n" if fix.get("caution") else ""
    return (
        f"\n# --- {finding.id} {finding.severity}: {_comment(finding.text)}\n"
        f"# found     {_comment(finding.found)}{_comment(f' ({finding.read})' if finding.read else '')}\n"
        f"# expected  {_comment(finding.expected)}\n# source    {_comment(finding.source)}\n{caution}"
        f"if begin {finding.id} {finding.severity}; then\n"
        + "".join(f"    {line}\n" for line in (*_now(fix), *_at_each_boot(fix)))
        + "fi\n"
    )


def _left(finding: Finding) -> str:
    words = f"{finding.id} {finding.severity}, {finding.scope}: {_comment(finding.remediation)}"
    found = f"# found     {_comment(finding.found)}\n"
    return f"\n# --- {finding.id}: {_comment(finding.text)}\n{found}left {_quote(words)}\n"


def _now(fix: Mapping[str, Any]) -> Iterable[str]:
    for name, value in fix.get("sysctl", {}).items():
        yield f'set_now {_quote(value)} "$root"/proc/sys/{name.replace(".", "/")}'
    for path, value in fix.get("write", {}).items():
        yield f'set_now {_quote(value)} "$root"{path}'
    for command in fix.get("commands", ()):
        yield f"run_now {_quote(command['unless'])} {_quote(command['run'])}"


def _at_each_boot(fix: Mapping[str, Any]) -> Iterable[str]:
    for name, value in fix.get("sysctl", {}).items():
        yield f"keep_sysctl {name} {_quote(value)}"
    for path, value in fix.get("write", {}).items():
        yield f"keep_write {_quote(path)} {_quote(value)}"
    for command in fix.get("commands", ()):
        if command["each_boot"]:
            yield f"keep_command {_quote(command['run'])}"
    for word in fix.get("parameters", ()):
        yield f"keep_parameter {_quote(word)}"
    if fix.get("firmware"):
        yield f"firmware {_quote(fix['firmware'])}"


def _quote(value: Any) -> str:
    from shlex import quote

    return quote(_comment(str(value)))


def _comment(text: str) -> str:
    """Return text on one line, without control characters."""
    return "".join(character if character.isprintable() else " " for character in text)
