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


def format_fix_script(findings: Iterable[Finding], image: str) -> str:
    """Return the script: a block for each finding that it can fix, and the instructions for the others."""
    wrong = [finding for finding in findings if finding.severity in WRONG]
    blocks = "".join(_format_fix_block(finding) for finding in wrong if finding.fix)
    instructions = "".join(
        _format_manual_fix(finding) for finding in wrong if not finding.fix and finding.severity != INFO
    )
    body = (blocks or "\n# Nothing to change on this host.\n") + instructions
    with open(os.path.join(os.path.dirname(__file__), "fix.sh"), encoding="utf-8") as file:
        before, after = file.read().split("\n# @FINDINGS@\n")
    return before.replace("@IMAGE@", _format_comment(image)) + body + after


def _format_fix_block(finding: Finding) -> str:
    """Return one finding's block: what was found as comments, then the fix now, then the fix at each boot."""
    fix = finding.fix
    caution = f"# caution   {_format_comment(fix['caution'])}\n" if fix.get("caution") else ""
    return (
        f"\n# --- {finding.id} {finding.severity}: {_format_comment(finding.text)}\n"
        f"# found     {_format_comment(finding.found)}{_format_comment(f' ({finding.read})' if finding.read else '')}\n"
        f"# expected  {_format_comment(finding.expected)}\n# source    {_format_comment(finding.source)}\n{caution}"
        f"if begin {finding.id} {finding.severity}; then\n"
        + "".join(f"    {line}\n" for line in (*_list_fix_commands(fix), *_list_boot_commands(fix)))
        + "fi\n"
    )


def _format_manual_fix(finding: Finding) -> str:
    words = f"{finding.id} {finding.severity}, {finding.scope}: {_format_comment(finding.remediation)}"
    found_line = f"# found     {_format_comment(finding.found)}\n"
    return f"\n# --- {finding.id}: {_format_comment(finding.text)}\n{found_line}left {_quote_fix_word(words)}\n"


def _list_fix_commands(fix: Mapping[str, Any]) -> Iterable[str]:
    for name, value in fix.get("sysctl", {}).items():
        yield f'set_now {_quote_fix_word(value)} "$root"/proc/sys/{name.replace(".", "/")}'
    for path, value in fix.get("write", {}).items():
        yield f'set_now {_quote_fix_word(value)} "$root"{path}'
    for command in fix.get("commands", ()):
        yield f"run_now {_quote_fix_word(command['unless'])} {_quote_fix_word(command['run'])}"


def _list_boot_commands(fix: Mapping[str, Any]) -> Iterable[str]:
    for name, value in fix.get("sysctl", {}).items():
        yield f"keep_sysctl {name} {_quote_fix_word(value)}"
    for path, value in fix.get("write", {}).items():
        yield f"keep_write {_quote_fix_word(path)} {_quote_fix_word(value)}"
    for command in fix.get("commands", ()):
        if command["each_boot"]:
            yield f"keep_command {_quote_fix_word(command['run'])}"
    for word in fix.get("parameters", ()):
        yield f"keep_parameter {_quote_fix_word(word)}"
    if fix.get("firmware"):
        yield f"firmware {_quote_fix_word(fix['firmware'])}"


def _quote_fix_word(value: Any) -> str:
    from shlex import quote

    return quote(_format_comment(str(value)))


def _format_comment(text: str) -> str:
    """Return text on one line, without control characters."""
    return "".join(character if character.isprintable() else " " for character in text)
