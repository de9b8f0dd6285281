"""Removes what identifies a machine from what is recorded or reported of it.

Serial numbers, UUIDs, MAC addresses, GUIDs, ids of containers and host names are replaced by numbered zeros: the same
value by the same text, in the same form, so that whatever reads the file finds what it expects. PCI addresses stay:
they name a slot, many machines have the same, and the NUMA node of a device is found by them.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from entrypoints.core.redact import HIDDEN, is_secret, redact_text

_HEX = "[0-9A-Fa-f]"
_KEY = (
    r"(?:serial|unique[ _]?id|uuid|guid|\bsn\b|\bs/n|die[ _-]?id|machine[ _-]?id|asset[ _]?tag|host[ _]?name|\bpdi\b)"
)
_SERIAL = re.compile(
    rf"""({_KEY}[ _-]?(?:number|num|no|id)?["']?[ \t]*(?:[:=>|#][ \t]*)+["']?)"""
    r"""(?!N/A|\[|None|Unknown|Not )(\w[\w.-]{2,})""",
    re.IGNORECASE,
)
"""A key such as `Serial Number :`, `"asic_serial":`, `<serial>`, `Dev SN :` or `unique_id=`, and its value."""
_COLUMN = re.compile(rf"{_KEY}|^\s*mac\b", re.IGNORECASE)
"""What the head of a column with identifiers has, in an answer with commas."""
_FORMS = (
    (re.compile(rf"\b{_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}\b"), "00000000-0000-0000-0000-{:012d}"),
    (re.compile(rf"\b(?:{_HEX}{{2}}:){{5,}}{_HEX}{{2}}\b"), "02:00:00:00:00:{:02d}"),
    (re.compile(rf"\b(?:{_HEX}{{2}}-){{5,}}{_HEX}{{2}}\b"), "02-00-00-00-00-{:02d}"),
    (re.compile(rf"\b(?:{_HEX}{{4}}:){{3}}{_HEX}{{4}}\b"), "0000:0000:0000:{:04d}"),
    (re.compile(rf"(?<=\b[ew][nlw]x){_HEX}{{12}}\b"), "{:012d}"),
    (re.compile(rf"\b{_HEX}{{32,}}\b"), "{:032d}"),
)
"""UUID, MAC address, serial number of PCI, GUID of InfiniBand, an interface named by its MAC address, a container."""
_REDUCED = re.compile(r"0{8}-0000-0000-0000-|^0{8}\d{1,4}$|^02([:-])00\1|^removed-\d+$")
"""A value that this module has replaced before: a record may be reduced twice."""
_IPV4 = r"\d{1,3}(?:\.\d{1,3}){3}"
_ENDS = r"(?!\w|\.\w|-[A-Za-z_])"
_ADDRESS = re.compile(
    rf"(?<![\w.])(?<![A-Za-z_]-){_IPV4}{_ENDS}"
    rf"|(?<![\w.-])(?<![0-9A-Fa-f:]:)(?:::[Ff]{{4}}:{_IPV4}|{_HEX}{{0,4}}(?::{_HEX}{{0,4}}){{2,7}})(?!:){_ENDS}"
)
"""What may be an IP address: also after a name and a colon, in a range, at the end of a sentence, and with a port."""
_USER = re.compile(r"(/(?:home|[Uu]sers)/{1,8}|(?<!\\)\\{1,8}Users\\{1,8})([^/\\\s:'\".<][^/\\\s:'\"]*)")
"""The folder of a user, also on another disk (/data/home/NAME) and of Windows. A hidden folder is of no user."""
_FLAG = re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]*)([ \t]+)(?!-)([^\s\"'`]+|'[^']*'|\"[^\"]*\")")
_LIST = re.compile(r"""(?<![\w.-])([\w.-]{1,100})(["']?\s{0,20}[:=]\s{0,20})[\[(][^\[\]()]{0,2000}[\])]""")
_LINE = re.compile(r"""(?<![\w.-])([A-Za-z_][\w.-]*)(\s*[:=][ \t]+)(?=[^\s"'])([^\s,;]+)""")
_ISSUED = re.compile(r"(?<![\w-])(?:(?:sk|nvapi|xox[abpr])-[\w-]{20,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)")
"""A flag, a list and a line with a value after a secret's name, and tokens that their form tells (JSON Web Tokens).
What drydock prints itself has none of them; a log may have the command line and the settings of another program."""
_PROMPT = re.compile(r"""(\b(?:prompt|messages|content|output|text)['"]?\s*[:=]\s*)['"\[{].+""", re.IGNORECASE)
"""What vLLM logs of requests (--enable-log-requests), up to the end of the line."""
_SHORTEST = 4
"""Characters of a value that the machine reports as its own. `0` or `N/A` identifies none."""
_MACHINE_FILES = (
    *("/etc/hostname", "/etc/machine-id", "/proc/sys/kernel/random/boot_id", "/sys/class/net/*/address"),
    *(f"/sys/class/dmi/id/{name}_serial" for name in ("product", "board", "chassis")),
    "/sys/class/dmi/id/product_uuid",
)


class Identifiers:
    """The identifiers of one machine, and what each was replaced by."""

    def __init__(self, values: Iterable[str], vocabulary: str = "") -> None:
        """Take the values that the machine reports as its own. One that is a word of the vocabulary identifies none."""
        words = {*re.split(r"[^\w.-]+", vocabulary.lower()), "localhost", "none", "unknown", "default"}
        self._words = words
        self.values: set[str] = set()
        self._replacements: dict[str, str] = {}
        self._add(values)

    def _add(self, values: Iterable[str]) -> None:
        for value in map(str.strip, values):
            is_word = len(value) < _SHORTEST or value.lower() in self._words
            is_zero = not set(value) - {*"0:-x"} or _REDUCED.search(value)  # as of the loopback interface
            if not is_word and not is_zero:
                self.values.add(value)

    def learn(self, texts: Iterable[str]) -> None:
        """Take what texts give as serial numbers, by a key or in a column: elsewhere it may stand without the key."""
        for text in texts:
            self._add(match[2] for match in _SERIAL.finditer(text))
            self._add(_read_columns(text))

    @property
    def count(self) -> int:
        """How many different identifiers were removed."""
        return len(self._replacements)

    def remove(self, value: Any) -> Any:
        """Return a JSON value without identifiers: texts, and the keys and items of objects and lists."""
        if isinstance(value, str):
            return self._remove_from_text(value)
        if isinstance(value, dict):
            return {self.remove(key): self.remove(item) for key, item in value.items()}
        return [self.remove(item) for item in value] if isinstance(value, list) else value

    def remaining_in(self, text: str) -> list[str]:
        """Return the machine's own values that a text or a JSON file still has."""
        unescaped = re.sub(r"\\[nrt]", " ", text)
        return [value for value in sorted(self.values) if _match_whole_word(value).search(unescaped)]

    def _remove_from_text(self, text: str) -> str:
        for form, replacement in _FORMS:
            text = form.sub(partial(self._replace_match, replacement), text)
        text = _SERIAL.sub(lambda match: match[1] + self._replace(match[2], "0" * 8 + "{:d}"), text)
        for value in sorted(self.values, key=len, reverse=True):  # a long name before a short one that is part of it
            text = _match_whole_word(value).sub(partial(self._replace_match, "removed-{:d}"), text)
        return text

    def _replace_match(self, form: str, match: re.Match[str]) -> str:
        return self._replace(match[0], form)

    def _replace(self, value: str, form: str) -> str:
        if any(replacement in value for replacement in self._replacements.values()):  # such as GPU-00000000-…
            return value
        return self._replacements.setdefault(value.lower(), form.format(len(self._replacements)))


def _read_columns(text: str) -> Iterator[str]:
    """Yield the values below the heads of columns with identifiers, in an answer with commas."""
    head, *lines = text.splitlines() or [""]
    columns = [number for number, name in enumerate(head.split(",")) if _COLUMN.search(name)]
    for cells in (line.split(",") for line in lines):
        yield from (cells[number] for number in columns if len(cells) == head.count(",") + 1)


def _match_whole_word(value: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(value)}(?!\w)", re.IGNORECASE)


def read_machine_values(root: str = "/") -> list[str]:
    """Return the values by which this machine is known: its names, ids, serial numbers and MAC addresses."""
    name = os.uname().nodename
    values = [name, name.partition(".")[0]]
    for pattern in _MACHINE_FILES:
        for path in Path(root).glob(pattern.lstrip("/")):
            try:
                values.append(path.read_text(errors="replace"))
            except OSError:
                continue  # of root only, or of a device without this value
    return values


# --- of a report, also secrets and what people wrote ------------------------------------------------------------------


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
        hidden = _hide_written_secrets(redact_text(line))
        self._counts["secrets"] += max(0, hidden.count(HIDDEN) - line.count(HIDDEN))
        return hidden

    def _replace_address(self, match: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            return match[0]
        address = getattr(address, "ipv4_mapped", None) or address
        if address.is_loopback or address.is_unspecified:
            return match[0]
        return self._addresses.setdefault(str(address), f"address-{len(self._addresses) + 1}")

    def _replace_user(self, match: re.Match[str]) -> str:
        return f"{match[1]}{self._users.setdefault(match[2], f'user-{len(self._users) + 1}')}"


def _hide_written_secrets(line: str) -> str:
    """Hide what only a report hides: a log quotes command lines, settings and tokens of other programs."""
    line = _ISSUED.sub(HIDDEN, line)
    line = _FLAG.sub(lambda match: f"{match[1]}{match[2]}{HIDDEN}" if is_secret(match[1]) else match[0], line)
    line = _LIST.sub(lambda match: f"{match[1]}{match[2]}[{HIDDEN}]" if _is_unmistaken(match[1]) else match[0], line)
    return _LINE.sub(lambda match: f"{match[1]}{match[2]}{HIDDEN}" if _is_unmistaken(match[1]) else match[0], line)


def _is_unmistaken(name: str) -> bool:
    """Tell whether a name is that of a secret, and no word of a sentence."""
    return is_secret(name) and name.lower() not in ("key", "keys", "auth", "token", "bearer", "authorization")


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_texts(item, change) for key, item in value.items()}
    return [_map_texts(item, change) for item in value] if isinstance(value, list) else value
