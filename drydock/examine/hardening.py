"""What must not be in an image: hardening.yaml, and the rules that judge what was seen of one. Reads one file.

The rules are pure: what they judge was read from the layers by drydock.audit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from drydock.config.strict_yaml import read_yaml
from drydock.config.validation import validate
from drydock.model.record import Because, Record

FILE = "drydock/examine/hardening.yaml"
Rule = Literal["secrets", "tools", "rights", "writable", "user", "network"]
USER = "10001:0"
ACCOUNT = "drydock:x:10001:0:drydock:/cache/home:/usr/sbin/nologin"
"""What every image runs as, and what its passwd says of that user."""
STICKY, ANYBODY, GROUP, SETID = 0o1000, 0o002, 0o020, 0o6000
CAPABILITY = "SCHILY.xattr.security.capability"
"""Where a tar file keeps what setcap(8) gives to a file."""
SAYS_SECRET = re.compile(r"(?i)(?:^|_)(?:token|password|passwd|secret|api_?key|access_key|credentials?)(?:$|_)")
PROXY = re.compile(r"(?i)^(?:https?|ftp|all|no)_proxy$")


class Pattern(Record):
    """What a secret looks like."""

    name: str
    """What it is."""
    marks: tuple[str, ...]
    """Fixed text, of which one is part of it: what is searched first."""
    regex: str
    """The whole of it."""
    within: tuple[str, ...] = ()
    """Globs of the files that are searched; all when empty."""

    @cached_property
    def compiled(self) -> re.Pattern[bytes]:
        """Return the expression, for bytes."""
        return re.compile(self.regex.encode())


class Tool(Record):
    """Something that only builds, or that a server has no use for."""

    name: str
    """What it is."""
    packages: tuple[str, ...] = ()
    """Globs of Debian packages."""
    but: tuple[str, ...] = ()
    """Globs of those among them that are none."""
    distributions: tuple[str, ...] = ()
    """Python distributions."""
    files: tuple[str, ...] = ()
    """Globs of paths."""
    unless: tuple[str, ...] = ()
    """Packages: a variant whose base asks for one of them compiles when it runs."""


class Allowed(Record):
    """Something that is found and stays."""

    rule: Rule
    """Which rule finds it."""
    path: str
    """Glob of the path."""
    because: Because


class HardeningPolicy(Record):
    """hardening.yaml as written."""

    schema_: Literal[1] = Field(alias="schema")
    """Version of this file's layout."""
    files: Mapping[str, str]
    """Glob of a path → what such a file holds."""
    patterns: tuple[Pattern, ...]
    """What secrets look like."""
    tools: tuple[Tool, ...]
    """What does not belong into an image that serves."""
    writable: tuple[str, ...]
    """Paths that the image's user may write to."""
    allow: tuple[Allowed, ...] = ()
    """What stays, with the reason."""


class Finding(Record):
    """Something in an image that should not be there."""

    rule: Rule
    path: str
    """In the image, or of the image's configuration."""
    found: str
    layer: int | None = None
    """The layer that brought it, the lowest being 0."""
    because: str = ""
    """Why it stays, where hardening.yaml says so."""


class Node(NamedTuple):
    """A file, folder or link as a container sees it."""

    layer: int
    kind: str
    """file, folder, link, device, other."""
    mode: int
    uid: int
    gid: int
    capable: bool = False
    """Whether a capability is set on it."""


class Seen(NamedTuple):
    """What was read of an image."""

    nodes: Mapping[str, Node]
    secrets: tuple[Finding, ...]
    """Found while reading, in every layer."""
    packages: frozenset[str]
    """Names of the Debian packages."""
    texts: Mapping[str, str]
    """etc/passwd and its like."""
    config: Mapping[str, Any]
    """Of the image."""


def read_policy(root: Path) -> HardeningPolicy:
    """Return the policy; raises InputError with the place of what is wrong."""
    return validate(HardeningPolicy, read_yaml(root / FILE, FILE))


def findings(seen: Seen, policy: HardeningPolicy, asked: Iterable[str]) -> Iterator[Finding]:
    """Return everything that a rule has against an image; what the policy allows carries its reason.

    `asked` are the packages that the variant's base asks for by name.
    """
    compiled = (_packages(seen, policy, set(asked)), rights(seen), writable(seen, policy), user(seen))
    for found in (*seen.secrets, *(item for rule in compiled for item in rule), *configured(seen, policy)):
        yield found.model_copy(update={"because": _allowed(found, policy)})


def _allowed(found: Finding, policy: HardeningPolicy) -> str:
    fits = (item for item in policy.allow if item.rule == found.rule and fnmatchcase(found.path, item.path))
    return next((item.because for item in fits), "")


# --- secrets --------------------------------------------------------------------------------------------------------


def named(path: str, policy: HardeningPolicy) -> str:
    """Return what a file of this name holds, if it is one that holds secrets; else nothing."""
    return next((what for glob, what in policy.files.items() if fnmatchcase(path, glob)), "")


def secrets(path: str, data: bytes, patterns: Sequence[Pattern]) -> Iterator[str]:
    """Return what secrets are in some bytes of a file; never the secret itself."""
    for pattern in patterns:
        if pattern.within and not any(fnmatchcase(path, glob) for glob in pattern.within):
            continue
        if any(mark.encode() in data for mark in pattern.marks) and pattern.compiled.search(data):
            yield pattern.name


def configured(seen: Seen, policy: HardeningPolicy) -> Iterator[Finding]:
    """Return secrets and proxies in the image's environment, labels and history."""
    config = seen.config.get("config", {})
    for setting in config.get("Env") or ():
        name, _, value = setting.partition("=")
        if PROXY.match(name) or (value and SAYS_SECRET.search(name)):
            yield Finding(rule="secrets", path=f"ENV {name}", found="is set in the image")
    texts = {"ENV": config.get("Env"), "LABEL": config.get("Labels"), "history": seen.config.get("history")}
    everywhere = [pattern.model_copy(update={"within": ()}) for pattern in policy.patterns]
    for where, value in texts.items():
        for what in secrets("", repr(value).encode(), everywhere):
            yield Finding(rule="secrets", path=where, found=what)


# --- tools ----------------------------------------------------------------------------------------------------------


def _packages(seen: Seen, policy: HardeningPolicy, asked: set[str]) -> Iterator[Finding]:
    for tool in policy.tools:
        if not asked.intersection(tool.unless):
            yield from tools(seen, tool)


def tools(seen: Seen, tool: Tool) -> Iterator[Finding]:
    """Return what is in an image of one kind of tool."""
    for package in sorted(seen.packages):
        if _any(package, tool.packages) and not _any(package, tool.but):
            yield Finding(rule="tools", path=f"deb {package}", found=tool.name)
    for path, node in seen.nodes.items():
        if node.kind != "folder" and _any(path, tool.files):
            yield Finding(rule="tools", path=path, found=tool.name, layer=node.layer)
        folder, _, name = path.rpartition("/")
        if name == "METADATA" and _distribution(folder) in tool.distributions:
            yield Finding(rule="tools", path=folder, found=tool.name, layer=node.layer)


def _distribution(folder: str) -> str:
    """Return the name of the distribution whose metadata lies in a folder of an environment itself, else nothing."""
    site, _, name = folder.rpartition("/")
    within = site.endswith(("/site-packages", "/dist-packages")) and name.endswith(".dist-info")
    return name.partition("-")[0].replace("_", "-").lower() if within else ""


def _any(text: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(text, glob) for glob in globs)


# --- rights ---------------------------------------------------------------------------------------------------------


def rights(seen: Seen) -> Iterator[Finding]:
    """Return programs that run with more rights than who starts them, and devices."""
    for path, node in seen.nodes.items():
        if node.kind == "file" and node.mode & SETID:
            found = f"runs as its owner {node.uid}:{node.gid}: mode {node.mode:04o}"
            yield Finding(rule="rights", path=path, found=found, layer=node.layer)
        if node.capable:
            yield Finding(rule="rights", path=path, found="has capabilities of its own", layer=node.layer)
        if node.kind == "device":
            yield Finding(rule="rights", path=path, found="a device in a layer", layer=node.layer)


def writable(seen: Seen, policy: HardeningPolicy) -> Iterator[Finding]:
    """Return what the image's user or everybody may write to, and should not."""
    uid, gid = (int(number) for number in USER.split(":"))
    for path, node in seen.nodes.items():
        if node.kind == "link":
            continue
        everybody = node.mode & ANYBODY and not (node.mode & STICKY and path in policy.writable)
        groups = node.gid == gid and node.mode & GROUP and path not in policy.writable
        if everybody or groups or (node.uid == uid and path not in policy.writable):
            who = "everybody" if everybody else f"the image's user {USER}"
            found = f"{who} may write to it: {node.uid}:{node.gid}, mode {node.mode:04o}"
            yield Finding(rule="writable", path=path or "/", found=found, layer=node.layer)


# --- users ----------------------------------------------------------------------------------------------------------


def user(seen: Seen) -> Iterator[Finding]:
    """Return what is wrong with whom the image runs as, with its accounts, and with who owns its files."""
    runs_as = str((seen.config.get("config") or {}).get("User", ""))
    if runs_as != USER:
        yield Finding(rule="user", path="USER", found=f"{runs_as or 'root'}, expected {USER}")
    own = [
        line for line in seen.texts.get("etc/passwd", "").splitlines() if line.split(":")[2:3] == USER.split(":")[:1]
    ]
    if own != [ACCOUNT]:
        yield Finding(
            rule="user", path="etc/passwd", found=f"{' and '.join(own) or 'no user 10001'}, expected {ACCOUNT}"
        )
    yield from (item for name in ("etc/passwd", "etc/shadow") for item in _passwords(name, seen.texts.get(name, "")))
    uids, gids = (
        {int(line.split(":")[2]) for line in _lines(seen.texts, name)} for name in ("etc/passwd", "etc/group")
    )
    for path, node in seen.nodes.items():
        if node.uid not in uids or node.gid not in gids:
            found = f"belongs to {node.uid}:{node.gid}, which no line of passwd or group names"
            yield Finding(rule="user", path=path, found=found, layer=node.layer)


def _lines(texts: Mapping[str, str], name: str) -> list[str]:
    return [line for line in texts.get(name, "").splitlines() if line.count(":") > 1]


def _passwords(name: str, text: str) -> Iterator[Finding]:
    """Return accounts that somebody can log in to: an empty password, or any that is neither locked nor in shadow."""
    for line in text.splitlines():
        account, _, rest = line.partition(":")
        password = rest.partition(":")[0]
        if not password.startswith(("!", "*")) and not (name == "etc/passwd" and password == "x"):  # noqa: S105 - "see shadow"
            yield Finding(rule="user", path=name, found=f"{account} has {'a' if password else 'an empty'} password")


# --- the Dockerfile -------------------------------------------------------------------------------------------------


def network(dockerfile: str) -> Iterator[Finding]:
    """Return the steps of a Dockerfile that could reach a network. Pure."""
    for step in steps(dockerfile):
        word = step.partition(" ")[0].upper()
        if (word == "RUN" and not step.startswith("RUN --network=none ")) or word == "ADD":
            yield Finding(rule="network", path="Dockerfile", found=step[:100])


def own_layers(dockerfile: str) -> int:
    """Return how many layers a Dockerfile puts upon its base, through the stages that the last one is made of."""
    stages: dict[str, tuple[str, int]] = {}
    name = ""
    for step in steps(dockerfile):
        words = step.split()
        if words[0] == "FROM":
            name = words[3] if len(words) > 3 else ""  # noqa: PLR2004 - FROM x AS name
            stages[name] = (words[1], 0)
        elif words[0] in ("RUN", "COPY", "ADD"):
            stages[name] = (stages[name][0], stages[name][1] + 1)
    count = 0
    while name in stages:
        name, more = stages[name]
        count += more
    return count


def steps(dockerfile: str) -> list[str]:
    """Return a Dockerfile's instructions, one a line, without comments."""
    lines = "\n".join(line for line in dockerfile.splitlines() if not line.lstrip().startswith("#"))
    return [line.strip() for line in lines.replace("\\\n", " ").splitlines() if line.strip()]
