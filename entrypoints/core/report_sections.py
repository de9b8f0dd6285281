"""The file that `report` writes: sections of a page, and what is removed from them. Pure.

Each section is a heading and lines that are indented by four spaces, as a page of Markdown shows text as it is. So
nothing that a section quotes, such as a log, can begin another section.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from entrypoints.core.identifiers import Identifiers
from entrypoints.core.redact import HIDDEN, redact_text
from entrypoints.core.text import REPORT_INDENT, REPORT_TITLE, printable

_ADDRESS = re.compile(r"(?<![\w.:-])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7})(?![\w.-])")
"""What may be an IP address."""
_USER = re.compile(r"(?<![\w/])(/(?:home|Users))/([^/\s:'\"]+)")
_PROMPT = re.compile(r"""(\b(?:prompt|messages|content|output|text)['"]?\s*[:=]\s*)['"\[{].+""", re.IGNORECASE)
"""What vLLM logs of requests (--enable-log-requests), up to the end of the line."""


class Redaction:
    """What is removed from a report, and how often; the same value is replaced by the same text."""

    def __init__(self, machine_values: Iterable[str]) -> None:
        self._identifiers = Identifiers(machine_values)
        self._counts = {"secrets": 0, "prompts": 0}
        self._addresses: dict[str, str] = {}
        self._users: dict[str, str] = {}

    def learn(self, texts: Iterable[str]) -> None:
        """Take serial numbers that stand in texts, so that they are removed everywhere."""
        self._identifiers.learn(texts)

    def clean_text(self, text: str, *, names_versions: bool = False, is_log: bool = False) -> str:
        """Return a text without what identifies people, machines or secrets.

        `names_versions`: versions of four numbers look like addresses, and stay with them. `is_log`: it may have
        prompts.
        """
        cleaned = "\n".join(map(self._hide_secrets, text.splitlines()))
        if is_log:
            cleaned, count = _PROMPT.subn(rf"\1{HIDDEN}", cleaned)
            self._counts["prompts"] += count
        if not names_versions:
            cleaned = _ADDRESS.sub(self._replace_address, cleaned)
        result: str = self._identifiers.remove(_USER.sub(self._replace_user, cleaned))
        return result

    def clean_json(self, value: Any) -> Any:
        """Return a JSON value so; keys and texts keep their form, so that a recorded host can still be read."""
        return self._identifiers.remove(_map_texts(value, self._hide_lines))

    def format_table(self) -> str:
        """Return what was removed, as a table of Markdown."""
        rows = (
            ("passwords, keys, tokens, signatures of URLs", HIDDEN, self._counts["secrets"]),
            ("serial numbers, UUIDs, MAC addresses, ids, names of this machine", "zeros", self._identifiers.count),
            ("IP addresses, except loopback", "address-N", len(self._addresses)),
            ("names of users in paths", "user-N", len(self._users)),
            ("prompts and answers in the log", HIDDEN, self._counts["prompts"]),
        )
        lines = (f"| {removed} | `{instead}` | {count} |" for removed, instead, count in rows)
        return "\n".join(("| removed | replaced by | how many |", "|---|---|---|", *lines)) + "\n"

    def _hide_lines(self, text: str) -> str:
        return _USER.sub(self._replace_user, "\n".join(map(self._hide_secrets, text.split("\n"))))

    def _hide_secrets(self, line: str) -> str:
        hidden = redact_text(line)
        self._counts["secrets"] += max(0, hidden.count(HIDDEN) - line.count(HIDDEN))
        return hidden

    def _replace_address(self, match: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            return match[0]
        if address.is_loopback or address.is_unspecified:
            return match[0]
        return self._addresses.setdefault(str(address), f"address-{len(self._addresses) + 1}")

    def _replace_user(self, match: re.Match[str]) -> str:
        return f"{match[1]}/{self._users.setdefault(match[2], f'user-{len(self._users) + 1}')}"


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_texts(item, change) for key, item in value.items()}
    return [_map_texts(item, change) for item in value] if isinstance(value, list) else value


def format_report(introduction: str, table: str, sections: Iterable[tuple[str, str]]) -> str:
    """Return the report; every line of a section is printable and indented."""
    parts = [f"{REPORT_TITLE}\n\n{introduction}\n\n{table}"]
    for name, text in sections:
        lines = printable(text).splitlines() or ["(nothing)"]
        parts.append(f"\n## {name}\n\n" + "".join(f"{REPORT_INDENT}{line}\n" for line in lines))
    return "".join(parts)


def format_host(value: Any) -> str:
    """Return a recorded host as the report has it, in few lines."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
