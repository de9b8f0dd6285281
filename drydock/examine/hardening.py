"""The rules of `audit`. Pure: config/hardening_policy.py reads the policy, and audit.py the layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from drydock.config.hardening_policy import HardeningPolicy, Rule, Tool, find_secrets
from drydock.model.record import Record

USER = "10001:0"
ACCOUNT = "drydock:x:10001:0:drydock:/cache/home:/usr/sbin/nologin"
"""The user of every image, and its line in etc/passwd."""
STICKY, OTHERS_WRITE, GROUP_WRITE, SETID = 0o1000, 0o002, 0o020, 0o6000
"""Bits of a file's mode; SETID is setuid or setgid."""
LONGEST_ID = 10
"""Digits of a user's number, which has 32 bits."""
CAPABILITY = "SCHILY.xattr.security.capability"
"""The pax header in which tar stores capabilities set by setcap(8)."""
SECRET_NAME = re.compile(r"(?i)(?:^|_)(?:token|password|passwd|secret|api_?key|access_key|credentials?)(?:$|_)")
PROXY = re.compile(r"(?i)^(?:https?|ftp|all|no)_proxy$")


class Finding(Record):
    """A violation of a rule."""

    rule: Rule
    path: str
    """Path in the image, or part of the image's configuration."""
    found: str
    layer: int | None = None
    """Number of the layer that contains it; the lowest is 0."""
    because: str = ""
    """Why hardening.yaml allows it; empty if it does not."""


class TreeNode(NamedTuple):
    """A file, folder or link as a container sees it."""

    layer: int
    kind: str
    """file, folder, link, device, other."""
    mode: int
    uid: int
    gid: int
    capable: bool = False
    """Whether it has capabilities."""


class ObservedImage(NamedTuple):
    """The contents of an image, as the rules need them."""

    nodes: Mapping[str, TreeNode]
    secrets: tuple[Finding, ...]
    """Secrets in the files of any layer."""
    packages: frozenset[str]
    """Names of the Debian packages."""
    texts: Mapping[str, str]
    """Texts of etc/passwd and similar files."""
    config: Mapping[str, Any]
    """The image's configuration."""


def find_violations(image: ObservedImage, policy: HardeningPolicy, requested: Iterable[str]) -> Iterator[Finding]:
    """Yield the findings of all rules; those that the policy allows have its reason.

    `requested` are the packages that the variant's base requests by name.
    """
    violations = [
        *image.secrets,
        *_find_tools(image, policy, set(requested)),
        *find_excess_rights(image),
        *find_writable_paths(image, policy),
        *find_wrong_users(image),
        *find_configured_secrets(image, policy),
    ]
    for item in violations:
        yield item.model_copy(update={"because": _reason_to_allow(item, policy)})


def _reason_to_allow(finding: Finding, policy: HardeningPolicy) -> str:
    for item in policy.allow:
        if item.rule == finding.rule and fnmatchcase(finding.path, item.path):
            return item.because
    return ""


# --- secrets --------------------------------------------------------------------------------------------------------


def secret_by_name(path: str, policy: HardeningPolicy) -> str:
    """Return the kind of secrets that a file with this path contains, or an empty string."""
    for glob, kind in policy.files.items():
        if fnmatchcase(path, glob):
            return kind
    return ""


def find_configured_secrets(image: ObservedImage, policy: HardeningPolicy) -> Iterator[Finding]:
    """Yield secrets and proxies in the image's environment, labels and history."""
    config = image.config.get("config") or {}
    for setting in config.get("Env") or ():
        name, _, value = setting.partition("=")
        if PROXY.match(name) or (value and SECRET_NAME.search(name)):
            yield Finding(rule="secrets", path=f"ENV {name}", found="is set in the image")
    texts = {"ENV": config.get("Env"), "LABEL": config.get("Labels"), "history": image.config.get("history")}
    everywhere = [pattern.model_copy(update={"within": ()}) for pattern in policy.patterns]
    for where, value in texts.items():
        for secret in find_secrets("", repr(value).encode(), everywhere):
            yield Finding(rule="secrets", path=where, found=secret.kind)


# --- tools ----------------------------------------------------------------------------------------------------------


def _find_tools(image: ObservedImage, policy: HardeningPolicy, requested: set[str]) -> Iterator[Finding]:
    for tool in policy.tools:
        if not requested.intersection(tool.unless):
            yield from _find_installed_tool(image, tool)


def _find_installed_tool(image: ObservedImage, tool: Tool) -> Iterator[Finding]:
    for package in sorted(image.packages):
        if _matches_any(package, tool.packages) and not _matches_any(package, tool.but):
            yield Finding(rule="tools", path=f"deb {package}", found=tool.name)
    for path, node in image.nodes.items():
        if node.kind != "folder" and _matches_any(path, tool.files):
            yield Finding(rule="tools", path=path, found=tool.name, layer=node.layer)
        folder, _, name = path.rpartition("/")
        if name == "METADATA" and _parse_metadata_folder(folder) in tool.distributions:
            yield Finding(rule="tools", path=folder, found=tool.name, layer=node.layer)


def _parse_metadata_folder(folder: str) -> str:
    """Return the distribution of a metadata folder directly in site-packages or dist-packages, or an empty string."""
    site, _, name = folder.rpartition("/")
    if site.endswith(("/site-packages", "/dist-packages")) and name.endswith(".dist-info"):
        return name.partition("-")[0].replace("_", "-").lower()
    return ""


def _matches_any(text: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(text, glob) for glob in globs)


# --- rights ---------------------------------------------------------------------------------------------------------


def find_excess_rights(image: ObservedImage) -> Iterator[Finding]:
    """Yield setuid and setgid programs, files with capabilities, and devices."""
    for path, node in image.nodes.items():
        if node.kind == "file" and node.mode & SETID:
            problem = f"runs as its owner {node.uid}:{node.gid}: mode {node.mode:04o}"
            yield Finding(rule="rights", path=path, found=problem, layer=node.layer)
        if node.capable:
            yield Finding(rule="rights", path=path, found="has capabilities", layer=node.layer)
        if node.kind == "device":
            yield Finding(rule="rights", path=path, found="is a device", layer=node.layer)


def find_writable_paths(image: ObservedImage, policy: HardeningPolicy) -> Iterator[Finding]:
    """Yield the paths that everyone or the image's user can write to, except those that the policy lists.

    A listed path may be writable by everyone only if it has the sticky bit.
    """
    uid, gid = (int(number) for number in USER.split(":"))
    for path, node in image.nodes.items():
        if node.kind == "link":
            continue
        listed = path in policy.writable
        by_user = node.uid == uid or (node.gid == gid and node.mode & GROUP_WRITE)
        if node.mode & OTHERS_WRITE and not (listed and node.mode & STICKY):
            who = "everyone"
        elif by_user and not listed:
            who = f"the image's user {USER}"
        else:
            continue
        problem = f"writable by {who}: {node.uid}:{node.gid}, mode {node.mode:04o}"
        yield Finding(rule="writable", path=path or "/", found=problem, layer=node.layer)


# --- users ----------------------------------------------------------------------------------------------------------


def find_wrong_users(image: ObservedImage) -> Iterator[Finding]:
    """Yield wrong users: the user that the image runs as, its account, accounts with passwords, owners of files."""
    runs_as = str((image.config.get("config") or {}).get("User", ""))
    if runs_as != USER:
        yield Finding(rule="user", path="USER", found=f"{runs_as or 'root'}, expected {USER}")
    uid = USER.partition(":")[0]
    accounts = [line for line in image.texts.get("etc/passwd", "").splitlines() if line.split(":")[2:3] == [uid]]
    if accounts != [ACCOUNT]:
        problem = f"{' and '.join(accounts) or f'no user {uid}'}, expected {ACCOUNT}"
        yield Finding(rule="user", path="etc/passwd", found=problem)
    for name in ("etc/passwd", "etc/shadow"):
        yield from _find_open_passwords(name, image.texts.get(name, ""))
    uids, gids = _parse_ids(image.texts.get("etc/passwd", "")), _parse_ids(image.texts.get("etc/group", ""))
    for path, node in image.nodes.items():
        if node.uid not in uids or node.gid not in gids:
            problem = f"its owner {node.uid}:{node.gid} is not in passwd or group"
            yield Finding(rule="user", path=path, found=problem, layer=node.layer)


def _parse_ids(text: str) -> set[int]:
    """Return the numeric ids in a passwd or group file."""
    numbers = [line.split(":")[2] for line in text.splitlines() if line.count(":") > 1]
    return {int(number) for number in numbers if number.isdecimal() and len(number) <= LONGEST_ID}


def _find_open_passwords(name: str, text: str) -> Iterator[Finding]:
    """Yield accounts that allow a login: an empty password, or one that is neither locked nor in etc/shadow."""
    for line in text.splitlines():
        account, _, rest = line.partition(":")
        password = rest.partition(":")[0]
        if not password.startswith(("!", "*")) and not (name == "etc/passwd" and password == "x"):  # noqa: S105 - "see shadow"
            yield Finding(rule="user", path=name, found=f"{account} has {'a' if password else 'an empty'} password")


# --- the Dockerfile -------------------------------------------------------------------------------------------------


def find_network_steps(dockerfile: str) -> Iterator[Finding]:
    """Yield the steps of a Dockerfile that could use the network."""
    for step in split_instructions(dockerfile):
        word = step.partition(" ")[0].upper()
        if (word == "RUN" and not step.startswith("RUN --network=none ")) or word == "ADD":
            yield Finding(rule="network", path="Dockerfile", found=step[:100])


def own_layers(dockerfile: str) -> int:
    """Return the number of layers that a Dockerfile adds to its base, in the last stage and the stages below it."""
    stages: dict[str, tuple[str, int]] = {}
    name = ""
    for step in split_instructions(dockerfile):
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


def split_instructions(dockerfile: str) -> list[str]:
    """Return a Dockerfile's instructions without comments, one per item."""
    lines = "\n".join(line for line in dockerfile.splitlines() if not line.lstrip().startswith("#"))
    return [line.strip() for line in lines.replace("\\\n", " ").splitlines() if line.strip()]
